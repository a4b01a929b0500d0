"""The third opinion on a loss: the what-if replay of a contiguous stretch of one run of each arm.

Its cost is bounded, however long or large the run was.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from narrows.reducers.ledger_replay import WhatIf, steady_steps, what_if
from narrows.reducers.records import ABSENT
from narrows.reducers.sweep import Intervals

if TYPE_CHECKING:
    from narrows.reducers.ledger import Ledger
    from narrows.reducers.records import I64


MOST_STEPS = 60
MOST_EVENTS = 400_000
"""Of one run, what is replayed at most: an event takes some 5 us, and 0.5 kB while it lasts."""


def third_opinion(healthy: Ledger, regressed: Ledger) -> WhatIf:
    """``what_if`` on the same places of both runs: from the first step that is steady in both, at most ``MOST_STEPS``
    steps and ``MOST_EVENTS`` events of a run.
    """
    both = healthy, regressed
    shorter = min(len(one.steps) for one in both)
    first = min(max(int(steady_steps(one)[0]) for one in both), shorter - 1)
    until = first + min(MOST_STEPS, *(MOST_EVENTS // _events_a_step(one) for one in both))
    if until == first:
        return _withheld(f"a step has more than {MOST_EVENTS:,} events, too many to replay")
    try:
        return what_if(excerpt(healthy, first, until), excerpt(regressed, first, until))
    except ValueError as error:
        return _withheld(str(error))


def _withheld(why_not: str) -> WhatIf:
    nothing = {"healthy_ms": 0.0, "regressed_ms": 0.0}
    return WhatIf(**nothing, replay_error=(0.0, 0.0), steps=(0, 0), accounts=(), why_not=why_not)


def _events_a_step(ledger: Ledger) -> int:
    """At least 1: enters, members' ends and joins of the collectives, and the ranks' ends, at a step on average."""
    inside = int((ledger.row_step_N != ABSENT).sum())
    return max(1, (3 * inside + int(ledger.present_RS.sum())) // len(ledger.steps))


def excerpt(ledger: Ledger, first: int, until: int) -> Ledger:
    """The ledger of the steps at places ``first`` to ``until`` - 1.

    Collectives stay in the table; those entered in other steps belong to none. Timelines are shared, not copied.
    """
    here = slice(first, until)
    step_N = ledger.row_step_N
    inside_N = (step_N >= first) & (step_N < until)
    present_RS, start_ns_RS = ledger.present_RS[:, here], ledger.start_ns_RS[:, here]
    end_ns_RS = ledger.end_ns_RS[:, here]
    return replace(
        ledger,
        steps=ledger.steps.iloc[here].reset_index(drop=True),
        present_RS=present_RS,
        start_ns_RS=start_ns_RS,
        end_ns_RS=end_ns_RS,
        account_ns_RSA=ledger.account_ns_RSA[:, here],
        hidden_ns_RS=ledger.hidden_ns_RS[:, here],
        readings_RS={name: table[:, here] for name, table in ledger.readings_RS.items()},
        row_step_N=np.where(inside_N, step_N - first, ABSENT),
        waits=tuple(
            _between(waits, start_ns_RS[at, present_RS[at]], end_ns_RS[at, present_RS[at]])
            for at, waits in enumerate(ledger.waits)
        ),
    )


def _between(waits: Intervals, start_ns_S: I64, end_ns_S: I64) -> Intervals:
    """The waits from the first start to the last end; none where there is no step."""
    if len(start_ns_S):
        keep_M = (waits.start_ns_M >= start_ns_S[0]) & (waits.end_ns_M <= end_ns_S[-1])
    else:
        keep_M = np.zeros(len(waits.start_ns_M), dtype=np.bool_)
    return Intervals(code_M=waits.code_M[keep_M], start_ns_M=waits.start_ns_M[keep_M], end_ns_M=waits.end_ns_M[keep_M])
