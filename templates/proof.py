"""The perturbation and what it leaves behind: the closed account, the reproducer, what to expect from now on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from narrows.inquiry import changes
from narrows.inquiry.case import ArmSpec, Case
from narrows.inquiry.hypotheses import Hypothesis, Test
from narrows.inquiry.playbook import Play
from narrows.inquiry.state import Judgement, State
from narrows.inquiry.verdict import ClosingStatus, Verdict
from narrows.templates.evidence import Record
from narrows.templates.ladder_rows import NOT_JUDGED, prediction_words, scope_words, source_of
from narrows.templates.ledgers import VIEW_WORDS, gap_rows, gap_total
from narrows.templates.numbers import Number, number, real
from narrows.templates.parts import GapRow, LadderRow, Movement, Proof

CLOSING_WORDS: dict[str, str] = {
    ClosingStatus.CLOSED.value: "closed: the named account shrank by about what the step gained",
    ClosingStatus.PARTIAL.value: "partial: the named account holds only a part of what the step gained",
    ClosingStatus.UNSUPPORTED.value: "unsupported: the step changed, the named account did not; another cause was hit",
    "no_effect": "no effect: the step did not get faster, so there is nothing to account for",
    ClosingStatus.NOT_RUN.value: "not judged",
}
PLACEMENT_WORDS: dict[str, str] = {
    "replace": "the suspected host is replaced by a spare one",
    "colocate": "all ranks are placed on one host",
}


def known_plays(case: Case, state: State) -> dict[str, Play]:
    """Every change that this case could have made, by id."""
    found = {one.id: one for one in (changes.RESTORE_WORK, *case.playbook)}
    return found | {one.id: one for one in changes.plays(case, state)}


def proofs(case: Case, state: State, known: Mapping[str, Record]) -> tuple[Proof, ...]:
    """Every perturbation that was registered, in the order in which they were tried."""
    plays = known_plays(case, state)
    return tuple(
        _proof(case, state, registration.hypothesis, plays, known)
        for registration in state.registrations.values()
        if registration.hypothesis.test is Test.PERTURBATION
    )


def _proof(case: Case, state: State, one: Hypothesis, plays: Mapping[str, Play], known: Mapping[str, Record]) -> Proof:
    name = one.perturbation or one.key.partition(":")[2]
    play, found, closing = plays.get(name), state.judgement(one.key), state.judgement(f"closing:{name}")
    source = source_of(found, one, known)
    record = known.get(one.experiment or "")
    account = one.account.value if one.account else ""
    exposed = tuple(item.value for item in play.newly_exposed) if play else ()
    rows = gap_rows(record, one.ledger.value, account, exposed) if record else ()
    return Proof(
        id=name,
        claim=one.claim,
        scope=scope_words(one.scope),
        change=change_words(case, play, name),
        mitigation=bool(play and play.mitigation),
        verdict=found.verdict.value if found else NOT_JUDGED,
        predicted=prediction_words(one.prediction),
        reject_if=one.reject_if.words(),
        improvement=number(found.effect_ms, source, interval=found.interval_ms, signed=True) if found else None,
        account=account,
        closing_accounts=closing_accounts(state.hypothesis(f"closing:{name}") or one),
        account_change=_account_change(rows, closing, account, source),
        account_share=_closing_number(closing, "share", source, unit="%", scale=100.0),
        gap=_closing_number(closing, "gap_ms", source),
        closing=closing_status(closing),
        closing_words=CLOSING_WORDS.get(closing_status(closing), closing_status(closing)),
        rows=rows,
        total=gap_total(record, one.ledger.value) if record else None,
        ledger_words=VIEW_WORDS.get(one.ledger.value, one.ledger.value),
        rollback=play.rollback if play else "",
        reopen=play.reopen if play else "",
        source=source,
    )


def closing_accounts(one: Hypothesis) -> str:
    """``skew and compute``: what together had to shrink by the gain."""
    return " and ".join(account.value for account in (one.account, *one.together_with) if account is not None)


def closing_status(found: Judgement | None) -> str:
    return str(found.numbers.get("status", found.numbers.get("verdict", found.verdict.value))) if found else "not_run"


def _closing_number(
    found: Judgement | None, name: str, source: str | None, *, unit: str = "ms", scale: float = 1.0
) -> Number | None:
    value = real(found.numbers.get(name)) if found else None
    if found is None or value is None:
        return None
    between = found.numbers.get(f"{name.removesuffix('_ms')}_interval" + ("_ms" if name.endswith("_ms") else ""))
    scaled = [scale * end for end in between] if isinstance(between, (list, tuple)) else None
    return number(scale * value, source, unit=unit, interval=scaled, signed=unit == "ms")


def _account_change(
    rows: tuple[GapRow, ...], closing: Judgement | None, account: str, source: str | None
) -> Number | None:
    """How much the named account shrank, ms; from the verdict, else from the gap table."""
    if closing is not None and closing.effect_ms is not None:
        return number(closing.effect_ms, source, interval=closing.interval_ms, signed=True)
    return next((one.change for one in rows if one.account == account), None)


def change_words(case: Case, play: Play | None, name: str) -> tuple[str, ...]:
    """What the change sets, one line a setting, with the regressed run's value."""
    if play is not None and play.placement is not None:
        return (PLACEMENT_WORDS.get(play.placement, play.placement),)
    work = case.workload
    if name == changes.RESTORE_WORK.id:
        return differing_words(work.config, work.regressed, work.healthy)
    if name == "case" and work.perturbed is not None:
        return differing_words(work.config, work.regressed, work.perturbed)
    config = dict(play.config) if play else {}
    return differing_words(work.config, work.regressed, ArmSpec(config={**work.regressed.config, **config}))


def differing_words(base: Mapping[str, Any], before: ArmSpec, after: ArmSpec) -> tuple[str, ...]:
    """``packing: greedy -> balanced`` for every setting in which two arms differ, in the order of the names."""
    first, second = {**base, **before.config}, {**base, **after.config}
    lines = [
        f"{key}: {_value(first, key)} -> {_value(second, key)}"
        for key in sorted({*first, *second})
        if first.get(key) != second.get(key)
    ]
    lines += [
        f"{key}: {_value(before.env, key)} -> {_value(after.env, key)}"
        for key in sorted({*before.env, *after.env})
        if before.env.get(key) != after.env.get(key)
    ]
    if after.args and before.args != after.args:
        lines.append(f"arguments: {' '.join(before.args) or 'none'} -> {' '.join(after.args)}")
    if after.hosts and before.hosts != after.hosts:
        lines.append(f"hosts: {', '.join(before.hosts) or 'the cluster'} -> {', '.join(after.hosts)}")
    return tuple(lines)


def _value(config: Mapping[str, Any], key: str) -> str:
    if key not in config:
        return "(default)"
    value = config[key]
    if value is None or value is False:
        return "off"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    return "on" if value is True else str(value)


def movements(state: State, proof: Proof | None, ladder_table: tuple[LadderRow, ...]) -> tuple[Movement, ...]:
    """Where each metric stood, and the range that was registered for it: what a repetition must show."""
    rows = {row.key: row for row in ladder_table}
    found = []
    first = state.first_scope
    if first is not None and (row := rows.get(f"scope:{first.value}")) is not None:
        what = f"step time at {row.scope}, regressed minus healthy"
        found.append(Movement(metric=what, now=row.result, expected=_expected(row), when="while the cause is there"))
    if proof is None or proof.verdict != Verdict.SUPPORTED.value:
        return tuple(found)
    row = rows.get(f"perturbation:{proof.id}")
    if row is not None:
        what = f"step time at {proof.scope}, gained by the change"
        found.append(Movement(metric=what, now=row.result, expected=_expected(row), when="when the change is made"))
    if proof.account_share is not None:
        what = f"{proof.closing_accounts}, share of that gain"
        expected = "75 % to 125 %"
        found.append(Movement(metric=what, now=proof.account_share, expected=expected, when="when the change is made"))
    for key, other in rows.items():
        if key.startswith(f"unchanged:{proof.id}:"):
            what = f"{key.rpartition(':')[2]} at {other.scope}, change"
            found.append(Movement(metric=what, now=other.result, expected=_expected(other), when="must stay as it was"))
    for key, other in rows.items():
        if key.startswith("scale_up:") or key == "soak":
            longer = " over a longer run" if key == "soak" else ""
            what, when = f"step time at {other.scope}, gained by the change{longer}", "when it is rolled out"
            found.append(Movement(metric=what, now=other.result, expected=_expected(other), when=when))
    return tuple(found)


def _expected(row: LadderRow) -> str:
    """The predicted range without the name of its metric, which the row already says."""
    for lead in ("step time, two one-sided tests", "improvement of the step", "local time", "step time"):
        if row.prediction.startswith(lead):
            return row.prediction.removeprefix(lead).strip()
    head, _, rest = row.prediction.partition(" ")
    return rest or head
