"""Reading one JSON-lines file of a run directory: header, typed lines, and a torn end dropped and counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from narrows.inquiry.errors import RunDirectoryError

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = 1

T = TypeVar("T")


class StepLine(msgspec.Struct, gc=False):
    """One line of steps.jsonl. A field that this reader does not know is ignored."""

    step: int
    start_ns: int
    end_ns: int
    segment: int = 0
    pair: int | None = None
    batch: int | None = None
    warmup: bool = False
    spans_ns: list[tuple[str, int, int]] = []
    parts_us: dict[str, float | None] = {}
    useful: dict[str, float | None] = {}
    memory: dict[str, Any] = {}
    loss: float | None = None
    grad_norm: float | None = None


class CollectiveLine(msgspec.Struct, gc=False):
    """One line of collectives.jsonl: a group's members (``ranks``), or a collective (``seq``)."""

    group: str
    ranks: list[int] | None = None
    seq: int | None = None
    op: str = ""
    payload_bytes: int | None = None
    enter_ns: int | None = None
    end_ns: int | None = None
    step: int | None = None
    segment: int | None = None
    device_us: float | None = None
    p2p: bool = False
    peer: int | None = None


class ClockLine(msgspec.Struct, gc=False):
    """One line of clock.jsonl."""

    monotonic_ns: int
    unix_ns: int


_STEP_LINES = msgspec.json.Decoder(StepLine)
_COLLECTIVE_LINES = msgspec.json.Decoder(CollectiveLine)
_CLOCK_LINES = msgspec.json.Decoder(ClockLine)


class Lines:
    """The complete lines of one file: ``header`` (empty where the file ends inside it), body, and ``torn``, 0 or 1."""

    __slots__ = ("_body", "_place", "header", "torn")

    def __init__(self, data: bytes, place: str, kind: str) -> None:
        data, self.torn = _without_torn_end(data)
        head, _, self._body = data.partition(b"\n")
        self._place = place
        self.header = check_header(head, place, kind) if head.strip() else {}

    def steps(self) -> list[StepLine]:
        """Raises RunDirectoryError naming the first line that is not a step record."""
        return self._decode(_STEP_LINES)

    def collectives(self) -> list[CollectiveLine]:
        """Raises RunDirectoryError naming the first line that is neither a group nor a collective."""
        return self._decode(_COLLECTIVE_LINES)

    def clock(self) -> list[ClockLine]:
        """Raises RunDirectoryError naming the first line that is not a pair of clock readings."""
        return self._decode(_CLOCK_LINES)

    def _decode(self, decoder: msgspec.json.Decoder[T]) -> list[T]:
        try:
            return decoder.decode_lines(self._body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._damage(decoder, error) from error

    def _damage(self, decoder: msgspec.json.Decoder[Any], error: Exception) -> RunDirectoryError:
        for number, line in enumerate(self._body.split(b"\n"), start=2):
            if not line.strip():
                continue
            try:
                decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as found:
                return damaged(f"{self._place}:{number}", str(found))
        return damaged(self._place, str(error))


def _without_torn_end(data: bytes) -> tuple[bytes, int]:
    """The data up to its last complete line. A last line without its newline counts when it is a whole object."""
    cut = data.rfind(b"\n") + 1
    tail = data[cut:]
    if not tail:
        return data, 0
    try:
        msgspec.json.decode(tail, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return data[:cut], 1
    return data, 0


def check_header(data: bytes, place: str, kind: str) -> dict[str, Any]:
    """The first object of a file, whose schema this reader knows and whose kind is the expected one.

    Raises RunDirectoryError when it is not JSON, of a newer schema, or of another kind.
    """
    try:
        header = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise damaged(f"{place}:1", str(error)) from error
    schema = header.get("schema")
    if not isinstance(schema, int):
        raise damaged(f"{place}:1", f"its first object says schema {schema!r}; an integer was expected")
    if schema > SCHEMA:
        raise RunDirectoryError(
            f"{place}: written in schema {schema}, this reader knows up to {SCHEMA}; update narrows to read it"
        )
    if header.get("kind") != kind:
        raise damaged(f"{place}:1", f"its first object says kind {header.get('kind')!r}; {kind!r} was expected")
    return header


def damaged(place: str, why: str) -> RunDirectoryError:
    """An error for a place that no torn write explains."""
    return RunDirectoryError(f"{place}: damaged: {why}; restore the file or leave the run out")


def read_bytes(path: Path) -> bytes | None:
    """The file's bytes, or None where there is no such file. Raises RunDirectoryError where it cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunDirectoryError(
            f"{path}: cannot be read: {error.strerror}; check the path and its permissions"
        ) from error
