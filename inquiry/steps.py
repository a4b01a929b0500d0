"""What the ladder can ask for next. The flow carries it out and appends what happened to the docket."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from narrows.inquiry.design import Experiment
from narrows.inquiry.hypotheses import Hypothesis
from narrows.inquiry.scopes import Rung


class Topic(StrEnum):
    """What a judgement looks at."""

    GIVEN = "given runs"
    RECONCILIATION = "reconciliation"
    EXPERIMENT = "experiment"


class StopReason(StrEnum):
    """Why an investigation ended: the sentence that is shown."""

    EXPLAINED = "The loss is explained: a mechanism was reproduced, perturbed, and its account closed."
    NO_REGRESSION = "There is no regression: the step time differs by less than the margin."
    NOT_REPRODUCED = "The loss was not reproduced in any experiment."
    NOT_CLOSED = "The loss was reproduced, but no perturbation closed the accounting."
    INCONCLUSIVE = "The evidence does not decide whether there is a regression."
    ABORTED = "A person aborted the investigation."
    UNTIL = "Stopped after the rung that was asked for."


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """Put these hypotheses on record before anything that could judge them runs."""

    rung: Rung
    hypotheses: tuple[Hypothesis, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Run pairs ``first_pair`` .. ``first_pair + pairs - 1`` of an experiment; ``launch`` counts from 1."""

    rung: Rung
    experiment: Experiment
    launch: int
    first_pair: int
    pairs: int
    device_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Compute the verdicts of these registered hypotheses (by id)."""

    rung: Rung
    topic: Topic
    hypotheses: tuple[str, ...]
    experiment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A person decides: the launch costs more than the ask line, or more than is left of the budget."""

    rung: Rung
    gate: str
    question: str
    device_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """This rung has nothing to do, and why."""

    rung: Rung
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The end. ``reason``'s value is the sentence that people read."""

    reason: StopReason


Step = Register | Launch | Judge | Ask | Skip | Stop
