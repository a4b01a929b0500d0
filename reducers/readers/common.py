"""What every reader of foreign files shares: the error, the list of what was not understood, and text as lines."""

from __future__ import annotations

import dataclasses
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from narrows.inquiry.errors import NarrowsError

KEPT = 40  # what was not understood is counted in full and shown up to here
TEXT_SHOWN = 160
_GZIP = b"\x1f\x8b"
_LAYERS = 3  # of gzip within gzip; a gzip can be made that unpacks to itself
LARGEST = 1 << 30  # bytes of a decompressed file; more is a mistake or an attack

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Za-z0-9]")
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


class UnreadableError(NarrowsError):
    """A file cannot be read as the kind that it is taken for. Names the file, the place, the rule, the next move."""


class UnknownKindError(UnreadableError):
    """A file is of none of the kinds that are read."""


class UnsafePickleError(UnreadableError):
    """A pickle asks for more than plain containers, strings and numbers. Nothing in it was run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """One place that was not understood: ``line`` counts from 1, 0 where there are no lines."""

    line: int
    text: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotUnderstood:
    """``count`` places in all; ``first`` holds the first of them."""

    count: int = 0
    first: tuple[Unread, ...] = ()


@dataclass(slots=True, kw_only=True)
class UnreadList:
    """Collects while a reader runs; ``done`` is what the reading carries."""

    count: int = 0
    kept: list[Unread] = field(default_factory=list)

    def add(self, line: int, text: str, why: str) -> None:
        self.count += 1
        if len(self.kept) < KEPT:
            self.kept.append(Unread(line=line, text=shown(text), why=why))

    def done(self) -> NotUnderstood:
        return NotUnderstood(count=self.count, first=tuple(self.kept))


def shown(text: str) -> str:
    """``text`` on one line, printable, cut where it is long."""
    flat = "".join(char if char.isprintable() else " " for char in text).strip()
    return flat if len(flat) <= TEXT_SHOWN else flat[: TEXT_SHOWN - 3] + "..."


def described(value: object) -> str:
    """``value`` as text, a string as it is; never an error, however deep or large it is."""
    if isinstance(value, str):
        return value
    try:
        return repr(value)[:200]
    except (ValueError, RecursionError):  # an integer of thousands of digits, containers within containers
        return f"a {type(value).__name__} too large to show"


def as_text(data: bytes) -> str:
    """UTF-8 (or UTF-16 with its mark); what is not, becomes U+FFFD. ANSI codes are gone, and NULs at either end.

    A host that dies while it writes leaves NULs at the end, a log that is rotated under its writer at the beginning.
    """
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    return _ANSI.sub("", data.decode(encoding, errors="replace").strip("\x00"))


def lines_of(text: str) -> Iterator[tuple[int, str]]:
    """Line numbers as an editor counts them; a carriage return starts a new piece of the same line."""
    for number, line in enumerate(text.split("\n"), start=1):
        for piece in line.split("\r") if "\r" in line else (line,):
            if piece.strip():
                yield number, piece


def number(text: str) -> float | None:
    """The finite number that ``text`` is, thousand separators removed; None where it is not one."""
    text = text.strip()
    if not _NUMBER.fullmatch(text):
        return None
    value = float(text.replace(",", ""))
    return value if math.isfinite(value) else None


def whole(value: object) -> int | None:
    """An integer given as one, or as its digits; None for everything else."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value.strip()):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if -(2**63) <= value < 2**64 else None


def unpacked(data: bytes, name: str) -> tuple[bytes, bool]:
    """``data``, decompressed where it is gzip (or gzip of gzip), and whether the gzip is torn: then what is whole.

    Raises:
        UnreadableError: it is not gzip after all, or larger than ``LARGEST`` when decompressed.
    """
    torn = False
    for _ in range(_LAYERS):
        if data[:2] != _GZIP:
            break
        data, cut = _inflated(data, name)
        torn = torn or cut
    return data, torn


def _inflated(data: bytes, name: str) -> tuple[bytes, bool]:
    parts: list[bytes] = []
    room = LARGEST
    while data[:2] == _GZIP:  # several compressed pieces may follow each other
        inflate = zlib.decompressobj(wbits=31)
        try:
            parts.append(inflate.decompress(data, room))
        except zlib.error as error:
            raise UnreadableError(
                f"{name}: begins as gzip but does not decompress ({error}); copy the file again"
            ) from None
        room -= len(parts[-1])
        if inflate.unconsumed_tail or room <= 0:
            raise UnreadableError(f"{name}: holds more than {LARGEST} bytes; cut it to the part that matters")
        if not inflate.eof:
            return b"".join(parts), True
        data = inflate.unused_data
    return b"".join(parts), bool(data.strip(b"\x00"))


def plain(value: Any) -> Any:
    """JSON values of a reading: dataclasses by field name, and what was not measured is absent, never null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((item.name, getattr(value, item.name)) for item in dataclasses.fields(value))
        return {name: plain(part) for name, part in pairs if part is not None}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items() if part is not None}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return value
