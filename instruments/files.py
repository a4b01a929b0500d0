"""The files of a run directory: appended line by line, or replaced as a whole."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import msgspec

SCHEMA = 1


def plain(value: object) -> object:
    """What JSON can hold of a value that it cannot: a number where the value has one, else its text."""
    item = getattr(value, "item", None)
    if callable(item):
        try:
            return item()
        except (RuntimeError, ValueError, TypeError):
            return str(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    return str(value)


_ENCODER = msgspec.json.Encoder(enc_hook=plain)


def encode(value: object) -> bytes:
    """``value`` as one line of JSON, without its newline. What JSON cannot hold is written as text."""
    return _ENCODER.encode(value)


def replace(path: Path, value: dict[str, Any]) -> None:
    """``path`` holds ``value``, whole: a reader sees the file of before or this one, never a part."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(msgspec.json.format(encode(value), indent=1) + b"\n")
    beside.replace(path)


def read(path: Path) -> dict[str, Any] | None:
    """The object in ``path``, or None where there is none that can be read yet."""
    try:
        value = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    return value if isinstance(value, dict) else None


class LineFile:
    """A file of JSON lines with one writer. A kill at any byte tears at most the last line."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        """The file is created with its header, which says ``schema`` and ``kind``. Raises ``OSError``."""
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.append([{"schema": SCHEMA, **header}])

    def append(self, lines: list[dict[str, Any]]) -> None:
        """All lines are handed to the kernel when this returns. Raises ``OSError``."""
        data = memoryview(b"".join(encode(line) + b"\n" for line in lines))
        while data:
            data = data[os.write(self._descriptor, data) :]

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def append_event(run: Path, fields: dict[str, Any]) -> None:
    """One line is added to the run's ``events.jsonl``, which all ranks share: each line says schema and kind itself.

    The line goes out in one append, so that lines of several ranks do not mix. Raises ``OSError``.
    """
    line = {"schema": SCHEMA, "kind": "event", **clock_pair(), **fields}
    descriptor = os.open(run / "events.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, encode(line) + b"\n")
    finally:
        os.close(descriptor)


def clock_pair() -> dict[str, int]:
    """The host's monotonic and wall clocks at one instant, ns: the closest of three readings."""
    readings = []
    for _ in range(3):
        before = time.monotonic_ns()
        unix_ns = time.time_ns()
        after = time.monotonic_ns()
        readings.append((after - before, (before + after) // 2, unix_ns))
    _, monotonic_ns, unix_ns = min(readings)
    return {"monotonic_ns": monotonic_ns, "unix_ns": unix_ns}
