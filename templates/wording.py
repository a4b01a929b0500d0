"""The sentences of the postmortem that depend on how the case ended. Data in, plain words out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from narrows.inquiry.accounts import ACCOUNT_MEANINGS, Account
from narrows.inquiry.steps import StopReason
from narrows.templates.numbers import Number
from narrows.templates.parts import LadderRow, Outcome, Proof, Symptom

VERDICT_WORDS: dict[Outcome, str] = {
    Outcome.EXPLAINED: "Explained",
    Outcome.NO_REGRESSION: "No regression",
    Outcome.NOT_CLOSED: "Reproduced, not explained",
    Outcome.NOT_REPRODUCED: "Not reproduced",
    Outcome.INCONCLUSIVE: "Inconclusive",
    Outcome.ABORTED: "Aborted",
    Outcome.UNTIL: "Stopped early",
    Outcome.RUNNING: "Not finished",
}


def linked(number: Number | None, *, short: bool = False, unit: bool = True) -> str:
    """The number as a markdown link to its evidence, its interval behind it; ``not measured`` where there is none."""
    if number is None:
        return "not measured"
    text = number.short if unit else number.figure
    shown = f"[{text}]({number.source})" if number.source else text
    return shown if short else f"{shown} {number.brackets}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What the conclusion is told from."""

    outcome: Outcome
    symptom: Symptom
    mechanism_words: str
    account: str | None
    culprit: str
    first: LadderRow | None
    proof: Proof | None
    ladder: tuple[LadderRow, ...]


def unsigned(number: Number | None) -> Number | None:
    return number.unsigned if number else None


def sentence(text: str) -> str:
    """``text`` with a capital at its start and a full stop at its end."""
    shown = text[:1].upper() + text[1:]
    return shown if shown.endswith((".", "!", "?")) or not shown else f"{shown}."


def undecided(rows: tuple[LadderRow, ...]) -> list[LadderRow]:
    """Hypotheses that are still open; a regression that was measured again is no longer open where it was first."""
    keys = {row.key for row in rows}
    again = "regression:again" in keys
    return [
        row for row in rows if row.verdict not in ("supported", "rejected") and not (again and row.key == "regression")
    ]


def rejections(rows: tuple[LadderRow, ...]) -> tuple[str, ...]:
    """What was ruled out and by which test, one line each; the accounts of the reconciliation share one line."""
    found, accounts = [], []
    for row in rows:
        if row.verdict != "rejected":
            continue
        if row.key.startswith("account:"):
            accounts.append(row)
            continue
        told = row.reason or (linked(row.result) if row.result else "no reason was recorded")
        test = f" by [{PurePosixPath(row.source).stem}]({row.source})" if row.source else ""
        found.append((row, f"**{row.id}**, {row.rung}: {row.claim}. *Rejected*{test}: {told}."))
    if accounts:
        ids = ", ".join(row.id for row in accounts)
        parts = ", ".join(f"{row.key.partition(':')[2]} ({linked(row.result)})" for row in accounts)
        line = f"**{ids}**, {accounts[0].rung}: The missing time is not in {parts}: each holds less than half of it."
        found.append((accounts[0], line))
    return tuple(line for _, line in sorted(found, key=lambda item: item[0].id))


def conclusion(story: Story) -> tuple[str, ...]:
    """The opening paragraph, sentence by sentence, for a reader who has seen nothing else."""
    if story.outcome is Outcome.NO_REGRESSION:
        return _nothing(story)
    if story.outcome is Outcome.INCONCLUSIVE:
        return (*_unsure(story), *_missing(story))
    sentences = [*_slower(story), *_cause(story), *_where(story), *_proven(story)]
    return (*sentences, *_ending(story))


def _slower(story: Story) -> tuple[str, ...]:
    symptom = story.symptom
    if symptom.difference is None:
        return ("How much slower the step got has not been measured yet.",)
    if symptom.difference.value < 0:
        return (f"The training step changed by {linked(symptom.difference)}.",)
    gained = linked(symptom.difference.unsigned)
    span = ""
    if symptom.healthy and symptom.regressed:
        span = f", from {linked(symptom.healthy, short=True)} to {linked(symptom.regressed, short=True)}"
    percent = f" ({linked(symptom.percent)})" if symptom.percent else ""
    sure = "" if symptom.tested else "; single runs show it, which cannot be repeated to see how sure it is"
    return (f"The training step got slower by {gained}{span}{percent}{sure}.",)


def _cause(story: Story) -> tuple[str, ...]:
    if not story.mechanism_words:
        return ()
    lead = "Why" if story.outcome is Outcome.EXPLAINED else "Suspected cause"
    culprit = f" Where: {story.culprit}." if story.culprit else ""
    lost = ""
    if story.account in set(Account):
        named = "The time is lost in" if story.outcome is Outcome.EXPLAINED else "The account suspected is"
        lost = f" {named} **{story.account}**: {ACCOUNT_MEANINGS[Account(story.account)]}."
    return (f"{lead}: {story.mechanism_words}.{culprit}{lost}",)


def _where(story: Story) -> tuple[str, ...]:
    if story.first is None:
        return ()
    alone = {"one rank": "One rank alone", "one node": "One node alone", "two nodes": "Two nodes"}
    who = alone.get(story.first.scope, "Only the full scale")
    verb = "are" if story.first.scope == "two nodes" else "is"
    return (f"{who} {verb} enough to show it: there the step loses {linked(unsigned(story.first.result))}.",)


def _proven(story: Story) -> tuple[str, ...]:
    proof = story.proof
    if proof is None or proof.improvement is None:
        return ()
    shown = ", ".join(f"`{line}`" if " -> " in line else line for line in proof.change)
    change = f" ({shown})" if shown else ""
    gained = linked(proof.improvement.unsigned)
    found = [f"How it was tested: one thing was changed{change}; the step at {proof.scope} then gained {gained}."]
    if proof.account_change is not None and proof.closing != "not_run":
        share = f", {linked(proof.account_share, short=True)} of that gain" if proof.account_share else ""
        ends = "so the accounting closes" if proof.closing == "closed" else f"and the accounting is {proof.closing}"
        gave = linked(proof.account_change.unsigned)
        found.append(f"Its {proof.closing_accounts} shrank by {gave}{share}, {ends.replace('_', ' ')}.")
    return tuple(found)


def _ending(story: Story) -> tuple[str, ...]:
    if story.outcome is Outcome.EXPLAINED:
        return _left(story)
    if story.outcome is Outcome.RUNNING:
        done = sum(row.verdict != "not judged" for row in story.ladder)
        return (f"The investigation has not ended: {done} of {len(story.ladder)} registered hypotheses are judged.",)
    sentence = {
        Outcome.NOT_CLOSED: StopReason.NOT_CLOSED.value,
        Outcome.NOT_REPRODUCED: StopReason.NOT_REPRODUCED.value,
        Outcome.ABORTED: StopReason.ABORTED.value,
        Outcome.UNTIL: StopReason.UNTIL.value,
    }[story.outcome]
    searched = story.outcome in (Outcome.NOT_CLOSED, Outcome.NOT_REPRODUCED)
    return (sentence, *_missing(story)) if searched else (sentence,)


def _left(story: Story) -> tuple[str, ...]:
    proof = story.proof
    open_rows = [row.id for row in undecided(story.ladder)]
    left = f"hypotheses {', '.join(open_rows)} stay undecided" if open_rows else "no hypothesis stayed undecided"
    if proof is not None and proof.gap is not None:
        gap = linked(proof.gap.unsigned)
        return (f"What is left: {gap} of the gain lies outside {proof.closing_accounts}; {left}.",)
    return (f"What is left: {left}.",)


def _nothing(story: Story) -> tuple[str, ...]:
    symptom = story.symptom
    found = [f"The step differs by {linked(symptom.difference)}"]
    if symptom.margin is not None:
        found[0] += f", less than the margin of {linked(symptom.margin)} that was set beforehand"
    found[0] += "."
    if symptom.healthy and symptom.regressed:
        healthy, regressed = linked(symptom.healthy, short=True), linked(symptom.regressed, short=True)
        found.append(f"The step takes {healthy} in the healthy run and {regressed} in the suspected one.")
    if symptom.pairs:
        found.append(f"This rests on {symptom.pairs} pairs of runs; nothing was launched to search for a cause.")
    return tuple(found)


def _unsure(story: Story) -> tuple[str, ...]:
    symptom = story.symptom
    if symptom.difference is None:
        return ("It could not be decided whether the step got slower: there is no measured difference.",)
    found = f"It could not be decided whether the step got slower: the difference is {linked(symptom.difference)}"
    return (f"{found}, against a margin of {linked(symptom.margin)}." if symptom.margin else f"{found}.",)


def _missing(story: Story) -> tuple[str, ...]:
    """What a reader would have to bring for a decision."""
    rows = undecided(story.ladder)
    if not rows:
        return ("What is missing: a change that gives back the loss; name one under `workload.perturbed` in the case.",)
    told = "; ".join(f"{row.id}: {row.reason or 'it was not judged'}" for row in rows[:3])
    return (f"What is missing: {told}." if not told.endswith(".") else f"What is missing: {told}",)
