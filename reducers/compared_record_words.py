"""What a comparison of step records says in words: the reading, how sure it is, what it cannot show, what is next."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from narrows.inquiry.accounts import Account
from narrows.inquiry.scopes import Scope
from narrows.reducers.compared_parts import MARGIN, Change
from narrows.reducers.decisions import NOTHING, RHO, NextExperiment, Signs, next_experiment, unsettled
from narrows.reducers.readers.step_records import PARTS
from narrows.reducers.slow_ranks import Carrier, Slowdown
from narrows.reducers.step_record_sides import StepTable
from narrows.reducers.step_scan import SCORE, WINDOW

Span = tuple[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Whom and what the loss is laid to: a culprit's kind and its members, and the account that holds the loss."""

    kind: str
    members: tuple[int | str, ...]
    lead: Account | None

    @property
    def who(self) -> tuple[str, ...]:
        return tuple(f"rank {one}" if self.kind == "rank" else f"host {one}" for one in self.members)


def reading(found: Slowdown, step: Change, whole_ms: float, named: Named, span: Span) -> str:
    """The difference in one or two sentences; ``whole_ms`` is that of the whole runs."""
    percent = 100 * step.delta / step.healthy
    if found.status == "same":
        return f"The step takes the same time within 1 % ({step.delta:+.3g} ms)."
    if found.status == "unclear":
        return (
            f"The difference of {step.delta:+.3g} ms a step ({percent:+.1f} %) is not settled: "
            "each run drifts by as much within itself."
        )
    where = f"Steps {span[0]} to {span[1]} of the second run are" if span is not None else "The second run is"
    moved = f"{where} {found.status} by {abs(step.delta):.3g} ms a step ({percent:+.1f} %)"
    if found.status == "faster":
        lack = f" than those of the first, which are a slower part of it. Whole runs: {whole_ms:+.3g} ms a step"
        return f"{moved}{lack if span is not None else ''}."
    whole = f" Over the whole run the loss is {whole_ms:.3g} ms a step." if span is not None else ""
    return f"{moved}: {_carrier_words(found, named)}.{whole}"


def _carrier_words(found: Slowdown, named: Named) -> str:
    if found.carrier is None:
        return "no rank, and nothing that all share, is seen to hold half of it"
    grew = f"{found.summands_ms[found.carrier]:+.3g} ms"
    if named.lead is not None:
        grew += ", in no part that the records time" if named.lead is Account.RESIDUAL else f", in {named.lead}"
    if found.carrier is Carrier.SHARED:
        return f"what all ranks share grew ({grew})"
    if found.carrier is Carrier.TYPICAL:
        return f"the own time of every rank grew (on the typical one {grew})"
    if not named.members:
        return f"the slowest rank's own time grew ({grew}), and the slowest changes from step to step"
    others = "the others wait for it" if len(named.members) == 1 else "the others wait for them"
    return f"the slowest rank's own time grew ({grew}), and the slowest is {', '.join(named.who)}; {others}"


def follows(found: Slowdown, regressed: StepTable) -> str:
    """The ranks whose own time grew most, and the next one; empty where the loss is not in a rank's own time."""
    if found.carrier is not Carrier.SLOWEST or found.status != "slower":
        return ""
    order = np.argsort(-found.growth_R)[: len(found.ranks) + 1]
    told = ", ".join(f"rank {regressed.ranks[at]} {found.growth_R[at]:+.3g}" for at in order)
    return f"Own time beyond the typical rank's, each against its own healthy run: {told} ms, the others less."


def certainty(found: Slowdown) -> str:
    pair = "1 pair of runs: described, not tested; two runs of one configuration differ too."
    if found.stretch is not None:
        inside, other = ("first", "second") if found.status == "faster" else ("second", "first")
        return (
            f"{pair} Inside the {inside} run these steps lie {found.stretch.score:.0f} standard errors above its "
            f"others and above the {other} run, by {found.found_on} ({SCORE:.0f} are needed)."
        )
    inside = f"No {WINDOW} steps or more of the second run stand out by {SCORE:.0f} standard errors."
    further = " The whole runs lie further apart than either drifts." if found.status in ("slower", "faster") else ""
    return f"{pair} {inside}{further}"


def limits(regressed: StepTable, found: Slowdown) -> tuple[str, ...]:
    """What one pair of records cannot show."""
    waiting = (
        "from step records: no collective was matched; what others spend in collectives beyond the slowest rank is "
        "taken to be waiting for it"
    )
    told = ["too few pairs for a test: nothing is ruled in or out", waiting]
    if found.compute_waits:
        told.append(
            "ranks wait for each other inside compute: a rank whose own kernels slow down there cannot be told from all"
        )
    if not found.has_own_time:
        told.append("no part of a step is recorded in which a rank is busy or waits: no rank can be told from another")
    missing = [part for part in PARTS if part not in regressed.parts_ms]
    if missing:
        told.append(f"not recorded on both sides: {', '.join(missing)}; that time is in other accounts, or residual")
    if found.stretch is None and len(regressed.steps_T) < 2 * WINDOW:
        told.append(f"too few steps to look for a slower part of the run: {2 * WINDOW} steady ones are needed")
    if set(regressed.hosts) == {""}:
        told.append("the records name no host: a slow host shows as its ranks, or as all of them")
    elif len(set(regressed.hosts)) == 1:
        told.append("all ranks are on one host: what slows every rank, such as storage, looks like that host")
    told.append("no work counters on both sides: a step that does more work looks like a slower one")
    return tuple(told)


def next_step(found: Slowdown, step: Change, account_ms: float, named: Named) -> NextExperiment:
    """The row of the decision table that fits; where the records time no part that grew, spans of the suspect."""
    if found.status == "unclear":
        return unsettled(step.delta, MARGIN * step.healthy)
    if found.status != "slower":
        return NOTHING
    unmeasured = named.lead is Account.RESIDUAL
    if unmeasured and named.who:
        return _unmeasured(", ".join(named.who), found.delta_ms)
    account = None if unmeasured else named.lead
    return next_experiment(
        Signs(delta_ms=step.delta, account=account, account_ms=account_ms, culprit=named.kind, members=named.who)
    )


def _unmeasured(who: str, predicted: float) -> NextExperiment:
    return NextExperiment(
        row="more-evidence",
        evidence=f"{who} loses time in no part that its records time",
        scope=Scope.ONE_RANK,
        experiment=f"record spans of the same work on {who} and elsewhere with `narrows run`, in turns; then exchange "
        "places",
        prediction=f"a span of {who} is longer by {predicted:.3g} ms a step, and that follows the place",
        predicted_ms=predicted,
        rejection=f"the upper bound of the difference is below {RHO * predicted:.3g} ms, or it follows the data shard",
        reject_below_ms=RHO * predicted,
    )
