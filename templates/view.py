"""The postmortem as data: a pure view of a case, its docket and its evidence. Nothing is measured or decided here."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from narrows.inquiry import ladder
from narrows.inquiry.case import Case
from narrows.inquiry.conclusion import conclude
from narrows.inquiry.docket import GENESIS, Docket
from narrows.inquiry.scopes import Rung
from narrows.inquiry.state import State
from narrows.inquiry.steps import StopReason
from narrows.templates import doubts, findings, ladder_rows, panels, proof, reproduce
from narrows.templates.evidence import records
from narrows.templates.expected import expected_table
from narrows.templates.files import files
from narrows.templates.inputs import Inputs
from narrows.templates.opinions import opinion_table
from narrows.templates.parts import Outcome, PostmortemView, Proof
from narrows.templates.pictures import pictures
from narrows.templates.slow_steps import notes, tail_table
from narrows.templates.wording import VERDICT_WORDS, Story, conclusion, rejections


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
    inputs = Inputs(
        case=case,
        docket=docket,
        state=state,
        known=records(docket, evidence),
        directory=directory,
        concluded=conclude(state),
    )
    return _assemble(inputs, reproducer)


def _assemble(inputs: Inputs, given: tuple[str, ...]) -> PostmortemView:
    case, docket, state, directory = inputs.case, inputs.docket, inputs.state, inputs.directory
    rows = ladder_rows.ladder_rows(docket, state, inputs.known, directory)
    tried, symptom, how = proof.proofs(case, state, inputs.known), findings.symptom(inputs), outcome(state)
    main, ledgers = panels.main_record(inputs), panels.ledgers(inputs)
    scopes = ladder_rows.scope_points(state, inputs.known)
    columns = panels.bars_of(inputs, ledgers, tried)
    spread, arrivals = panels.distributions(inputs), panels.arrivals(inputs)
    leading = panels.leading_proof(tried)
    differences = findings.differences(inputs)
    touching = tuple(one.field for one in differences if one.matters)
    commands, note = reproduce.reproducer(case, state, inputs.known, given)
    account = inputs.concluded.account or state.reconciliation.get("account")
    story = Story(
        outcome=how,
        symptom=symptom,
        mechanism_words=findings.mechanism_words(inputs),
        account=str(account) if account else None,
        culprit=findings.culprit(inputs),
        first=next((row for row in rows if row.key == f"scope:{inputs.concluded.first_scope}"), None),
        proof=leading,
        ladder=rows,
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
        counters=findings.counters(inputs),
        differences=differences,
        equal_fields=findings.equal_fields(state),
        mechanism=inputs.concluded.mechanism or state.mechanism,
        mechanism_words=story.mechanism_words,
        account=story.account,
        culprit=story.culprit,
        first_scope=story.first.scope if story.first else None,
        ledgers=ledgers,
        notes=notes(main),
        tail=tail_table(main, ledgers[0].view) if ledgers else None,
        opinions=opinion_table(inputs),
        expected=expected_table(inputs),
        ladder=rows,
        rejected=rejections(rows),
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
        reopen=doubts.reopen(case, leading, rows, touching, pursued=inputs.pursued),
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


def _skipped(state: State) -> tuple[tuple[str, str], ...]:
    """Rungs with the reason why nothing was done; neighbours with the same reason share a line."""
    skipped = [rung for rung in Rung if rung in state.skipped]
    found = []
    for reason, several in groupby(skipped, key=lambda rung: state.skipped[rung]):
        labels = [rung.label for rung in several]
        found.append((labels[0] if len(labels) == 1 else f"{labels[0]} to {labels[-1]}", reason))
    return tuple(found)


def _rollback(leading: Proof | None) -> str:
    if leading is None or leading.verdict != "supported":
        return "Nothing was changed for good, so there is nothing to roll back."
    text = leading.rollback or "Set what was changed back to the regressed run's value."
    if not leading.mitigation:
        return f"The change is a diagnosis, not one that a production job keeps. {text}"
    when = f"Roll back when a later comparison rejects the change ({leading.reject_if}), or when the loss or the"
    return f"{text} {when} executed work differs from the run without it."
