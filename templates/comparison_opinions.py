"""Beside the accounts of a comparison: the three opinions on the loss, and where the slow steps differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from narrows.templates.numbers import Number
from narrows.templates.opinions import OpinionRow, OpinionTable, table_of
from narrows.templates.slow_steps import WindowTable, window_table

TAIL_STATISTICS = ("p95", "p99", "es95")
"""Whoever compares by one of these asks for the slow steps."""
OPINION_HEADS = ("account", "critical path", "rank that waits least", "what-if replay")


def opinions_of(report: Mapping[str, Any]) -> OpinionTable | None:
    """None where nothing was replayed."""
    return None if report["what_if"] is None else table_of(report["what_if"], None)


def opinion_cells(row: OpinionRow) -> tuple[str, str, str, str]:
    """The row as text; an account that interacts has both of the replay's shares."""
    if row.replay is None and row.removal is not None:
        replayed = f"{_text(row.removal)} taken away, {_text(row.addition)} put in"
    else:
        replayed = _text(row.replay)
    return row.account, _text(row.critical_path), _text(row.least_waiting), replayed


def _text(number: Number | None) -> str:
    return "-" if number is None else number.short


def replayed_words(table: OpinionTable) -> str:
    """What was replayed, and how well the replay meets what was measured."""
    steps, errors = " and ".join(map(str, table.steps)), " and ".join(map(_text, table.errors))
    return (
        f"Shares of the loss. The replay runs {steps} recorded steps of the first run of each side again, with one "
        f"account at a time as in the other; it differs from what was measured by {errors}, and 3 % is allowed. "
        "Waiting is no operation of its own: it comes out, under the account that others waited for."
    )


def slow_steps_of(report: Mapping[str, Any]) -> WindowTable | None:
    """The ledgers of the slow steps in the view of the report, where the loss is in them or they were asked for."""
    if not report["tail"] and report["statistic"] not in TAIL_STATISTICS:
        return None
    before, after = (
        {
            statistic: {view: {name: change[arm] for name, change in table.items()} for view, table in by_view.items()}
            for statistic, by_view in report["windows_ms"].items()
        }
        for arm in ("healthy", "regressed")
    )
    return window_table(before, after, report["view"])


def slow_rows(table: WindowTable) -> tuple[tuple[str, ...], ...]:
    """Account, then ``10.1 to 12.4, +2.3`` for each window, ms."""
    return tuple(
        (account, *(f"{_figure(one.before)} to {_figure(one.after)}, {_figure(one.change)}" for one in cells))
        for account, cells in table.rows
    )


def _figure(number: Number | None) -> str:
    return "-" if number is None else number.figure
