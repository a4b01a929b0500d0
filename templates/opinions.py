"""The third opinion for people: which account the what-if replay puts first, beside the two exact ledgers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from narrows.templates.numbers import Number, number

if TYPE_CHECKING:
    from narrows.templates.inputs import Inputs

SHOWN = 0.05
"""An account of which every opinion makes less than this share of the loss has no row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpinionRow:
    """One account's share of the loss in percent. Where ``replay`` is None, the account interacts: ``removal`` and
    ``addition`` say what the replay gave either way; all three are None where it says nothing of the account."""

    account: str
    critical_path: Number | None
    least_waiting: Number | None
    removal: Number | None
    addition: Number | None
    replay: Number | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpinionTable:
    """``rows`` is empty where the replay is withheld; ``sentence`` says why then, else what the opinions come to.

    ``errors`` are replayed over measured step, less 1, in percent, of the healthy and of the regressed run.
    """

    sentence: str
    agree: bool | None
    rows: tuple[OpinionRow, ...]
    healthy: Number | None
    regressed: Number | None
    errors: tuple[Number | None, ...]
    steps: tuple[int, ...]


def opinion_table(inputs: Inputs) -> OpinionTable | None:
    """None where the given runs were not reconciled, or without a replay."""
    found = inputs.state.findings.get("opinions")
    return None if not found else table_of(found, inputs.finding_source("opinions"))


def table_of(found: Mapping[str, Any], source: str | None) -> OpinionTable:
    """The table of opinions as they stand in a docket or in a comparison."""
    withheld = found["agree"] is None
    rows = () if withheld else tuple(_row(one, source) for one in found["accounts"] if _largest(one) >= SHOWN)
    return OpinionTable(
        sentence=str(found["sentence"]),
        agree=found["agree"],
        rows=rows,
        healthy=number(found["healthy_ms"], source),
        regressed=number(found["regressed_ms"], source),
        errors=tuple(number(100 * one, source, unit="%", signed=True, decimals=1) for one in found["replay_error"]),
        steps=tuple(int(one) for one in found["steps"]),
    )


def _largest(one: Mapping[str, Any]) -> float:
    """The largest share that any opinion has, either way."""
    return max(abs(float(one[name] or 0.0)) for name in ("critical_path", "least_waiting_rank", "removal", "addition"))


def _row(one: Mapping[str, Any], source: str | None) -> OpinionRow:
    return OpinionRow(
        account=str(one["account"]),
        critical_path=_percent(one["critical_path"], source),
        least_waiting=_percent(one["least_waiting_rank"], source),
        removal=_percent(one["removal"], source),
        addition=_percent(one["addition"], source),
        replay=_percent(one["replay"], source),
    )


def _percent(value: float | None, source: str | None) -> Number | None:
    return None if value is None else number(100 * value, source, unit="%", decimals=0)
