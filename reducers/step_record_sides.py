"""One side of a comparison made of step records: the steps that every rank has, as rectangles of ranks by steps.

Shape legend: R ranks in order of their numbers, T common steps in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from narrows.inquiry.errors import RunDirectoryError
from narrows.reducers.jsonlines import read_bytes
from narrows.reducers.readers.common import unpacked
from narrows.reducers.readers.step_records import PARTS, StepRecords, read_step_records
from narrows.reducers.records import F64, I64

WARMUP_STEPS = 10
"""Steps left out at the start of a run, or a quarter of it where it is short."""
_APART = 0.05
"""Ranks whose steps differ by more than this share do not end their steps together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """Times in ms: ``step_ms_RT``, and of each part that every record of every rank has, ``parts_ms[part]`` (RT).

    ``job_ms_T`` is the step of all, the median over ranks, which end it together. ``hosts`` are by rank, "" where no
    record names one. Steps that a rank lacks are left out for all and counted in ``losses``. The first steps are left
    out as warm-up.
    """

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    steps_T: I64
    step_ms_RT: F64
    parts_ms: dict[str, F64]
    job_ms_T: F64
    losses: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFile:
    """The records of one file. ``torn``: its gzip is cut, and they are what came before the cut."""

    place: str
    records: StepRecords
    torn: bool = False


def record_file(path: Path) -> RecordFile:
    """The records that ``path`` holds, plain or gzip.

    Raises ``UnreadableError`` for a file that holds none; ``RunDirectoryError`` for one that cannot be opened.
    """
    data, torn = unpacked(read_bytes(path) or b"", str(path))
    return RecordFile(place=str(path), records=read_step_records(data, str(path)), torn=torn)


def step_table(files: Sequence[RecordFile], name: str) -> StepTable:
    """The table of one run, one file a rank.

    Raises ``RunDirectoryError`` for files without a rank's number, two of one rank, or no step that all ranks have.
    """
    records = _by_rank(files, name)
    common = sorted(set.intersection(*({one.step for one in own.steps} for own in records.values())))
    steady = common[min(WARMUP_STEPS, len(common) // 4) :]
    if not steady:
        raise RunDirectoryError(f"{name}: no step is recorded on every rank; give the files of one run")
    columns = {rank: {one.step: one for one in own.steps} for rank, own in records.items()}

    def table(field: str) -> F64:
        return np.array([[getattr(own[step], field) for step in steady] for own in columns.values()], dtype=np.float64)

    parts = [part for part in PARTS if all(part in own.parts for own in records.values())]
    step_ms = table("step_ms")
    return StepTable(
        ranks=tuple(records),
        hosts=tuple(own.host or "" for own in records.values()),
        steps_T=np.array(steady, dtype=np.int64),
        step_ms_RT=step_ms,
        parts_ms={part: table(part) for part in parts},
        job_ms_T=np.asarray(np.median(step_ms, axis=0), dtype=np.float64),
        losses=tuple(_losses(files, records, len(common))),
        limits=tuple(_limits(records, parts, step_ms)),
    )


def _by_rank(files: Sequence[RecordFile], name: str) -> dict[int, StepRecords]:
    found: dict[int, RecordFile] = {}
    for file in files:
        rank = file.records.rank
        if rank is None:
            raise RunDirectoryError(f"{file.place}: no record names its rank; write a rank into every line")
        if rank in found:
            raise RunDirectoryError(
                f"{file.place} and {found[rank].place} are both of rank {rank}; give the files of one run"
            )
        found[rank] = file
    if not found:
        raise RunDirectoryError(f"{name}: holds no step records; give a folder of them, one file a rank")
    return {rank: found[rank].records for rank in sorted(found)}


def _losses(files: Sequence[RecordFile], records: dict[int, StepRecords], num_common: int) -> list[str]:
    found = [f"{file.place}: its gzip is torn; what came before the cut was read" for file in files if file.torn]
    for file in files:
        unread = file.records.not_understood
        if unread.count:
            first = unread.first[0]
            found.append(f"{file.place}: {unread.count} lines not understood; line {first.line}: {first.why}")
    every = {one.step for own in records.values() for one in own.steps}
    if len(every) > num_common:
        found.append(f"{len(every) - num_common} of {len(every)} steps are not on every rank and were left out")
    sizes = [own.world_size for own in records.values() if own.world_size is not None]
    if sizes and max(sizes) != len(records):
        found.append(f"the records speak of {max(sizes)} ranks; {len(records)} are here")
    return found


def _limits(records: dict[int, StepRecords], parts: Sequence[str], step_ms: F64) -> list[str]:
    found = []
    some = {
        part for own in records.values() for part in PARTS if any(getattr(one, part) is not None for one in own.steps)
    }
    if partly := sorted(some - set(parts)):
        found.append(f"{', '.join(partly)}: not in every record, so part of the remainder")
    middle = np.median(step_ms, axis=0)
    if float(np.median(np.abs(step_ms - middle) / middle)) > _APART:
        found.append("the ranks' steps are not of one length: they may not belong together, or not be synchronised")
    return found
