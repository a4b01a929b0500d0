"""The plain-text ending of an investigation: the verdict first, then what to open."""

from __future__ import annotations

from narrows.templates.numbers import Number, hours
from narrows.templates.parts import LadderRow, Outcome, PostmortemView, Proof
from narrows.templates.wording import undecided

POSTMORTEM = "postmortem.md"
_HEADS: dict[Outcome, str] = {
    Outcome.EXPLAINED: "EXPLAINED",
    Outcome.NO_REGRESSION: "NO REGRESSION",
    Outcome.NOT_CLOSED: "NOT CLOSED",
    Outcome.NOT_REPRODUCED: "NOT REPRODUCED",
    Outcome.INCONCLUSIVE: "INCONCLUSIVE",
    Outcome.ABORTED: "ABORTED",
    Outcome.UNTIL: "STOPPED",
    Outcome.RUNNING: "RUNNING",
}


def summary_text(view: PostmortemView, postmortem: str = POSTMORTEM) -> str:
    """At most eight lines: the verdict, then one labelled line a fact; ``postmortem`` is the path to show."""
    facts = [
        ("step", _step(view)),
        ("cause", _cause(view)),
        ("shown at", _shown(view)),
        ("ruled out", _ruled_out(view)),
        ("proof", _proof(view.proof)),
        ("missing", _missing(view)),
        ("note", _note(view)),
        ("postmortem", postmortem),
    ]
    lines = [f"{label:<11} {text}" for label, text in facts if text]
    return "\n".join([f"{_HEADS[view.outcome]}  {_headline(view)}", *lines])


def _headline(view: PostmortemView) -> str:
    """The verdict in one line, without a full stop."""
    if view.outcome is Outcome.NO_REGRESSION:
        margin = f", less than the margin of {view.symptom.margin.short}" if view.symptom.margin else ""
        return f"{view.title}: the step differs by {_text(view.symptom.difference)}{margin}"
    if view.outcome is Outcome.INCONCLUSIVE:
        margin = f" against a margin of {view.symptom.margin.short}" if view.symptom.margin else ""
        return f"{view.title}: {_text(view.symptom.difference)} is not settled{margin}"
    if view.outcome is Outcome.RUNNING:
        judged = sum(one.verdict != "not judged" for one in view.ladder)
        return f"{view.title}: {judged} of {len(view.ladder)} hypotheses judged"
    where = f" at {view.first_scope}" if view.first_scope else ""
    named = (view.mechanism or "no mechanism").replace("_", " ")
    account = f" ({view.account})" if view.account else ""
    return f"{named}{account}{where}{_part(view)}"


def _part(view: PostmortemView) -> str:
    """``: +7.2 ms of 7.5 ms``: what the smallest scope shows of the loss."""
    row = _first(view)
    if row is None or row.result is None or view.symptom.difference is None:
        return ""
    whole = Number(value=view.symptom.difference.value)
    return f": {row.result.short} of {whole.short}"


def _first(view: PostmortemView) -> LadderRow | None:
    return next((one for one in view.ladder if one.key.startswith("scope:") and one.verdict == "supported"), None)


def _step(view: PostmortemView) -> str:
    symptom = view.symptom
    if symptom.difference is None:
        return "not compared yet"
    span = f" ({symptom.healthy.short} to {symptom.regressed.short})" if symptom.healthy and symptom.regressed else ""
    return f"{symptom.difference.text}{span}"


def _cause(view: PostmortemView) -> str:
    if view.outcome is Outcome.NO_REGRESSION or not view.mechanism_words:
        return ""
    return view.mechanism_words + (f"; {view.culprit}" if view.culprit else "")


def _shown(view: PostmortemView) -> str:
    row = _first(view)
    return f"{row.scope}, {_text(row.result)}, {row.pairs or 0} pairs" if row is not None else ""


def _ruled_out(view: PostmortemView) -> str:
    found = [f"{one.scope}" for one in view.ladder if one.key.startswith("scope:") and one.verdict == "rejected"]
    lost = [one for one in view.ladder if one.key.startswith("account:") and one.verdict == "rejected"]
    found += [one.key.partition(":")[2] for one in lost]
    return ", ".join(found)


def _missing(view: PostmortemView) -> str:
    """The first hypothesis that is still open, with its reason; nothing once the loss is explained."""
    rows = undecided(view.ladder)
    if not rows or view.outcome in (Outcome.EXPLAINED, Outcome.NO_REGRESSION) or view.proof is not None:
        return ""
    more = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
    return f"{rows[0].id}: {rows[0].reason or 'not judged yet'}{more}"


def _note(view: PostmortemView) -> str:
    """The caveats by name, and what the investigation cost."""
    found = [_plain(one.partition(":")[0]).lower() for one in view.caveats]
    return "; ".join([*found, f"{hours(view.device_hours)} device-hours spent"])


def _proof(proof: Proof | None) -> str:
    if proof is None:
        return ""
    closing = proof.closing.replace("_", " ")
    return f"perturbation {proof.id} {proof.verdict}, {_text(proof.improvement)} gained; accounting {closing}"


def _text(number: Number | None) -> str:
    return number.text if number else "not measured"


def _plain(text: str) -> str:
    return text.replace("*", "").replace("`", "")
