"""What an investigation found, held against what was planted; and what simpler rules say of the same runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from narrows.inquiry.accounts import ACCOUNTS
from narrows.reducers.ledger import build_ledger
from narrows.reducers.ledger_replay import what_if
from narrows.reducers.rundir import read_run
from simulation.cases import SimulatedCase
from simulation.job import JobShape
from simulation.kinds import BAD, GOOD, Kind
from simulation.sweep import flag_sweep, settings_of_cause

COMMUNICATION = ("transfer", "skew", "pipeline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One investigation. ``grade`` is ``right``, ``wrong`` (a cause was named that was not planted), ``undecided``
    (no cause was named). A share is None where it does not apply."""

    kind: str
    effect: float
    seed: int
    grade: str
    family: bool
    scope: bool
    precision: float | None
    recall: float | None
    closing: str
    cost: float
    wrong_supported: int
    supported: int
    inconclusive: int
    verdicts: int
    seconds: float
    found: Mapping[str, Any]
    baselines: Mapping[str, bool]
    sweep_cost: float = 1.0
    """What B1 takes, in the unit of ``cost``."""
    climb_cost: float = 0.0
    """What B3 takes, without any perturbation, in the unit of ``cost``."""
    wrong_scopes: int = 0
    """Scopes smaller than any that holds the fault at which the loss was called present."""
    why: str = ""

    @property
    def points(self) -> float:
        """1 where right, 0.3 where nothing was named though there was a cause, -2 where wrong; less the cost over
        that of B1."""
        return {"right": 1.0, "undecided": 0.3}.get(self.grade, -2.0) - self.cost / self.sweep_cost

    @property
    def culprit(self) -> bool:
        return self.precision in (None, 1.0) and self.recall in (None, 1.0)


def culprit_shares(kind: Kind, culprit: Mapping[str, Any], hosts: Sequence[str]) -> tuple[float | None, float | None]:
    """Precision and recall of the named culprit as a set of ranks. A cause that changes ranks has no such set."""
    named = _ranks_of(culprit, hosts)
    if kind.ranks is None:
        return (None, None) if culprit["kind"] in ("varies", "all") else (0.0, 0.0)
    if not named:
        return 0.0, 0.0
    common = len(named & kind.ranks)
    return common / len(named), common / len(kind.ranks)


def _ranks_of(culprit: Mapping[str, Any], hosts: Sequence[str]) -> frozenset[int]:
    members = culprit["members"]
    if culprit["kind"] in ("host", "link"):
        return frozenset(rank for rank, host in enumerate(hosts) if host in members)
    if culprit["kind"] in ("rank", "shard", "rail"):
        return frozenset(int(member) for member in members)
    if culprit["kind"] == "group":
        named = frozenset(int(rank) for rank in culprit.get("ranks", ()))
        return named or frozenset(range(len(hosts)))
    return frozenset(range(len(hosts))) if culprit["kind"] == "all" else frozenset()


def grade(kind: Kind | None, conclusion: Mapping[str, Any]) -> str:
    named = conclusion["mechanism"]
    if kind is None:
        return "wrong" if named is not None or conclusion["regression"] == "confirmed" else "right"
    if named is None:
        return "undecided"
    right = named in kind.mechanisms and conclusion["account"] in kind.accounts
    return "right" if right else "wrong"


def full_hosts(kind: Kind | None) -> tuple[str, ...]:
    names = BAD if kind is not None and kind.placement else GOOD
    return tuple(host for host in names for _ in range(JobShape().ranks_per_node))


def baselines(case: SimulatedCase, evidence: Mapping[str, Any]) -> dict[str, bool]:
    """Whether simpler rules name the planted family, from one run of each arm; on nothing, whether they name none."""
    healthy, regressed = (evidence["arms"][arm]["units"][0] for arm in ("healthy", "regressed"))
    before, after = (one["accounts"]["rank_mean"] for one in (healthy, regressed))
    mean = {name: after[name] - before[name] for name in map(str, ACCOUNTS)}
    rank0 = _of_rank_0(case)
    return {
        "B0": _names(case.kind, _largest(rank0)),
        "B0m": _names(case.kind, _largest(mean)),
        "B1": _sweep(case),
        "B2": _straggler(case, regressed),
        "B4": _names(case.kind, _largest(after)),
        "B5": _replayed(case),
    }


def _replayed(case: SimulatedCase) -> bool:
    """The account that a what-if replay of one run of each arm gives most of the loss; none where it claims nothing."""
    before, after = (build_ledger(read_run(runs[0])) for runs in (case.healthy_runs, case.regressed_runs))
    found = what_if(before, after).accounts
    if not found:
        return case.kind is None
    account = found[0].account
    return _names(case.kind, "communication" if account in COMMUNICATION else account)


def _largest(accounts: Mapping[str, float]) -> str:
    """The largest account; one trace cannot tell waiting from transfer, so communication is one account."""
    joined = {name: value for name, value in accounts.items() if name not in (*COMMUNICATION, "residual")}
    joined["communication"] = sum(accounts.get(name, 0.0) for name in COMMUNICATION)
    return max(joined, key=lambda name: joined[name])


def _names(kind: Kind | None, account: str) -> bool:
    if kind is None:
        return False  # a largest account is always named
    family = "communication" if kind.family in ("transfer", "pipeline") else kind.family
    return account == family


def _of_rank_0(case: SimulatedCase) -> dict[str, float]:
    found = []
    for path in (case.healthy_runs[0], case.regressed_runs[0]):
        ledger = build_ledger(read_run(path))
        steady = ~ledger.steps["warmup"].to_numpy(dtype=np.bool_)
        found.append(ledger.account_ns_RSA[0][steady].mean(axis=0))
    return {str(name): float(change) for name, change in zip(ACCOUNTS, found[1] - found[0], strict=True)}


def _straggler(case: SimulatedCase, regressed: Mapping[str, Any]) -> bool:
    """The ranks that arrive last most often are the culprit: as many as there are in truth."""
    if case.kind is None or case.kind.ranks is None or len(case.kind.ranks) == len(regressed["ranks"]):
        return False
    last = sorted(regressed["last"], key=lambda rank: -regressed["last"][rank])[: len(case.kind.ranks)]
    return frozenset(map(int, last)) == case.kind.ranks


def _sweep(case: SimulatedCase) -> bool:
    """Whether the sweep of single settings names one that carries the fault, or on nothing names none."""
    named, cause = flag_sweep(case), settings_of_cause(case)
    return named in cause if cause else named is None
