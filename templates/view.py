"""The postmortem as data: a pure view of a case, its docket and its evidence. Nothing is measured or decided here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from narrows.inquiry import ladder, proposals
from narrows.inquiry.accounts import ACCOUNT_MEANINGS, Account
from narrows.inquiry.case import Case
from narrows.inquiry.conclusion import Conclusion, conclude
from narrows.inquiry.design import HEALTHY, REGRESSED
from narrows.inquiry.docket import GENESIS, Docket, Kind
from narrows.inquiry.scopes import Rung
from narrows.inquiry.state import State
from narrows.inquiry.steps import StopReason
from narrows.templates import doubts, ladder_rows, proof, reproduce
from narrows.templates.evidence import GIVEN, Record, records
from narrows.templates.files import files
from narrows.templates.ledgers import bars, ledger_table
from narrows.templates.numbers import number, real, reals, share
from narrows.templates.parts import (
    Arrivals,
    Bars,
    Counter,
    Difference,
    Distribution,
    LedgerTable,
    Outcome,
    PostmortemView,
    Proof,
    Steps,
    Symptom,
)
from narrows.templates.pictures import accounts_title, pictures, proof_title
from narrows.templates.wording import VERDICT_WORDS, Story, conclusion

QUANTILES = ("p50", "p95", "p99")
SHARD_WORDS = "the slow part goes along with its share of the data, whichever rank works on it"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    """What every part of the view is read from."""

    case: Case
    docket: Docket
    state: State
    known: Mapping[str, Record]
    directory: Path
    concluded: Conclusion

    @property
    def pursued(self) -> bool:
        """Whether there is a loss to speak of; a docket that was never opened has none."""
        return bool(self.state.opened) and ladder.pursued(self.state)

    def finding_source(self, topic: str) -> str:
        """The file that a finding came from."""
        bodies = [entry.body for entry in self.docket.of(Kind.FINDING) if entry.body.get("topic") == topic]
        named = {one.source for one in self.known.values()}
        found = str(bodies[-1].get("file") or "") if bodies else ""
        return found if found in named else ladder_rows.given_source(self.known)


def postmortem_view(
    case: Case,
    docket: Docket,
    evidence: Mapping[str, Any],
    directory: Path,
    *,
    reproducer: tuple[str, ...] = (),
) -> PostmortemView:
    """What the docket and its evidence amount to, for people; works for a docket that is not concluded yet.

    ``evidence`` holds the parsed evidence files by name; ``directory`` is the case's own, to which every path in the
    view is relative. ``reproducer`` are the commands of the smallest experiment; without them they are derived.
    """
    state = State.of(docket)
    inputs = _Inputs(
        case=case,
        docket=docket,
        state=state,
        known=records(docket, evidence),
        directory=directory,
        concluded=conclude(state),
    )
    return _assemble(inputs, reproducer)


def _assemble(inputs: _Inputs, given: tuple[str, ...]) -> PostmortemView:
    case, docket, state, directory = inputs.case, inputs.docket, inputs.state, inputs.directory
    rows = ladder_rows.ladder_rows(docket, state, inputs.known, directory)
    tried, symptom, how = proof.proofs(case, state, inputs.known), _symptom(inputs), outcome(state)
    ledgers = _ledgers(inputs)
    scopes = ladder_rows.scope_points(state, inputs.known)
    spread, columns, arrivals = _distributions(inputs), _bars(inputs, ledgers, tried), _arrivals(inputs)
    leading = _leading(tried)
    differences = _differences(inputs)
    commands, note = reproduce.reproducer(case, state, inputs.known, given)
    account = inputs.concluded.account or state.reconciliation.get("account")
    story = Story(
        outcome=how,
        symptom=symptom,
        mechanism_words=_mechanism_words(inputs),
        account=str(account) if account else None,
        culprit=_culprit(inputs),
        first=next((row for row in rows if row.key == f"scope:{inputs.concluded.first_scope}"), None),
        proof=leading,
        ladder=rows,
        numerator=bool(inputs.concluded.numerator_changed),
    )
    return PostmortemView(
        title=case.name,
        question=" ".join(case.question.split()),
        outcome=how,
        verdict=VERDICT_WORDS[how],
        conclusion=conclusion(story),
        caveats=doubts.caveats(case, inputs.known, symptom),
        symptom=symptom,
        work=ladder_rows.scrub(str(state.findings.get("numerator", {}).get("sentence") or ""), directory),
        counters=_counters(inputs),
        differences=differences,
        equal_fields=_equal(state),
        mechanism=inputs.concluded.mechanism or state.mechanism,
        mechanism_words=story.mechanism_words,
        account=story.account,
        account_words=ACCOUNT_MEANINGS[Account(story.account)] if story.account in set(Account) else "",
        culprit=story.culprit,
        first_scope=story.first.scope if story.first else None,
        ledgers=ledgers,
        ladder=rows,
        skipped=_skipped(state),
        failures=ladder_rows.failures(state, directory),
        scopes=scopes,
        proofs=tried,
        distributions=spread,
        bars=columns,
        arrivals=arrivals,
        reproducer=commands,
        reproducer_note=note,
        movements=proof.movements(state, leading, rows),
        rollback=_rollback(leading),
        uncertainties=doubts.uncertainties(case, state, inputs.known, rows, ledgers[0] if ledgers else None, directory),
        reopen=doubts.reopen(case, leading, rows, tuple(one.field for one in differences), pursued=inputs.pursued),
        approvals=ladder_rows.approvals(docket, directory),
        files=files(docket, inputs.known, directory),
        pictures=pictures(spread, columns, scopes, arrivals),
        device_hours=state.device_hours,
        docket_lines=len(docket),
        docket_digest=docket.entries[-1].sha256 if len(docket) else GENESIS,
    )


def outcome(state: State) -> Outcome:
    """How the investigation ended, from its last line; ``running`` before it has one."""
    done = state.concluded
    if done is None:
        return Outcome.RUNNING
    told = {str(done.get("reason")), str(done.get("status")).upper()}
    for reason in StopReason:
        if told & {reason.value, reason.name}:
            return Outcome(reason.name.lower())
    return Outcome(ladder.stop_reason(state).name.lower())


def _symptom(inputs: _Inputs) -> Symptom:
    state, reference = inputs.state, inputs.state.reference
    source = inputs.finding_source("reference")
    healthy, change = real(reference.get("healthy_ms")), real(reference.get("delta_ms"))
    margin = reference.get("margin_ms", state.opened.get("margin_ms"))
    judged = state.judgement("regression:again") or state.judgement("regression")
    return Symptom(
        healthy=number(healthy, source),
        regressed=number(reference.get("regressed_ms"), source),
        difference=number(change, source, interval=reference.get("interval_ms"), signed=True),
        percent=share(change, healthy, source) if healthy and change is not None else None,
        margin=number(margin, source),
        pairs=len(reals(reference.get("d_ms"))),
        tested=bool(reference.get("tested", True)),
        statistic=str(reference.get("statistic") or inputs.case.judging.statistic),
        reason=ladder_rows.scrub(judged.reason, inputs.directory) if judged else "",
    )


def _main(inputs: _Inputs) -> Record | None:
    """The file that holds both runs at full scale: what was reconciled, else the largest that compares them."""
    compared = [one for one in inputs.known.values() if one.two_arms == (HEALTHY, REGRESSED)]
    wanted = inputs.finding_source("reconciliation")
    chosen = [one for one in compared if one.source == wanted] or [one for one in compared if one.name == GIVEN]
    sizes = {
        registration.hypothesis.experiment: registration.hypothesis.scope
        for registration in inputs.state.registrations.values()
    }
    largest = sorted(compared, key=lambda one: -(scope.order if (scope := sizes.get(one.name)) else -1))
    return next(iter([*chosen, *largest]), None)


def _ledgers(inputs: _Inputs) -> tuple[LedgerTable, ...]:
    """The main file's ledgers, the view that fits the mechanism first."""
    record = _main(inputs)
    if record is None:
        return ()
    view = str(inputs.state.reconciliation.get("view") or proposals.leading_view(inputs.state).value)
    views = sorted(record.views, key=lambda one: one != view)
    found = (ledger_table(record, one, shares=inputs.pursued) for one in views)
    return tuple(one for one in found if one is not None)


def _leading(tried: tuple[Proof, ...]) -> Proof | None:
    good = [one for one in tried if one.verdict == "supported"]
    return next(iter([*good, *reversed(tried)]), None)


def _bars(inputs: _Inputs, ledgers: tuple[LedgerTable, ...], tried: tuple[Proof, ...]) -> tuple[Bars, ...]:
    """The accounts of both runs; then those of the proof, with the healthy arm beside it where it ran at that scope."""
    record = _main(inputs)
    if record is None or not ledgers:
        return ()
    title = accounts_title(ledgers[0], pursued=inputs.pursued)
    first = bars(title, ledgers[0].words, ledgers[0].view, [(record, record.arms)])
    found = [first] if first else []
    leading = _leading(tried)
    second = _proof_bars(inputs, leading) if leading else None
    return tuple([*found, second] if found and second else found)


def _proof_bars(inputs: _Inputs, leading: Proof) -> Bars | None:
    one = inputs.state.hypothesis(f"perturbation:{leading.id}")
    record = inputs.known.get(one.experiment or "") if one else None
    if one is None or record is None or record.two_arms is None or record.two_arms == (HEALTHY, REGRESSED):
        return None
    beside = inputs.state.hypothesis(f"scope:{one.scope.value}") if one.scope else None
    healthy = inputs.known.get(beside.experiment or "") if beside else None
    sources: list[tuple[Record, tuple[str, ...]]] = [(record, record.two_arms)]
    accounts = [record.accounts(arm, one.ledger.value) for arm in record.two_arms]
    title = proof_title(leading, accounts[0], accounts[1])
    if healthy is not None:
        sources.insert(0, (healthy, (HEALTHY,)))
    return bars(title, leading.ledger_words, one.ledger.value, sources)


def _distributions(inputs: _Inputs) -> tuple[Distribution, ...]:
    """The steps of both runs, then those of the change: of the longest run that made it."""
    tests = [one.hypothesis for one in inputs.state.registrations.values()]
    changed = [one for one in tests if one.key == "soak" or one.key.startswith("perturbation:")]
    chosen = [(_main(inputs), "both runs at full scale")]
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


def _arrivals(inputs: _Inputs) -> Arrivals | None:
    record = _main(inputs)
    both = record.two_arms if record else None
    if record is None or both is None:
        return None
    found = tuple((arm, record.last_arrivals(arm)) for arm in both)
    if not all(ranks for _, ranks in found) or max(len(ranks) for _, ranks in found) < 2:
        return None
    return Arrivals(label="collectives", arms=found, source=record.source)


def _counters(inputs: _Inputs) -> tuple[Counter, ...]:
    source = inputs.finding_source("numerator")
    counters = inputs.state.findings.get("numerator", {}).get("counters") or {}
    return tuple(
        Counter(
            name=str(name).replace("_", " "),
            healthy=number(one.get("healthy"), source, unit=""),
            regressed=number(one.get("regressed"), source, unit=""),
            ratio=number(one.get("ratio"), source, unit=""),
        )
        for name, one in counters.items()
    )


def _differences(inputs: _Inputs) -> tuple[Difference, ...]:
    found = inputs.state.findings.get("manifest", {}).get("differences") or ()
    return tuple(_difference(one, inputs.directory) for one in found)


def _difference(one: Mapping[str, Any], directory: Path) -> Difference:
    touched = one.get("accounts") or ()
    accounts = ", ".join(str(name) for name in touched) if isinstance(touched, (list, tuple)) else str(touched)
    return Difference(
        field=str(one.get("field", "")),
        healthy=_shown(one.get("healthy"), directory),
        regressed=_shown(one.get("regressed"), directory),
        touches=accounts or str(one.get("kind") or ""),
        why=ladder_rows.scrub(str(one.get("why") or ""), directory),
    )


def _shown(value: Any, directory: Path) -> str:
    """A manifest's value in few characters; a field that one run lacks says so."""
    if value is None:
        return "absent"
    if isinstance(value, Mapping):
        value = ", ".join(f"{name} {item}" for name, item in value.items()) or "empty"
    text = ladder_rows.scrub(str(value), directory)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _equal(state: State) -> int | None:
    found = state.findings.get("manifest", {}).get("equal")
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _mechanism_words(inputs: _Inputs) -> str:
    named = inputs.concluded.mechanism or inputs.state.mechanism
    if named == "shard":
        return SHARD_WORDS
    return proposals.MECHANISM_WORDS.get(named, named.replace("_", " ")) if named else ""


def _culprit(inputs: _Inputs) -> str:
    """``host n1``, ``ranks 2 and 3``; empty where nobody in particular is to blame."""
    found = inputs.concluded.culprit
    if found.get("kind") == "none":
        found = inputs.state.reconciliation.get("culprit") or found
    kind, members = str(found.get("kind") or "none"), [str(one) for one in found.get("members") or ()]
    if kind in ("none", "all", "varies") or not members:
        return ""
    named = " and ".join(members) if len(members) < 3 else ", ".join(members)
    if kind == "link":
        return f"the link between {named}"
    if kind == "group":
        return f"process group {named}"
    return f"{kind.removesuffix('s')}{'s' if len(members) > 1 else ''} {named}"


def _skipped(state: State) -> tuple[tuple[str, str], ...]:
    return tuple((rung.label, state.skipped[rung]) for rung in Rung if rung in state.skipped)


def _rollback(leading: Proof | None) -> str:
    if leading is None or leading.verdict != "supported":
        return "Nothing was changed for good, so there is nothing to roll back."
    text = leading.rollback or "Set what was changed back to the regressed run's value."
    if not leading.mitigation:
        return f"The change is a diagnosis, not one that a production job keeps. {text}"
    bound = f"Roll back when the step's gain falls below what would have rejected it ({leading.reject_if}), or when "
    return f"{text} {bound}the loss or the executed work differs from the run without it."
