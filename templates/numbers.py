"""Numbers for people: three significant digits, a unit everywhere, and the file that each one came from."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

MOST_DECIMALS = 3
FINE = 0.05
"""Below this size (ms) a third decimal says something; above it two are enough beside steps of many ms."""


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
    def places(self) -> int:
        """Decimals that suit the value and the ends of its interval alike."""
        if self.decimals is not None:
            return self.decimals
        largest = max(abs(one) for one in (self.value, *(self.interval or ())))
        finest = MOST_DECIMALS if largest < FINE else 2
        return min(finest, significant(self.value if abs(self.value) > 0.1 * largest else largest, self.unit))

    @property
    def figure(self) -> str:
        """The value alone: ``+7.21``; counts from 10 000 on with commas."""
        if not self.unit and abs(self.value) >= 10_000:
            return f"{self.value:,.0f}"
        return fixed(self.value, self.places, signed=self.signed)

    @property
    def short(self) -> str:
        """The value with its unit: ``+7.21 ms``."""
        return f"{self.figure} {self.unit}" if self.unit else self.figure

    @property
    def brackets(self) -> str:
        """The interval: ``[+6.81, +7.63]``; empty where there is none."""
        found = self.interval
        if found is None:
            return ""
        low, high = (fixed(one, self.places, signed=self.signed) for one in found)
        return f"[{low}, {high}]"

    @property
    def text(self) -> str:
        """With its unit and its interval: ``+7.21 ms [+6.81, +7.63]``."""
        return f"{self.short} {self.brackets}".rstrip()

    @property
    def unsigned(self) -> Number:
        """The same number where the sentence already says its direction; a negative one keeps its sign."""
        return replace(self, signed=False)


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
    text = f"{value:+.{decimals}f}"
    if float(text) == 0:
        return text[1:]
    return text if signed else text.removeprefix("+")


def hours(value: float) -> str:
    """Device-hours with three significant digits: ``0.0123``."""
    return f"{value:.3g}"
