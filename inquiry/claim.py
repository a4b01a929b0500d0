"""An accepted explanation, kept with the conditions under which it holds and the experiment that shows it again."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from narrows.inquiry.accounts import Account
from narrows.inquiry.case import ArmSpec, Budget, Case, Cluster, Judging, Workload
from narrows.inquiry.codec import digest
from narrows.inquiry.design import Arm, ArmKind, Experiment, Mode
from narrows.inquiry.hypotheses import Ledger
from narrows.inquiry.workloads import BUILTIN

AGE_LIMIT_DAYS = 90
"""A claim that was confirmed longer ago than this is run again, whatever changed."""


class Metric(StrEnum):
    """What a claim accepts a range of. Times in ms a step."""

    EFFECT = "effect_ms"
    GAIN = "gain_ms"
    SHARE = "account_share"


class Outcome(StrEnum):
    """How a revalidation of a claim ends."""

    HOLDS = "holds"
    GONE = "no longer reproduces"
    MOVED = "range moved"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRange:
    """The range in which a metric was accepted (``high`` None: no upper end), what was found, and how it came about.

    ``pairs`` holds the pair differences behind ``found``, where it is a time.
    """

    metric: Metric
    low: float
    high: float | None
    found: float
    how: str
    pairs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """One field of the fingerprint, the values under which the claim was confirmed, and why the field matters."""

    field: str
    confirmed: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mitigation:
    """What was done about it: the change, whether it is in force, how to take it back, and when to look again."""

    change: str
    in_force: bool
    rollback: str
    reopen: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a closed case leaves behind.

    ``reproducer`` plays the healthy and the regressed arm at the smallest scope that showed the loss; ``remedy``, where
    there is one, the regressed arm and the change that gave it back. Paths are relative to the folder that holds
    ``claims``. ``confirmed`` is a date, as 2026-12-02.
    """

    name: str
    case: str
    case_file: str
    explanation: str
    mechanism: str
    account: Account
    ledger: Ledger
    culprit: dict[str, Any]
    launcher: str
    reproducer: Experiment
    remedy: Experiment | None
    ranges: tuple[MetricRange, ...]
    depends_on: tuple[Dependency, ...]
    mitigation: Mitigation
    confirmed: str
    age_limit_days: int = AGE_LIMIT_DAYS
    budget: Budget = field(default_factory=lambda: Budget(device_hours=1.0, ask_above_device_hours=0.25))
    judging: Judging = field(default_factory=Judging)

    def range(self, metric: Metric) -> MetricRange | None:
        return next((one for one in self.ranges if one.metric is metric), None)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that its experiments run on."""
        experiments = [self.reproducer, *([self.remedy] if self.remedy else [])]
        return tuple(dict.fromkeys(host for one in experiments for host in one.placement.names))

    def digest(self) -> str:
        """The digest of what is judged: a new date of confirmation leaves it as it is."""
        return digest({"explanation": self.explanation, "reproducer": self.reproducer, "remedy": self.remedy,
                       "ranges": self.ranges, "judging": self.judging, "account": self.account,
                       "ledger": self.ledger})  # fmt: skip

    def as_case(self) -> Case:
        """The claim as the case that carrying out its experiments needs; it has no runs of its own."""
        one = self.reproducer
        sizes = [len(ranks) for _, ranks in one.placement.hosts]
        work = Workload(
            program=one.program,
            builtin=one.program in BUILTIN,
            kind=ArmKind.PLACEMENT if one.mode is Mode.NODE_SET else ArmKind.CONFIG,
            healthy=_spec(one.before),
            regressed=_spec(one.after),
            config=dict(one.base),
            args=one.args,
        )
        cluster = Cluster(
            launcher=self.launcher,
            nodes=len(sizes),
            ranks_per_node=max(sizes),
            hosts=one.placement.names,
            device=one.device,
        )
        return Case(
            name=self.name,
            question=self.explanation,
            runs={},
            workload=work,
            cluster=cluster,
            budget=self.budget,
            judging=self.judging,
        )


def _spec(arm: Arm) -> ArmSpec:
    return ArmSpec(config=dict(arm.config), args=arm.args, env=dict(arm.env))
