"""What the reader must not forget: caveats of how it was measured, what stays uncertain, what reopens the case."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from narrows.inquiry import plans
from narrows.inquiry.accounts import Account
from narrows.inquiry.case import Case
from narrows.inquiry.design import ArmKind, Mode
from narrows.inquiry.scopes import SCOPE_RUNGS
from narrows.inquiry.state import State
from narrows.inquiry.verdict import Verdict
from narrows.templates.evidence import Record
from narrows.templates.ladder_rows import scope_words, scrub
from narrows.templates.parts import LadderRow, LedgerTable, Proof, Symptom
from narrows.templates.wording import linked, sentence, undecided

FEW_PAIRS = 8
ANY_CHANGE = ("source", "packages", "driver and CUDA", "topology and placement", "power policy", "model shape")


def is_emulated(case: Case, known: Mapping[str, Record]) -> bool:
    return case.cluster.device == "emulated" or any(one.raw.get("emulated") is True for one in known.values())


def is_switchback(case: Case, known: Mapping[str, Record]) -> bool:
    modes = [one.raw.get("mode") for one in known.values() if one.raw.get("mode")]
    return Mode.SWITCHBACK.value in modes if modes else case.judging.mode is Mode.SWITCHBACK


def caveats(case: Case, known: Mapping[str, Record], symptom: Symptom) -> tuple[str, ...]:
    """One sentence for each thing about the measurement that limits what it says."""
    found = []
    if is_emulated(case, known):
        found.append("**Emulated device**: kernels were timed waits of computed length, not work on a GPU.")
    if is_switchback(case, known):
        found.append("**Switchback**: both configurations took turns inside one launch, not in launches of their own.")
    if not symptom.tested:
        found.append("**Described, not tested**: the given runs are too few to say how sure the difference is.")
    if case.workload.kind is ArmKind.HISTORICAL:
        found.append("**Historical**: the healthy run cannot be made again, so only the regressed one was changed.")
    return tuple(found)


def uncertainties(
    case: Case,
    state: State,
    known: Mapping[str, Record],
    rows: tuple[LadderRow, ...],
    ledger: LedgerTable | None,
    directory: Path | None,
) -> tuple[str, ...]:
    """What the evidence does not settle, each in one or two sentences."""
    found = [
        f"{row.id} is {'undecided' if row.verdict == Verdict.INCONCLUSIVE.value else 'not judged'}: "
        f"{row.claim[:1].lower()}{row.claim[1:]}." + (f" {sentence(row.reason)}" if row.reason else "")
        for row in undecided(rows)
    ]
    if is_emulated(case, known):
        found.append("The sizes hold for the emulated device. On real accelerators the experiment has to be repeated.")
    if is_switchback(case, known):
        found.append(
            "Turns inside one launch cannot show what only a restart changes: memory layout, routes, initialisation."
        )
    return (
        *found,
        *_excluded(known),
        *_thin(rows),
        *_outside(ledger),
        *_untested(case, state),
        *_reading(known, directory),
    )


def _excluded(known: Mapping[str, Record]) -> tuple[str, ...]:
    taken = [(one.raw["excluded_steps"], _steps(one)) for one in known.values() if one.raw.get("excluded_steps")]
    if not taken:
        return ()
    left_out, kept = (sum(column) for column in zip(*taken, strict=True))
    why = "because the machine that ran the emulation stalled in them"
    return (f"{left_out} of {left_out + kept} steps were left out, in both arms alike, {why}.",)


def _steps(record: Record) -> int:
    units = [unit for arm in record.raw.get("arms", {}).values() for unit in arm.get("units", ())]
    return sum(int(unit.get("steps", 0)) for unit in units)


def _thin(rows: tuple[LadderRow, ...]) -> tuple[str, ...]:
    counts = [row.pairs for row in rows if row.pairs]
    if not counts or min(counts) >= FEW_PAIRS:
        return ()
    low, high = min(counts), max(counts)
    span = f"{low}" if low == high else f"{low} to {high}"
    return (f"The verdicts rest on {span} pairs each; rare events (a stall once an hour) do not show in so few.",)


def _outside(ledger: LedgerTable | None) -> tuple[str, ...]:
    row = next((one for one in ledger.rows if one.account == Account.RESIDUAL.value), None) if ledger else None
    if row is None:
        return ()
    return (f"Residual: {linked(row.after)} of the {row_name(ledger)} step belongs to nothing that was measured.",)


def row_name(ledger: LedgerTable | None) -> str:
    return ledger.after if ledger else "regressed"


def _untested(case: Case, state: State) -> tuple[str, ...]:
    names = [
        f"{scope_words(scope)} ({reason})"
        for scope in case.scopes()
        if state.verdict(f"scope:{scope.value}") is None and state.verdict(f"scale_up:{scope.value}") is None
        if (reason := state.skipped.get(SCOPE_RUNGS[scope], "the investigation did not come to it"))
    ]
    return (f"Not tested: {'; '.join(names)}.",) if names else ()


def _reading(known: Mapping[str, Record], directory: Path | None) -> tuple[str, ...]:
    found = []
    for record in known.values():
        losses = record.raw.get("losses")
        if isinstance(losses, (list, tuple)) and losses:
            told = "; ".join(scrub(str(one), directory) for one in losses[:3])
            more = f" and {len(losses) - 3} more" if len(losses) > 3 else ""
            found.append(f"Lost while reading [{record.name}]({record.source}): {told}{more}.")
        covered = record.raw.get("coverage")
        if isinstance(covered, float) and covered < 0.995:
            found.append(f"[{record.name}]({record.source}) covers {100 * covered:.0f} % of the steps that ran.")
    return tuple(found)


def reopen(
    case: Case, proof: Proof | None, rows: tuple[LadderRow, ...], fields: tuple[str, ...], *, pursued: bool
) -> tuple[str, ...]:
    """The conditions under which the conclusion no longer stands."""
    differing = dict.fromkeys([*plans.differing(case.workload.healthy, case.workload.regressed), *fields])
    found = [f"`{name}` changes: the two runs differ in it." for name in differing]
    found.append(
        f"The cluster changes: {case.cluster.nodes} nodes of {case.cluster.ranks_per_node} ranks, device "
        f"{case.cluster.device}."
    )
    found.append(f"A change of {', '.join(ANY_CHANGE)}: each can alter the mechanism, so run the reproducer again.")
    if not pursued:
        return (*found, "The step of a later run differs by more than the margin.")
    by_key = {row.key: row for row in rows}
    found += [
        f"A repetition of {row.id} leaves its prediction ({row.prediction})."
        for row in rows
        if row.key.startswith("scope:") and row.verdict == Verdict.SUPPORTED.value
    ]
    if proof is not None and proof.verdict == Verdict.SUPPORTED.value:
        row = by_key[f"perturbation:{proof.id}"]
        found.append(f"The change no longer helps as {row.id} predicted ({row.prediction}).")
        found.append(f"The share of {proof.closing_accounts} in that gain leaves 75 % to 125 %.")
    if proof is not None and proof.reopen:
        found.append(sentence(proof.reopen))
    return tuple(found)
