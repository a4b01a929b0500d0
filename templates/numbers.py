"""Numbers for people: three significant digits, a unit everywhere, and the file that each one came from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

MOST_DECIMALS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A value with its unit and, where known, its 90 % interval. ``source`` is the relative path of its evidence.

    ``decimals`` is set where a whole table shares them, so that its column adds up by eye.
    """

    value: float
    unit: str = "ms"
    low: float | None = None
    high: float | None = None
    signed: bool = False
    source: str | None = None
    decimals: int | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def bare(self) -> str:
        """Without its unit: ``+7.21 [6.81, 7.63]``."""
        places = significant(self.value, self.unit) if self.decimals is None else self.decimals
        text = fixed(self.value, places, signed=self.signed)
        return text + self._brackets(places)

    @property
    def text(self) -> str:
        """With its unit: ``+7.21 ms [6.81, 7.63]``."""
        places = significant(self.value, self.unit) if self.decimals is None else self.decimals
        unit = f" {self.unit}" if self.unit else ""
        return fixed(self.value, places, signed=self.signed) + unit + self._brackets(places)

    @property
    def short(self) -> str:
        """With its unit, without its interval."""
        return Number(value=self.value, unit=self.unit, signed=self.signed, decimals=self.decimals).text

    def _brackets(self, places: int) -> str:
        found = self.interval
        if found is None:
            return ""
        low, high = (fixed(one, places, signed=self.signed) for one in found)
        return f" [{low}, {high}]"


def real(value: Any) -> float | None:
    """``value`` as a finite float; None for anything that is not one (what was not measured is absent)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def reals(values: Any) -> tuple[float, ...]:
    """The finite numbers of a list, in its order; empty when it is no list."""
    if not isinstance(values, (list, tuple)):
        return ()
    return tuple(found for value in values if (found := real(value)) is not None)


def bounds(value: Any) -> tuple[float, float] | None:
    """``[low, high]`` as a pair in ascending order; None unless both are finite."""
    found = reals(value)
    return (min(found), max(found)) if len(found) == 2 else None


def number(
    value: Any,
    source: str | None = None,
    *,
    unit: str = "ms",
    interval: Any = None,
    signed: bool = False,
    decimals: int | None = None,
) -> Number | None:
    """A Number from what a JSON file holds; None where there is no finite value."""
    found, between = real(value), bounds(interval)
    if found is None:
        return None
    low, high = between or (None, None)
    return Number(value=found, unit=unit, low=low, high=high, signed=signed, source=source, decimals=decimals)


def share(part: float, whole: float, source: str | None = None) -> Number | None:
    """``part`` of ``whole`` in percent; None where the whole is nothing."""
    return number(100 * part / whole, source, unit="%") if abs(whole) > 1e-9 else None


def significant(value: float, unit: str = "ms") -> int:
    """The decimals that show three significant digits; percentages show whole numbers from 10 % on."""
    if value == 0:
        return 0 if unit == "%" else 1
    size = math.floor(math.log10(abs(value)))
    if unit == "%":
        return 0 if size >= 1 else 1
    return min(MOST_DECIMALS, max(0, 2 - size))


def fixed(value: float, decimals: int, *, signed: bool = False) -> str:
    """``value`` with these decimals; what rounds to zero is written without a sign."""
    shown = 0.0 if abs(value) < 0.5 * 10.0**-decimals else value
    return f"{shown:+.{decimals}f}" if signed and shown else f"{shown:.{decimals}f}"


def hours(value: float) -> str:
    """Device-hours with three significant digits: ``0.0123``."""
    return f"{value:.3g}"
