"""Step records: JSON lines that one rank of a training program wrote, one a step, with the step's time and its parts.

``{"step": 7, "step_ms": 81.2, "data_ms": 1.1, "compute_ms": 70.4, "comm_ms": 6.4, "ts": 1790000000.5, "rank": 3}``
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

import msgspec

from narrows.reducers.readers.common import NotUnderstood, UnreadableError, UnreadList, as_text

PARTS = ("data_ms", "compute_ms", "comm_ms", "wait_ms")
"""The parts of a step that a record may time. What of the step is in none of them is its remainder."""
_LARGEST_STEP = 2**53
_LONGEST_MS = 1e9  # over eleven days: a record of that is a mistake
_LOOKED_AT = 20
"""Lines of a file's head among which the first record is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step of one rank. ``unix_s`` is the record's own time stamp; what was not recorded is None."""

    step: int
    step_ms: float
    data_ms: float | None = None
    compute_ms: float | None = None
    comm_ms: float | None = None
    wait_ms: float | None = None
    unix_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecords:
    """The records of one rank in the order of their steps; ``parts`` are those that every record has."""

    steps: tuple[StepRecord, ...]
    parts: tuple[str, ...]
    median_step_ms: float
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    not_understood: NotUnderstood = field(default_factory=NotUnderstood)


class _Line(msgspec.Struct, gc=False):
    step: int
    step_ms: float
    data_ms: float | None = None
    compute_ms: float | None = None
    comm_ms: float | None = None
    wait_ms: float | None = None
    ts: float | None = None
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    hostname: str | None = None
    node_rank: int | None = None

    @property
    def where(self) -> str | None:
        """The host's name, else its number in the job."""
        return self.host or self.hostname or (f"node {self.node_rank}" if self.node_rank is not None else None)


_LINES = msgspec.json.Decoder(_Line)


def looks_like(text: str) -> bool:
    """Whether a record stands among the first lines."""
    head = [line for line in text[:100_000].split("\n") if line.strip()][:_LOOKED_AT]
    return any(isinstance(_decoded(line), _Line) for line in head)


def read_step_records(data: bytes, name: str = "input") -> StepRecords:
    """The records in ``data``, of one rank. A record that cannot be true is left out and counted.

    Raises:
        UnreadableError: there is no record, or there are records of several ranks.
    """
    unread = UnreadList()
    kept: dict[int, _Line] = {}
    for number, text in enumerate(as_text(data).split("\n"), start=1):
        if not text.strip():
            continue
        line = _decoded(text)
        why = line if isinstance(line, str) else _untrue(line, kept)
        if isinstance(line, str) or why:
            unread.add(number, text, why)
        else:
            kept[line.step] = line
    if not kept:
        raise UnreadableError(f"{name}: holds no step record; a line needs at least a whole step and a step_ms above 0")
    lines = [kept[step] for step in sorted(kept)]
    ranks = sorted({line.rank for line in lines if line.rank is not None})
    if len(ranks) > 1:
        shown = ", ".join(map(str, ranks[:8]))
        raise UnreadableError(f"{name}: holds the steps of several ranks ({shown}); give one file a rank")
    first = lines[0]
    return StepRecords(
        steps=tuple(_record(line) for line in lines),
        parts=tuple(part for part in PARTS if all(getattr(line, part) is not None for line in lines)),
        median_step_ms=median(line.step_ms for line in lines),
        rank=ranks[0] if ranks else None,
        world_size=first.world_size,
        host=first.where,
        not_understood=unread.done(),
    )


def _decoded(text: str) -> _Line | str:
    """The line's record, or why it is none."""
    try:
        return _LINES.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        return str(error)


def _untrue(line: _Line, kept: dict[int, _Line]) -> str:
    """Why the record cannot stand beside those before it; empty where it can."""
    if not 0 <= line.step <= _LARGEST_STEP:
        return f"step {line.step} is below 0 or above 2^53"
    if line.step in kept:
        return f"step {line.step} is there already"
    if not 0 < line.step_ms <= _LONGEST_MS:
        return f"step_ms {line.step_ms:g} is not above 0, or above {_LONGEST_MS:g}"
    for part in PARTS:
        value = getattr(line, part)
        if value is not None and not 0 <= value <= _LONGEST_MS:
            return f"{part} {value:g} is below 0 or above {_LONGEST_MS:g}"
    return ""


def _record(line: _Line) -> StepRecord:
    return StepRecord(
        step=line.step,
        step_ms=line.step_ms,
        data_ms=line.data_ms,
        compute_ms=line.compute_ms,
        comm_ms=line.comm_ms,
        wait_ms=line.wait_ms,
        unix_s=line.ts,
    )
