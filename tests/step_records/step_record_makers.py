"""Step records of generated jobs: ranks that end every step together, and a planted fault. Times in ms.

Shape legend: R ranks, T steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from narrows.reducers.readers.step_records import PARTS, StepRecord, StepRecords
from narrows.reducers.step_record_sides import RecordFile

F64 = NDArray[np.float64]


def noise(draw: np.random.Generator, rows: int, steps: int, phi: float = 0.5) -> F64:
    """Autocorrelated noise of unit variance."""
    found = draw.standard_normal((rows, steps))
    for at in range(1, steps):
        found[:, at] = phi * found[:, at - 1] + (1 - phi**2) ** 0.5 * found[:, at]
    return found


def job(
    seed: int = 0,
    *,
    ranks: int = 8,
    steps: int = 400,
    first: int = 0,
    own: Iterable[tuple[Iterable[int], tuple[float, int, int]]] = (),
    shared: tuple[float, int, int] = (0.0, 0, 0),
    comm: float = 6.0,
    waits_in: str = "compute_ms",
    moved_to: str = "",
    stragglers: float = 0.0,
    hosts: tuple[str, ...] = (),
    phi: float = 0.5,
) -> list[RecordFile]:
    """A job of 80 ms a step, with a checkpoint every 100 steps.

    ``own`` gives ranks, and (loss, first step, last step + 1) of time of their own; ``shared`` the same for all inside
    compute. ``waits_in`` is the part in which ranks wait for each other. ``moved_to`` is the part that times the loss;
    none by default. ``stragglers``: at every second step some rank is late by this much, another every 60 steps.
    """
    draw = np.random.default_rng(seed)
    busy_RT = 1.5 + 0.2 * draw.random((ranks, 1)) + 0.1 * np.abs(noise(draw, ranks, steps, phi))
    lost_RT = np.zeros((ranks, steps))
    for members, (loss, start, stop) in own:
        lost_RT[list(members), start:stop] += loss
    for start in range(0, steps, 60):
        lost_RT[draw.integers(ranks), start : start + 60 : 2] += stragglers
    shared_T = 70.0 + 0.8 * noise(draw, 1, steps, phi)[0]
    shared_T[shared[1] : shared[2]] += shared[0]
    shared_T[::100] += 240.0
    local_RT = busy_RT + lost_RT
    step_T = local_RT.max(axis=0) + shared_T + comm
    times = {"data_ms": np.full(local_RT.shape, 1.0), "compute_ms": np.broadcast_to(shared_T, local_RT.shape).copy(),
             "comm_ms": np.full(local_RT.shape, comm), "wait_ms": np.zeros(local_RT.shape)}  # fmt: skip
    times[waits_in] = times[waits_in] + local_RT.max(axis=0) - local_RT
    if moved_to:
        times[moved_to] = times[moved_to] + lost_RT
    return [
        _file(rank, first, step_T, {name: table[rank] for name, table in times.items()}, hosts[rank] if hosts else None)
        for rank in range(ranks)
    ]


def _file(rank: int, first: int, step_T: F64, times: dict[str, F64], host: str | None) -> RecordFile:
    rows = [
        StepRecord(step=first + at, step_ms=float(step), **{name: float(values[at]) for name, values in times.items()})
        for at, step in enumerate(step_T)
    ]
    records = StepRecords(
        steps=tuple(rows), parts=PARTS, median_step_ms=float(np.median(step_T)), rank=rank, host=host
    )  # fmt: skip
    return RecordFile(place=f"rank_{rank}.jsonl", records=records)


def as_lines(file: RecordFile) -> str:
    """The file's records as a program would have written them."""
    rows: list[dict[str, Any]] = []
    for one in file.records.steps:
        row = {"step": one.step, "step_ms": one.step_ms, **{part: getattr(one, part) for part in PARTS}}
        rows.append(row | {"rank": file.records.rank, "host": file.records.host})
    return "".join(json.dumps(row) + "\n" for row in rows)


def written(folder: Path, files: list[RecordFile]) -> Path:
    folder.mkdir(parents=True)
    for file in files:
        (folder / file.place).write_text(as_lines(file), encoding="utf-8")
    return folder
