"""What the pairs show beside their mean: named findings, and for a loss in the tail the ledgers of the slow steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from narrows.inquiry.accounts import ACCOUNTS
from narrows.inquiry.findings import LEAST_STEPS
from narrows.templates.numbers import Number, number, significant

if TYPE_CHECKING:
    from narrows.templates.evidence import Record

WINDOW_WORDS = {"median": "about the median", "p95": "about p95", "es95": "slowest 5 %"}
SHOWN = 0.01
"""An account that takes less than this share of the slowest steps in both arms is folded into one row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One account of both arms in one window, ms a step."""

    before: Number | None
    after: Number | None
    change: Number | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowTable:
    """Rows of (account, one cell a window), the sum last: it is the statistic itself. ``missing`` are sentences on the
    windows that the runs are too short for."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    missing: tuple[str, ...]


def notes(record: Record | None) -> tuple[str, ...]:
    """The named findings on the pairs, a sentence each."""
    found = record.raw.get("findings") if record else None
    return tuple(str(one["sentence"]) for one in found or ())


def tail_table(record: Record | None, view: str) -> WindowTable | None:
    """The ledgers of the typical and of the slow steps, where the loss is in the tail; else None."""
    both = record.two_arms if record else None
    if record is None or both is None or not record.raw.get("tail"):
        return None
    before, after = (record.arm(one).get("windows") or {} for one in both)
    return window_table(before, after, view, record.source)


def window_table(
    before: Mapping[str, Any], after: Mapping[str, Any], view: str, source: str | None = None
) -> WindowTable | None:
    """``before`` and ``after`` hold ms by statistic, view and account; None where they share no statistic."""
    kept = [name for name in WINDOW_WORDS if view in before.get(name, {}) and view in after.get(name, {})]
    if not kept:
        return None
    tables = {name: (before[name][view], after[name][view]) for name in kept}
    places = _places(tables)
    wide = [one for one in map(str, ACCOUNTS) if any(_share(tables[name], one) >= SHOWN for name in kept)]
    rest = [one for one in map(str, ACCOUNTS) if one not in wide]
    parts = [(one, [one]) for one in wide] + ([("others", rest)] if rest else [])
    rows = [
        (label, tuple(_cell(tables[name], accounts, places, source) for name in kept))
        for label, accounts in [*parts, ("sum", [*wide, *rest])]
    ]
    missing = [
        f"{name} needs {LEAST_STEPS[name]} steps in a run"
        for name in LEAST_STEPS
        if name in WINDOW_WORDS and name not in kept
    ]
    return WindowTable(heads=tuple(WINDOW_WORDS[name] for name in kept), rows=tuple(rows), missing=tuple(missing))


def _places(tables: Mapping[str, tuple[Mapping[str, float], Mapping[str, float]]]) -> int:
    """One number of decimals for all columns, in which the smallest change of a sum shows."""
    changes = [abs(sum(after.values()) - sum(before.values())) for before, after in tables.values()]
    return min(2, max(1, significant(max(changes)))) if any(changes) else 1


def _share(both: tuple[Mapping[str, float], Mapping[str, float]], account: str) -> float:
    return max(abs(one.get(account, 0.0)) / max(sum(one.values()), 1e-9) for one in both)


def _cell(
    both: tuple[Mapping[str, float], Mapping[str, float]], accounts: list[str], places: int, source: str | None
) -> Cell:
    first, second = (sum(one.get(account, 0.0) for account in accounts) for one in both)
    return Cell(
        before=number(first, source, decimals=places),
        after=number(second, source, decimals=places),
        change=number(second - first, source, signed=True, decimals=places),
    )
