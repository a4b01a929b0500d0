"""The host's launches, read from digits cut out of the text: there are many, and two numbers of each are used."""

from __future__ import annotations

import msgspec
import numpy as np

from narrows.reducers.traces.times import FLOAT_LIMIT_US, Ints, ns_from_digits, ns_from_us

_DECODE_TIMES = msgspec.json.Decoder(list[float]).decode
_DECODE_NUMBERS = msgspec.json.Decoder(list[int]).decode


def launch_columns(digits: list[tuple[bytes, bytes]]) -> tuple[Ints, Ints]:
    """Start (ns) and correlation of each launch, from the digits of its time in microseconds and its correlation."""
    times = [time for time, _ in digits]
    numbers = [number for _, number in digits]
    try:
        correlations = _DECODE_NUMBERS(b"[" + b",".join(numbers) + b"]")
        starts_us = _DECODE_TIMES(b"[" + b",".join(times) + b"]")
    except msgspec.DecodeError:  # a damaged digit: 012 is no JSON number
        return np.array([ns_from_digits(time) or 0 for time in times], np.int64), np.array(
            [int(number) for number in numbers], np.int64
        )
    if max(starts_us) >= FLOAT_LIMIT_US and any(b"." in time for time in times):
        starts = np.array([ns_from_digits(time) or 0 for time in times], np.int64)
    else:
        starts = ns_from_us(starts_us)
    return starts, np.array(correlations, np.int64)
