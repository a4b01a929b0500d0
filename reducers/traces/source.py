"""The bytes of a trace file, inflated, in pieces. What a file is follows from its first bytes, never from its name."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol

from narrows.reducers.traces.errors import TraceError

GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 31  # zlib: 15 bits of window, plus 16 for a gzip header
_READ_BYTES = 1 << 16
_INFLATED_BYTES = 1 << 18  # at once: traces inflate to 13 to 29 times their size


class _Inflater(Protocol):
    """The part of ``zlib.decompressobj()`` that is used here."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def _inflaters() -> tuple[Callable[[], _Inflater], tuple[type[Exception], ...]]:
    """Whatever inflates fastest here, and the errors that it raises. isal needs about a third of zlib's CPU time."""
    try:
        isal = importlib.import_module("isal.isal_zlib")
    except ImportError:
        return lambda: zlib.decompressobj(_GZIP_WINDOW), (zlib.error,)
    return lambda: isal.decompressobj(_GZIP_WINDOW), (getattr(isal, "error", zlib.error), zlib.error)


class Source:
    """An open trace file, read front to back. ``torn`` is true once a compressed stream ended before its end.

    ``num_bytes`` counts what was read after inflating.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file: BinaryIO = path.open("rb", buffering=0)
        except OSError as error:
            raise TraceError(f"{path}: cannot be opened: {error.strerror}") from error
        try:
            magic = self._file.read(len(GZIP_MAGIC))
            self._file.seek(0)
        except OSError as error:
            self._file.close()
            raise TraceError(f"{path}: cannot be read: {error.strerror}") from error
        self.compressed = magic == GZIP_MAGIC
        self.torn = False
        self.num_bytes = 0
        self._new_inflater, self._errors = _inflaters()
        self._inflater = self._new_inflater()
        self._input = b""
        self._ready = memoryview(b"")
        self._ended = False

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def read_into(self, view: memoryview) -> int:
        """How many bytes were put at the start of ``view``; 0 only at the end."""
        count = self._read_inflated(view) if self.compressed else self._file.readinto(view)  # type: ignore[attr-defined]  # a raw file
        self.num_bytes += count
        return int(count)

    def _read_inflated(self, view: memoryview) -> int:
        while not self._ready and not self._ended:
            self._ready = memoryview(self._inflate())
        count = min(len(view), len(self._ready))
        view[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _inflate(self) -> bytes:
        data = self._input or self._file.read(_READ_BYTES)
        self._input = b""
        if not data:
            self._ended = True
            self.torn = not self._inflater.eof
            return b""
        try:
            inflated = self._inflater.decompress(data, _INFLATED_BYTES)
        except self._errors:
            # What was inflated before the damage has been handed out; behind it nothing can be told.
            self._ended = self.torn = True
            return b""
        if self._inflater.eof:
            self._next_member(self._inflater.unused_data)
        else:
            self._input = self._inflater.unconsumed_tail
        return inflated

    def _next_member(self, rest: bytes) -> None:
        """Several gzip members may stand in one file, each a stream of its own; zero bytes may pad the last."""
        rest = (rest or self._file.read(_READ_BYTES)).lstrip(b"\0")
        if not rest:
            self._ended = True
            return
        self._input = rest
        self._inflater = self._new_inflater()
