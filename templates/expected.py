"""What communication should take beside what it took, for people: shapes, what hides it, the pipeline's bubble."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from narrows.templates.evidence import GIVEN
from narrows.templates.numbers import Number, number

if TYPE_CHECKING:
    from narrows.templates.inputs import Inputs

_OVERLAP = ("service_ms", "window_ms", "expected_exposed_ms", "exposed_ms")
_UNITS = ("B", "KB", "MB", "GB", "TB")


SHOWN = 8
"""Shapes with a row of their own, those with most time a step; a flagged one always has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeRow:
    """One shape: ``measured_us`` by arm. ``flag`` says which arm takes how many times the expected, ``basis`` what the
    expected time rests on, or why there is none; ``said`` is what the table's last cell holds of both."""

    what: str
    payload: str
    calls: str
    sent: str
    rounds: int
    expected_us: Number | None
    measured_us: tuple[Number | None, ...]
    basis: str
    flag: str
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapRow:
    """One group's collectives in one arm; ``numbers``: service, compute left, expected and real exposure, ms a step."""

    what: str
    numbers: tuple[Number | None, ...]
    flag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTable:
    """``flagged`` holds a sentence for each shape that takes more than it should; ``notes`` what the tables rest on."""

    arms: tuple[str, ...]
    rows: tuple[ShapeRow, ...]
    overlap: tuple[OverlapRow, ...]
    notes: tuple[str, ...]
    flagged: tuple[str, ...]
    source: str | None


def expected_table(inputs: Inputs) -> ExpectedTable | None:
    """Of the given runs; None where their record holds no collective."""
    given = inputs.known.get(GIVEN)
    return None if given is None else table_of(given.raw.get("expected"), given.source)


def table_of(found: Mapping[str, Any] | None, source: str | None) -> ExpectedTable | None:
    """The table of what stands in an evidence file or in a comparison; None where no collective does."""
    if not found or not found["rows"]:
        return None
    every = [_shape_row(one, source) for one in found["rows"]]
    shown = [row for at, row in enumerate(every) if at < SHOWN or row.flag]
    same = len({row.basis for row in shown}) == 1
    more = len(every) - len(shown) + int(found["left_out"])
    return ExpectedTable(
        arms=tuple(found["rows"][0]["measured_us"]),
        rows=tuple(replace(row, said="; ".join(filter(None, (row.flag, "" if same else row.basis)))) for row in shown),
        overlap=tuple(
            _overlap_row(one, arm, values, source)
            for one in found["overlap"]
            for arm, values in one["arms"].items()
            if values
        ),
        notes=(
            *_notes(shown, more, has_overlap=bool(found["overlap"])),
            *(_sent_words(group, by_arm) for group, by_arm in found["sent"].items()),
            *_bubble_words(found["bubble"]),
        ),
        flagged=tuple(
            f"{row.what}, {row.payload}: {row.flag} {row.expected_us.short} ({row.basis})"
            for row in shown
            if row.flag and row.expected_us is not None
        ),
        source=source,
    )


def _notes(rows: list[ShapeRow], more: int, *, has_overlap: bool) -> list[str]:
    first = rows[0]
    found = []
    if len({row.basis for row in rows}) == 1:
        found.append(f"{'No time is expected' if first.expected_us is None else 'Expected by'}: {first.basis}.")
    found.append("Bytes and rounds are those of a ring.")
    if any(row.expected_us is not None for row in rows):
        found.append("Flagged where three quarters of the calls take more than 1.25 times the expected.")
    if has_overlap:
        found.append(
            "Overlap is that of the median step; exposed is what it waits for when nothing is left to compute."
        )
    if more:
        found.append(f"{more} more kinds of collectives take less time a step.")
    return found


def _sent_words(group: str, by_arm: Mapping[str, float]) -> str:
    """Both runs, where they differ by more than the digits shown."""
    told = [f"{size(value)} a step in the {arm} run" for arm, value in by_arm.items()]
    same = len({size(value) for value in by_arm.values()}) == 1
    return f"In {group} a rank sends {size(next(iter(by_arm.values()))) + ' a step' if same else ', '.join(told)}."


def _shape_row(one: Mapping[str, Any], source: str | None) -> ShapeRow:
    across = " across hosts" if one["crosses_hosts"] else ""
    expected = one.get("expected_us")
    measured = one["measured_us"]
    times = [f"{arm} takes {measured[arm] / expected:.2g} times the expected" for arm in one["exceeded"]]
    calls = list(dict.fromkeys(f"{value:.3g}" for value in one["calls"].values() if value is not None))
    return ShapeRow(
        what=f"{one['group']} {one['op']}, {one['ranks']} ranks{across}",
        payload=size(one["payload_bytes"]),
        calls=" / ".join(calls),
        sent=size(one["sent_bytes"]),
        rounds=int(one["rounds"]),
        expected_us=number(expected, source, unit="us"),
        measured_us=tuple(number(value, source, unit="us") for value in measured.values()),
        basis=str(one["basis"] if expected is not None else one["why_not"]),
        flag=", ".join(times),
        said="",
    )


def _overlap_row(one: Mapping[str, Any], arm: str, values: Mapping[str, Any], source: str | None) -> OverlapRow:
    return OverlapRow(
        what=f"{one['group']}, {arm}",
        numbers=tuple(number(values[name], source) for name in _OVERLAP),
        flag=f"more than with {one['basis']}" if arm in one["exceeded"] else "",
    )


def _bubble_words(bubble: Mapping[str, Any]) -> tuple[str, ...]:
    """A sentence an arm, or why there is none where the record holds a pipeline."""
    if "why_not" in bubble:
        return () if bubble["why_not"].startswith("no pipeline group") else (f"No bubble: {bubble['why_not']}.",)
    words = []
    for arm, one in bubble["arms"].items():
        chunks = f", {one['chunks']} parts of the model a stage" if one["chunks"] > 1 else ""
        over = " It is exceeded." if arm in bubble["exceeded"] else ""
        words.append(
            f"Pipeline, {arm}: {one['stages']} stages and {one['microbatches']} microbatches{chunks} leave "
            f"{100 * one['share']:.0f} % of a step idle where stages are equal. By its stages' compute a rank should "
            f"wait {one['expected_ms']:.3g} ms a step, and waits {one['waiting_ms']:.3g} ms for other ranks.{over}"
        )
    return tuple(words)


def size(num_bytes: float) -> str:
    """For example ``196.6 KB``: decimal units, as link rates are given in."""
    value, at = float(num_bytes), 0
    while value >= 1000 and at < len(_UNITS) - 1:
        value, at = value / 1000, at + 1
    return f"{value:.4g} {_UNITS[at]}"
