"""What a comparison of two arms consists of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from narrows.reducers.compared_scan import Places
from narrows.reducers.decisions import NextExperiment
from narrows.reducers.numerator import NumeratorResult
from narrows.reducers.opinions import Opinions
from narrows.reducers.snapshots import ArrivalTable, GroupService, TypicalStep
from narrows.reducers.traces.labels import BT_1, Thresholds
from narrows.reducers.traces.reduced import Label

MARGIN = 0.01
"""The smallest change that counts, as a share of the healthy step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A time in ms a step in both arms; ``interval`` is the 90 % interval of the difference, None below two pairs."""

    healthy: float
    regressed: float
    interval: tuple[float, float] | None = None

    @property
    def delta(self) -> float:
        return self.regressed - self.healthy


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmExtras:
    """What is known of one arm beside its evidence, from its first run; all of it may be absent."""

    typical: TypicalStep | None = None
    arrivals: ArrivalTable | None = None
    services: Mapping[str, GroupService] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The reading of two arms.

    ``status``: slower, faster, same (within 1 % of the step), unclear. ``accounts`` are of ``view`` and add up to
    ``step`` in each column; ``views`` holds the others. ``lead`` is the account with most of the change in its own
    view, None where none holds a good part. ``tested``: at least 4 pairs, in turns; else described only.
    ``culprit`` names nobody unless the second arm is slower. ``slow_steps`` are the first and the last step of the
    part of the second arm that was compared, None where all of it was. ``windows`` holds accounts by statistic and
    view, about the median, about p95 and of the slowest 5 %; ``tail`` says that the loss is in the slow steps, else it
    is empty. ``opinions`` is None where the second arm is not slower, or no run can be replayed.
    ``expected`` is of collectives, beside measured; None where who came last to them is not known.
    """

    source: str
    statistic: str
    names: tuple[str, str]
    status: str
    step: Change
    view: str
    accounts: Mapping[str, Change]
    views: Mapping[str, Mapping[str, Change]]
    lead: str | None
    lead_ms: float
    lead_share: float
    reading: str
    culprit: Mapping[str, Any]
    follows: str
    pairs: int
    tested: bool
    certainty: str
    window_steps: Mapping[str, int]
    work: NumeratorResult | None
    differences: tuple[Mapping[str, Any], ...]
    labels: Mapping[str, Label]
    coverage: float | None
    losses: tuple[str, ...]
    limits: tuple[str, ...]
    next: NextExperiment
    steps_ms: Mapping[str, tuple[float, ...]]
    extras: Mapping[str, ArmExtras]
    emulated: bool = False
    slow_steps: tuple[int, int] | None = None
    windows: Mapping[str, Mapping[str, Mapping[str, Change]]] = field(default_factory=dict)
    tail: str = ""
    opinions: Opinions | None = None
    expected: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where a comparison's evidence came from: ``source`` in words, what each arm was called, what was lacking.

    ``labels`` are the arms' own where they were made from more than accounts; an empty mapping: none can be given.
    """

    source: str
    names: tuple[str, str]
    limits: tuple[str, ...] = ()
    has_input_spans: bool = True
    places: Places | None = None
    labels: Mapping[str, Label] | None = None
    thresholds: Thresholds = BT_1
