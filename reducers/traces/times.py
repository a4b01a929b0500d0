"""Kineto's microseconds as integer nanoseconds."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

# Below 2**43 us (101 days) a float64 still tells one nanosecond from the next. Kineto's time base steps every 91.3
# days, so its relative times stay below. Older traces carry the time since 1970, 1.7e15 us: the grain there is 0.25 us.
FLOAT_LIMIT_US = float(1 << 43)

# As numpy.typing spells NDArray, which costs milliseconds to import.
Ints = np.ndarray[Any, np.dtype[Any]]  # integers: times and correlations of 64 bits, indices of fewer
Nanoseconds = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
Floats = np.ndarray[Any, np.dtype[np.float64]]


def ns_from_us(times_us: Sequence[float] | Floats) -> Nanoseconds:
    """Nanoseconds (int64) of times in microseconds, exact for whole numbers and for floats below FLOAT_LIMIT_US.

    Whole part and fraction are scaled apart: ``rint(us * 1000)`` is off by 1 ns for a quarter of the values near 4e12.
    """
    values = np.asarray(times_us, dtype=np.float64)
    whole = np.floor(values)
    return whole.astype(np.int64) * 1000 + np.rint((values - whole) * 1000).astype(np.int64)


def ns_from_digits(text: bytes | str) -> int | None:
    """Nanoseconds of a time in microseconds as it stands in the file; None when it is no number."""
    digits = text.decode("ascii", "replace") if isinstance(text, bytes) else text
    try:
        value = Decimal(digits.strip().strip('"'))
        return int((value * 1000).to_integral_value())
    except (InvalidOperation, OverflowError, ValueError):
        return None


def loses_digits(time_us: object) -> bool:
    """Whether a decoded time may have lost its nanoseconds, so that its digits must be read."""
    return isinstance(time_us, float) and abs(time_us) >= FLOAT_LIMIT_US
