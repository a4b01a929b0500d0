"""The comparison of step records: one run a side, one file a rank, read within the run as well as against the other.

There is one pair, so nothing is tested between runs; what is sure is what changed inside the second run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from narrows.inquiry.accounts import ACCOUNTS, Account
from narrows.reducers import compared_record_words as words
from narrows.reducers.compared_labels import Rules, delta_label_of, label_of
from narrows.reducers.compared_parts import ArmExtras, Change, Comparison
from narrows.reducers.compared_record_words import Named
from narrows.reducers.compared_signs import NAMED_SHARE
from narrows.reducers.slow_ranks import Carrier, OwnTime, Slowdown, find_slowdown
from narrows.reducers.step_record_accounts import VIEWS, accounts_of
from narrows.reducers.step_record_sides import RecordFile, StepTable, record_file, step_table
from narrows.reducers.traces.labels import BT_1, Thresholds
from narrows.reducers.traces.reduced import Label
from narrows.reducers.units import Statistic

SOURCE = "step records"
UNMEASURED = "unmeasured"
"""The label of a difference of which no part that is recorded holds half."""


def compare_step_records(
    healthy: Sequence[Path],
    regressed: Sequence[Path],
    names: tuple[str, str],
    statistic: str = "mean",
    thresholds: Thresholds = BT_1,
) -> Comparison:
    """The comparison of two runs, each the files of its ranks, by the mean of their steps: see ``compare_records``.

    Raises ``UnreadableError`` for a file without records, and what ``compare_records`` raises.
    """
    sides = [[record_file(path) for path in side] for side in (healthy, regressed)]
    return compare_records(sides[0], sides[1], names, statistic, thresholds)


def compare_records(
    healthy: Sequence[RecordFile],
    regressed: Sequence[RecordFile],
    names: tuple[str, str],
    statistic: str = "mean",
    thresholds: Thresholds = BT_1,
) -> Comparison:
    """The comparison of two runs. Where a part of the second stands out, it is compared with those steps of the first.

    Raises ``ValueError`` for another statistic or other ranks, ``RunDirectoryError`` for files that are not of one run.
    """
    if statistic != Statistic.MEAN:
        raise ValueError(f"statistic {statistic}: step records are compared by the mean of their steps alone")
    first, second = step_table(healthy, names[0]), step_table(regressed, names[1])
    if first.ranks != second.ranks:
        raise ValueError(
            f"{names[0]} holds the records of {len(first.ranks)} ranks and {names[1]} of {len(second.ranks)}, "
            "or of others; compare records of the same ranks"
        )
    shared = first.parts_ms.keys() & second.parts_ms.keys()
    return _compared(_with_parts(first, shared), _with_parts(second, shared), names, thresholds)


def _with_parts(table: StepTable, parts: set[str]) -> StepTable:
    return replace(table, parts_ms={part: times for part, times in table.parts_ms.items() if part in parts})


def _compared(healthy: StepTable, regressed: StepTable, names: tuple[str, str], thresholds: Thresholds) -> Comparison:
    found, first, second = _difference(healthy, regressed)
    views = _changes(accounts_of(healthy, first, found.against), accounts_of(regressed, second, found.steps))
    compared_ms = {"healthy": healthy.job_ms_T[found.against], "regressed": regressed.job_ms_T[found.steps]}
    means = {arm: float(times.mean()) for arm, times in compared_ms.items()}
    step = Change(healthy=means["healthy"], regressed=means["regressed"])
    view = "rank_mean" if found.carrier is Carrier.TYPICAL else "critical_path"
    named = _named(found, regressed, views[view])
    lead_ms = 0.0 if named.lead is None else views[view][named.lead].delta
    whole_ms = float(regressed.job_ms_T.mean() - healthy.job_ms_T.mean())
    span = _span(found, regressed)
    return Comparison(
        source=SOURCE,
        statistic=str(Statistic.MEAN),
        names=names,
        status=found.status,
        step=step,
        view=view,
        accounts=views[view],
        views=views,
        lead=None if named.lead is None else named.lead.value,
        lead_ms=lead_ms,
        lead_share=lead_ms / step.delta if lead_ms else 0.0,
        reading=words.reading(found, step, whole_ms, named, span),
        culprit={"kind": named.kind, "members": list(named.members)},
        follows=words.follows(found, regressed),
        pairs=1,
        tested=False,
        certainty=words.certainty(found),
        window_steps={"healthy": int(found.against.sum()), "regressed": int(found.steps.sum())},
        work=None,
        differences=(),
        labels=_labels(
            views, view, named.lead, {"has_input_spans": "data_ms" in regressed.parts_ms, "thresholds": thresholds}
        ),
        coverage=None,
        losses=(*healthy.losses, *regressed.losses),
        limits=(*words.limits(regressed, found), *dict.fromkeys((*healthy.limits, *regressed.limits))),
        next=words.next_step(found, step, lead_ms, named),
        steps_ms={arm: tuple(times.tolist()) for arm, times in compared_ms.items()},
        extras={"healthy": ArmExtras(), "regressed": ArmExtras()},
        slow_steps=span,
    )


def _difference(healthy: StepTable, regressed: StepTable) -> tuple[Slowdown, OwnTime, OwnTime]:
    """What ``find_slowdown`` finds; the other way round where it is the first run that has a slower part."""
    found, first, second = find_slowdown(healthy, regressed)
    if found.status != "slower":
        other, second_own, first_own = find_slowdown(regressed, healthy)
        if other.stretch is not None:
            return _turned(other), first_own, second_own
    return found, first, second


def _turned(found: Slowdown) -> Slowdown:
    """The same difference seen from the other run: the second is faster there, and nobody is slow in it."""
    return replace(
        found,
        status="faster",
        steps=found.against,
        against=found.steps,
        delta_ms=-found.delta_ms,
        summands_ms={one: -change for one, change in found.summands_ms.items()},
        ranks=(),
        growth_R=-found.growth_R,
    )


def _changes(before: dict[str, dict[str, float]], after: dict[str, dict[str, float]]) -> dict[str, dict[str, Change]]:
    return {
        view: {name: Change(healthy=before[view][name], regressed=after[view][name]) for name in map(str, ACCOUNTS)}
        for view in VIEWS
    }


def _named(found: Slowdown, regressed: StepTable, accounts: dict[str, Change]) -> Named:
    lead = _lead(accounts, found)
    kind, members = _culprit(found, regressed, lead)
    return Named(kind=kind, members=members, lead=lead)


def _lead(accounts: dict[str, Change], found: Slowdown) -> Account | None:
    """The account that holds most of what the carrier lost, where it holds a good part of the loss."""
    if found.carrier is None or found.status != "slower":
        return None
    own = [Account.INPUT, Account.RESIDUAL, *([] if found.compute_waits else [Account.COMPUTE])]
    among = [Account.COMPUTE, Account.TRANSFER] if found.carrier is Carrier.SHARED else own
    lead = max(among, key=lambda one: accounts[one].delta)
    return lead if accounts[lead].delta >= NAMED_SHARE * found.delta_ms else None


def _culprit(found: Slowdown, regressed: StepTable, lead: Account | None) -> tuple[str, tuple[int | str, ...]]:
    if found.carrier is None or found.status != "slower":
        return "none", ()
    hosts = set(regressed.hosts)
    if found.carrier is not Carrier.SLOWEST:
        # Code and configuration stay what they are within a run: what comes and goes on every rank of the only host is
        # taken to be the host's. Kernels may have had other data.
        passing = found.stretch is not None and found.carrier is Carrier.TYPICAL and lead is not Account.COMPUTE
        return ("host", tuple(hosts)) if passing and len(hosts) == 1 and "" not in hosts else ("all", ())
    if not found.ranks:
        return "varies", ()
    theirs = {regressed.hosts[at] for at in found.ranks}
    whole = tuple(at for at, host in enumerate(regressed.hosts) if host in theirs)
    if "" not in theirs and len(hosts) > 1 and whole == found.ranks and len(whole) > len(theirs):
        return "host", tuple(sorted(theirs))
    return "rank", tuple(regressed.ranks[at] for at in found.ranks)


def _span(found: Slowdown, regressed: StepTable) -> tuple[int, int] | None:
    if found.stretch is None:
        return None
    steps = regressed.steps_T[found.steps]
    return int(steps[0]), int(steps[-1])


def _labels(views: dict[str, dict[str, Change]], view: str, lead: Account | None, rules: Rules) -> dict[str, Label]:
    """Labels of both runs from means over ranks, and of what changed."""

    def side(name: str, arm: str) -> dict[str, float]:
        return {account: float(getattr(one, arm)) for account, one in views[name].items()}

    changed = delta_label_of(side(view, "healthy"), side(view, "regressed"), **rules)
    if lead is Account.RESIDUAL:
        changed = msgspec.structs.replace(changed, label=UNMEASURED, sublabel=None)
    healthy, regressed = (label_of(side("rank_mean", arm), 0.0, **rules) for arm in ("healthy", "regressed"))
    return {"healthy": healthy, "regressed": regressed, "delta": changed}
