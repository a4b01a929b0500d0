"""One event of a trace, decoded; and the repair of one that is damaged."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
from msgspec import Raw, Struct, field

# A value may be written as a number or as text, by version and by vendor.
Loose = int | float | str | None
LARGEST = 1 << 62


def whole_number(value: Loose) -> int | None:
    """The whole number that a value holds, written as a number or as text; None for anything else."""
    try:
        number = int(value) if value is not None else None
    except (ValueError, OverflowError):
        return None
    return number if number is not None and abs(number) < LARGEST else None


class Args(Struct, gc=False):
    """Of the arguments, those that are used; unknown ones are skipped without being built."""

    device: Loose = None
    stream: Loose = None
    correlation: Loose = None
    bytes_: Loose = field(default=None, name="bytes")
    collective: str | None = field(default=None, name="Collective name")
    in_elements: Loose = field(default=None, name="In msg nelems")
    out_elements: Loose = field(default=None, name="Out msg nelems")
    group_size: Loose = field(default=None, name="Group size")
    dtype: str | None = None
    group: Loose = field(default=None, name="Process Group Name")
    group_role: Loose = field(default=None, name="Process Group Description")
    group_ranks: Loose = field(default=None, name="Process Group Ranks")
    seq: Loose = field(default=None, name="Seq")
    source: Loose = field(default=None, name="Src Rank")
    target: Loose = field(default=None, name="Dst Rank")
    device_type: Loose = field(default=None, name="Device Type")
    device_id: Loose = field(default=None, name="Device Id")
    allocated: Loose = field(default=None, name="Total Allocated")
    reserved: Loose = field(default=None, name="Total Reserved")


class Event(Struct, gc=False):
    """An element of ``traceEvents``. Times in microseconds, as written."""

    ph: str | None = None
    cat: str | None = None
    name: str = ""
    pid: Loose = None
    tid: Loose = None
    ts: int | float | None = None
    dur: int | float | None = None
    args: Args | None = None


class DigitEvent(Struct, gc=False):
    """The same, with the times' digits kept: for traces whose floats cannot hold a nanosecond."""

    ph: str | None = None
    cat: str | None = None
    name: str = ""
    pid: Loose = None
    tid: Loose = None
    ts: Raw = field(default_factory=Raw)
    dur: Raw = field(default_factory=Raw)
    args: Args | None = None


NO_ARGS = Args()
AnyEvent = Event | DigitEvent


@cache  # most traces need one of the four, and each takes a while to build
def _decoder(kind: Any) -> Callable[[bytes | bytearray], Any]:
    return msgspec.json.Decoder(kind).decode


DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode_list(text: bytes | bytearray, *, digits: bool) -> list[AnyEvent]:
    """The events of a JSON array.

    Raises one of DECODE_ERRORS when any part of it is damaged.
    """
    found: list[AnyEvent] = _decoder(list[DigitEvent] if digits else list[Event])(text)
    return found


def decode_one(record: bytes, *, digits: bool) -> tuple[AnyEvent, bool] | None:
    """The event of one record and whether it had to be repaired; None when it cannot be."""
    decode = _decoder(DigitEvent if digits else Event)
    try:
        return decode(record), False
    except DECODE_ERRORS:
        pass
    repaired = first_readable(record, decode)
    if repaired is None:
        repaired = first_readable(record, lambda text: _leniently(text, digits=digits))
    return None if repaired is None else (repaired, True)


def _leniently(text: bytes, *, digits: bool) -> AnyEvent:
    """An event whose values have unexpected types: those that can be converted are, a wrong ``args`` is dropped."""
    found = msgspec.json.decode(text)
    if not isinstance(found, dict):
        raise msgspec.ValidationError("an event is a JSON object")
    if not isinstance(found.get("args"), dict):
        found.pop("args", None)
    if digits:
        times = {key: Raw(msgspec.json.encode(found.pop(key))) for key in ("ts", "dur") if key in found}
        kept = msgspec.convert(found, DigitEvent, strict=False)
        for key, value in times.items():
            setattr(kept, key, value)
        return kept
    return msgspec.convert(found, Event, strict=False)


_CONTROL = bytes(max(code, 0x20) for code in range(256))
_LONE_BACKSLASH = re.compile(rb'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_NOT_A_NUMBER = re.compile(rb"(?<=[:\[,\s])[-+]?(?:nan|inf(?:inity)?)\b(?=\s*[,}\]])", re.IGNORECASE)
_TRAILING_COMMA = re.compile(rb",(?=\s*[}\]])")
# Only in the name: elsewhere the guess could swallow the keys behind it.
_NAME_VALUE = re.compile(rb'(?<="name")(\s*:\s*")(.*?)(?="\s*,\s*"(?:pid|tid|ts|dur|args|ph|cat)"\s*:)', re.DOTALL)


def _escape_quotes(match: re.Match[bytes]) -> bytes:
    return match[1] + re.sub(rb'(?<!\\)"', rb'\\"', match[2])


# In this order: each step leaves valid text as it is, the last ones guess.
_LADDER: tuple[Callable[[bytes], bytes], ...] = (
    lambda text: text.translate(_CONTROL),  # a raw control character inside a string
    lambda text: text.decode("utf-8", "replace").encode(),  # names cut in the middle of a character
    lambda text: _LONE_BACKSLASH.sub(rb"\\\\", text),  # Windows paths written without escaping
    lambda text: _NOT_A_NUMBER.sub(b"null", text),  # C++ prints nan, -nan and inf
    lambda text: _TRAILING_COMMA.sub(b"", text),
    lambda text: _NAME_VALUE.sub(_escape_quotes, text),  # quotes inside a name, not escaped
)


def first_readable(text: bytes, decode: Callable[[bytes], Any]) -> Any:
    """What ``decode`` makes of the text after the fewest repairs; None when none helps."""
    for repair in (bytes, *_LADDER):
        text = repair(text)
        try:
            return decode(text)
        except DECODE_ERRORS:
            continue
    return None
