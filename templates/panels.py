"""What the tables and the pictures of the evidence show: ledgers, accounts side by side, step times, arrivals."""

from __future__ import annotations

from narrows.inquiry import proposals
from narrows.inquiry.design import HEALTHY, REGRESSED
from narrows.templates import ladder_rows
from narrows.templates.evidence import GIVEN, Record
from narrows.templates.inputs import Inputs
from narrows.templates.ledgers import bars, ledger_table
from narrows.templates.parts import Arrivals, Bars, Distribution, LedgerTable, Proof, Steps
from narrows.templates.pictures import accounts_title, proof_title

QUANTILES = ("p50", "p95", "p99")


def main_record(inputs: Inputs) -> Record | None:
    """The file that holds both runs at full scale: what was reconciled, else the largest that compares them."""
    compared = [one for one in inputs.known.values() if one.two_arms == (HEALTHY, REGRESSED)]
    wanted = inputs.finding_source("reconciliation" if inputs.state.reconciliation else "reference")
    chosen = [one for one in compared if one.source == wanted] or [one for one in compared if one.name == GIVEN]
    sizes = {
        registration.hypothesis.experiment: registration.hypothesis.scope
        for registration in inputs.state.registrations.values()
    }
    largest = sorted(compared, key=lambda one: -(scope.order if (scope := sizes.get(one.name)) else -1))
    return next(iter([*chosen, *largest]), None)


def ledgers(inputs: Inputs) -> tuple[LedgerTable, ...]:
    """The main file's ledgers, the view that fits the mechanism first."""
    record = main_record(inputs)
    if record is None:
        return ()
    view = str(inputs.state.reconciliation.get("view") or proposals.leading_view(inputs.state).value)
    views = sorted(record.views, key=lambda one: one != view)
    found = (ledger_table(record, one, shares=inputs.pursued) for one in views)
    return tuple(one for one in found if one is not None)


def leading_proof(tried: tuple[Proof, ...]) -> Proof | None:
    good = [one for one in tried if one.verdict == "supported"]
    return next(iter([*good, *reversed(tried)]), None)


def bars_of(inputs: Inputs, ledgers: tuple[LedgerTable, ...], tried: tuple[Proof, ...]) -> tuple[Bars, ...]:
    """The accounts of both runs; then those of the proof, with the healthy arm beside it where it ran at that scope."""
    record = main_record(inputs)
    if record is None or not ledgers:
        return ()
    title = accounts_title(ledgers[0], pursued=inputs.pursued)
    first = bars(title, ledgers[0].words, ledgers[0].view, [(record, record.arms)])
    found = [first] if first else []
    leading = leading_proof(tried)
    second = _proof_bars(inputs, leading) if leading else None
    return tuple([*found, second] if found and second else found)


def _proof_bars(inputs: Inputs, leading: Proof) -> Bars | None:
    one = inputs.state.hypothesis(f"perturbation:{leading.id}")
    record = inputs.known.get(one.experiment or "") if one else None
    if one is None or record is None or record.two_arms is None or record.two_arms == (HEALTHY, REGRESSED):
        return None
    beside = inputs.state.hypothesis(f"scope:{one.scope.value}") if one.scope else None
    healthy = inputs.known.get(beside.experiment or "") if beside else None
    sources: list[tuple[Record, tuple[str, ...]]] = [(record, record.two_arms)]
    if healthy is not None:
        sources.insert(0, (healthy, (HEALTHY,)))
    return bars(proof_title(leading), leading.ledger_words, one.ledger.value, sources)


def distributions(inputs: Inputs) -> tuple[Distribution, ...]:
    """The steps of both runs, then those of the change: of the longest run that made it."""
    tests = [one.hypothesis for one in inputs.state.registrations.values()]
    changed = [one for one in tests if one.key == "soak" or one.key.startswith("perturbation:")]
    chosen = [(main_record(inputs), "both runs at full scale")]
    for one in reversed(changed):
        longer = ", over a longer run" if one.key == "soak" else ""
        label = f"the change at {ladder_rows.scope_words(one.scope)}{longer}"
        chosen.append((inputs.known.get(one.experiment or ""), label))
    found = [_distribution(record, label) for record, label in chosen if record is not None]
    return tuple(one for one in found if one is not None)[:2]


def _distribution(record: Record, label: str) -> Distribution | None:
    both = record.two_arms
    if both is None or not all(record.steps_ms(arm) for arm in both):
        return None
    rows = [(name, tuple(record.quantile(arm, name) for arm in both)) for name in QUANTILES]
    return Distribution(
        label=label,
        arms=tuple(Steps(arm=arm, values_ms=record.steps_ms(arm)) for arm in both),
        quantiles=tuple((name, values) for name, values in rows if any(values)),
        source=record.source,
    )


def arrivals(inputs: Inputs) -> Arrivals | None:
    record = main_record(inputs)
    both = record.two_arms if record else None
    if record is None or both is None:
        return None
    found = tuple((arm, record.last_arrivals(arm)) for arm in both)
    if not all(ranks for _, ranks in found) or max(len(ranks) for _, ranks in found) < 2:
        return None
    return Arrivals(label="collectives", arms=found, source=record.source)
