"""The wall-time ledger of a run: every nanosecond of every rank's step in exactly one account.

Shape legend: R ranks that have steps, S steps that all of their segment's ranks have, A accounts, N collective rows.
Source: docs/method.md, the wall-time ledger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from narrows.inquiry.accounts import ACCOUNTS, SPAN_ACCOUNTS, WAIT_SPAN, Account
from narrows.inquiry.errors import RunDirectoryError
from narrows.reducers.alignment import align
from narrows.reducers.collectives import Collectives, match_collectives, rows_by_rank
from narrows.reducers.records import ABSENT, Clock, Loss
from narrows.reducers.sweep import CODES, WAIT_CODE, Intervals, Swept, Timeline, sweep
from narrows.reducers.windows import Windows, common_windows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narrows.reducers.records import F64, I64, Bool, RankRecords, Run

COVERAGE_NEEDED = 0.95
"""Below this matched share of collective time, nothing may be concluded on skew or transfer. Source: docs/method.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Exact accounts in integer nanoseconds: ``account_ns_RSA.sum(2) == end_ns_RS - start_ns_RS`` wherever
    ``present_RS``, and 0 elsewhere (a rank that sat a segment out).

    ``steps``: one row a step, in time order: step, segment, pair, batch (-1 where absent), warmup. ``idle`` ranks
    wrote no step. ``hidden_ns_RS`` is compute beside which a transfer ran: a memo, in no sum. ``waits`` and
    ``timelines`` hold, per rank, the blocked intervals and the rank's own doing between them. ``row_step_N`` gives
    the step in which a row of ``collectives.rows`` was entered, -1 for none. ``readings_RS`` is NaN where absent.
    """

    name: str
    arm: str | None
    launch: str | None
    digest: str
    clock: Clock
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    idle: tuple[int, ...]
    steps: pd.DataFrame
    present_RS: Bool
    start_ns_RS: I64
    end_ns_RS: I64
    account_ns_RSA: I64
    hidden_ns_RS: I64
    readings_RS: Mapping[str, F64]
    collectives: Collectives
    row_step_N: I64
    timelines: tuple[Timeline, ...]
    waits: tuple[Intervals, ...]
    losses: tuple[Loss, ...]

    @property
    def coverage(self) -> float:
        """Matched share of collective time; NaN where the run has no collective."""
        return self.collectives.coverage


def build_ledger(run: Run) -> Ledger:
    """The ledger of all steps that every rank of their segment finished; the others are dropped and counted.

    Hosts that only wall time relates have their clocks aligned by the run's collectives first.

    Raises RunDirectoryError when no step is left, or when ranks contradict each other on what a step was.
    """
    run = align(run)
    collectives = match_collectives(run)
    rows_of = rows_by_rank(collectives.rows)
    windows = common_windows(run, collectives, rows_of)
    if not len(windows.steps):
        raise RunDirectoryError(f"{run.path}: no step was finished by all ranks; run it for longer, or leave it out")
    swept, waits = [], []
    row_step_N = np.full(len(collectives.rows), ABSENT, dtype=np.int64)
    columns = {name: collectives.rows[name].to_numpy() for name in ("enter_ns", "end_ns", "wait_ns", "matched", "p2p")}
    for at, rank in enumerate(windows.ranks):
        here = windows.present_RS[at]
        start_ns, end_ns = windows.start_ns_RS[at, here], windows.end_ns_RS[at, here]
        row_N = rows_of.get(rank, np.zeros(0, dtype=np.int64))
        row_step_N[row_N] = windows.step_of(at, columns["enter_ns"][row_N])
        spans = _span_intervals(run.ranks[rank])
        waits.append(_only(spans, WAIT_CODE))
        calls = _call_intervals({name: column[row_N] for name, column in columns.items()})
        swept.append(sweep(_joined(spans, calls), start_ns, end_ns))
    account_ns_RSA, hidden_ns_RS = _scattered(swept, windows)
    return Ledger(
        name=run.name,
        arm=run.arm,
        launch=run.launch,
        digest=run.digest,
        clock=run.clock,
        ranks=windows.ranks,
        hosts=tuple(run.ranks[rank].host for rank in windows.ranks),
        idle=windows.idle,
        steps=windows.steps,
        present_RS=windows.present_RS,
        start_ns_RS=windows.start_ns_RS,
        end_ns_RS=windows.end_ns_RS,
        account_ns_RSA=account_ns_RSA,
        hidden_ns_RS=hidden_ns_RS,
        readings_RS=windows.readings_RS,
        collectives=collectives,
        row_step_N=row_step_N,
        timelines=tuple(each.timeline for each in swept),
        waits=tuple(waits),
        losses=(*run.losses, *windows.losses),
    )


def _span_intervals(records: RankRecords) -> Intervals:
    """Recorded spans that have an account, and waits; a span of an unknown name is in the run's losses."""
    steps = records.steps
    code_of = {name: CODES[account] for name, account in SPAN_ACCOUNTS.items()} | {WAIT_SPAN: WAIT_CODE}
    codes = np.array([code_of.get(name, ABSENT) for name in steps.span_names], dtype=np.int64)
    code_M = codes[steps.span_name_M] if len(codes) else steps.span_name_M
    known_M = code_M != ABSENT
    return Intervals(
        code_M=code_M[known_M],
        start_ns_M=steps.span_start_ns_M[known_M],
        end_ns_M=steps.span_end_ns_M[known_M],
    )


def _call_intervals(rows: Mapping[str, I64]) -> Intervals:
    """Waiting until the last arrival, then transfer; an unmatched collective has no wait, so all is transfer."""
    waiting = np.where(rows["p2p"], CODES[Account.PIPELINE], CODES[Account.SKEW])
    arrival_ns = rows["enter_ns"] + rows["wait_ns"]
    return Intervals(
        code_M=np.concatenate([waiting, np.full(len(waiting), CODES[Account.TRANSFER])]),
        start_ns_M=np.concatenate([rows["enter_ns"], arrival_ns]),
        end_ns_M=np.concatenate([arrival_ns, rows["end_ns"]]),
    )


def _joined(a: Intervals, b: Intervals) -> Intervals:
    return Intervals(
        code_M=np.concatenate([a.code_M, b.code_M]),
        start_ns_M=np.concatenate([a.start_ns_M, b.start_ns_M]),
        end_ns_M=np.concatenate([a.end_ns_M, b.end_ns_M]),
    )


def _only(intervals: Intervals, code: int) -> Intervals:
    """The intervals of one code, in order of their ends."""
    at = np.flatnonzero(intervals.code_M == code)
    at = at[np.argsort(intervals.end_ns_M[at], kind="stable")]
    return Intervals(code_M=intervals.code_M[at], start_ns_M=intervals.start_ns_M[at], end_ns_M=intervals.end_ns_M[at])


def _scattered(swept: list[Swept], windows: Windows) -> tuple[I64, I64]:
    account_ns_RSA = np.zeros((*windows.present_RS.shape, len(ACCOUNTS)), dtype=np.int64)
    hidden_ns_RS = np.zeros(windows.present_RS.shape, dtype=np.int64)
    for at, each in enumerate(swept):
        account_ns_RSA[at, windows.present_RS[at]] = each.account_ns_SA
        hidden_ns_RS[at, windows.present_RS[at]] = each.hidden_ns_S
    window_ns_RS = windows.end_ns_RS - windows.start_ns_RS
    assert (account_ns_RSA.sum(axis=2) == window_ns_RS).all(), "the accounts do not add up to the windows"
    return account_ns_RSA, hidden_ns_RS
