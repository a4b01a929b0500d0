"""The report of a revalidation over all claims, and the page of one claim with its history: markdown and plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from narrows.inquiry.claim import Claim, Outcome

Row = Mapping[str, Any]
DAMAGED = "cannot be read"
"""The word for a claim whose file has a problem; the others are run all the same."""

NEXT = {
    Outcome.HOLDS.value: "nothing to do",
    Outcome.GONE.value: "try the job without the mitigation",
    Outcome.MOVED.value: "investigate the new case",
    Outcome.INCONCLUSIVE.value: "run it again on a quieter machine, or with more pairs",
}

_REASON_WIDTH = 36


def report_markdown(rows: Sequence[Row], day: str, reason: str, above: Sequence[str] = ()) -> str:
    """The report over all claims. A row holds ``claim``, ``outcome`` (None: not run again) and what was found.

    ``above`` are lines of markdown before the table.
    """
    lines = [f"# Revalidation of {day}", "", f"Asked for by: {_cell(reason)}", "", counts(rows), "", *above]
    lines += _table(
        ("claim", "outcome", "now, ms a step", "accepted", "why it was run again", "next"),
        [
            (
                f"**{row['claim']}**",
                word(row),
                found(row),
                accepted(row),
                _reasons(row) or ("" if row.get("problem") else "nothing changed"),
                next_move(row),
            )
            for row in rows
        ],
    )
    for row in rows:
        if row["outcome"]:
            lines += ["", f"## {row['claim']}: {row['outcome']}", "", _sentence(row), "", *_links(row)]
        if row.get("problem"):
            lines += ["", f"{row['claim']}: {_cell(row['problem'])}"]
        if row.get("unknown"):
            lines += [
                "",
                f"{row['claim']}: nothing is known of {', '.join(row['unknown'])}; run `narrows watch` there.",
            ]
    return "\n".join(lines) + "\n"


def claim_markdown(claim: Claim, history: Sequence[Row]) -> str:
    """The page of one claim: what it says, what it depends on, and every revalidation, the newest first."""
    lines = [f"# Claim {claim.name}", "", f"Case {claim.case}: {_cell(claim.explanation)} ({claim.account.value}).", ""]
    lines += [f"Mitigation: {_cell(claim.mitigation.change)}; {in_force(claim)}.", "", "## Revalidations", ""]
    lines += _table(
        ("day", "outcome", "now, ms a step", "why", "record"),
        [
            (
                str(one["day"]),
                f"**{one['outcome']}**",
                found(one),
                _reasons(one),
                f"`{str(one['folder']).rpartition('/')[2]}`",
            )
            for one in reversed(history)
        ],
    )
    ranges = [f"- {one.metric.value}: {accepted_range(one.low, one.high)}; {_cell(one.how)}" for one in claim.ranges]
    depends = [f"- `{one.field}`: {_cell(', '.join(one.confirmed))}; {one.why}" for one in claim.depends_on]
    return "\n".join([*lines, "", "## Accepted", "", *ranges, "", "## Depends on", "", *depends]) + "\n"


def report_text(rows: Sequence[Row]) -> str:
    """The report for a terminal: one line a claim, then what follows from it."""
    width = max((len(str(row["claim"])) for row in rows), default=0)
    lines = []
    for row in rows:
        lines.append(f"{row['claim']:<{width}}  {word(row).upper():<20}  {found(row)}".rstrip())
        lines += [f"{'':<{width}}  {reason}" for reason in row["reasons"]]
        if row.get("problem"):
            lines.append(f"{'':<{width}}  {row['problem']}")
        if row.get("new_case"):
            lines.append(f"{'':<{width}}  new case: {row['new_case']}")
    return "\n".join([*lines, counts(rows)]) + "\n"


def counts(rows: Sequence[Row]) -> str:
    """For example ``2 claims: 1 holds, 1 not due``."""
    words = [word(row) for row in rows]
    order = (*(one.value for one in Outcome), "due", "not due", DAMAGED)
    shown = [f"{words.count(one)} {one}" for one in order if one in words]
    return f"{len(rows)} claim{'s' * (len(rows) != 1)}: {', '.join(shown) or 'none'}"


def word(row: Row) -> str:
    """How the claim ended; ``due`` where it is to be run again and was not, or not yet."""
    if row.get("problem"):
        return DAMAGED
    return row["outcome"] or ("due" if row["reasons"] else "not due")


def found(row: Row) -> str:
    """For example ``3.32 [2.93, 3.72]``; empty where nothing was measured."""
    if row.get("found_ms") is None:
        return ""
    low, high = row.get("interval_ms") or (None, None)
    return f"{row['found_ms']:.3g}" + (f" [{low:.3g}, {high:.3g}]" if low is not None else "")


def accepted(row: Row) -> str:
    return accepted_range(*row["accepted_ms"]) if row.get("accepted_ms") else ""


def accepted_range(low: float, high: float | None) -> str:
    return f"{low:.3g} to {high:.3g}" if high is not None else f"at least {low:.3g}"


def next_move(row: Row) -> str:
    return "mend its file" if row.get("problem") else NEXT.get(row["outcome"] or "", "")


def in_force(claim: Claim) -> str:
    return "in force" if claim.mitigation.in_force else "not in force"


def _reasons(row: Row) -> str:
    # Prefect's page never breaks a line of a table, and hides what does not fit.
    lines = [line for reason in row["reasons"] for line in textwrap.wrap(reason, _REASON_WIDTH)]
    return "<br>".join(map(_cell, lines))


def _sentence(row: Row) -> str:
    return _cell(str(row["sentence"])) + "."


def _links(row: Row) -> list[str]:
    lines = [f"- case `{row['case']}`", f"- record `{row['folder']}/docket.jsonl`"]
    return [*lines, f"- new case `{row['new_case']}`"] if row.get("new_case") else lines


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(headers)} |", f"| {' | '.join('-' for _ in headers)} |"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def _cell(text: str) -> str:
    return " ".join(text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").split())
