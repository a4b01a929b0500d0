"""Run directories of any size, written fast: a data-parallel step with overlapped collectives on many hosts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

RANKS_PER_HOST = 8
KERNEL_NS = 200_000
SERVICE_NS = 150_000
BOOT_NS = 40_000_000_000_000
UNIX_NS = 1_790_000_000_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How large a run is; `records` counts its collectives over all ranks."""

    ranks: int
    steps: int
    collectives: int

    @property
    def records(self) -> int:
        return self.ranks * self.steps * self.collectives

    def __str__(self) -> str:
        return f"{self.ranks:,} x {self.steps} x {self.collectives}"


def write_run(path: Path, shape: Shape, seed: int = 7) -> None:
    """Writes the run directory; hosts of 8 ranks have their own boots, so that the reader has to align their clocks."""
    draw = np.random.Generator(np.random.PCG64(seed))
    hosts = -(-shape.ranks // RANKS_PER_HOST)
    clock_ns = draw.integers(0, BOOT_NS, hosts)
    error_ns = draw.integers(-200_000, 200_000, hosts)
    start_RS, enter_RSC, end_SC = _times(shape, draw)
    path.mkdir(parents=True)
    names = [f"host-{host:04d}" for host in range(hosts)]
    manifest = {
        "schema": 1,
        "kind": "manifest",
        "run": path.name,
        "hosts": {name: {"boot_id": name} for name in names},
        "groups": {"dp": list(range(shape.ranks))},
    }
    (path / "manifest.json").write_text(json.dumps(manifest))
    group = json.dumps({"group": "dp", "ranks": list(range(shape.ranks))}) + "\n"
    for rank in range(shape.ranks):
        host = rank // RANKS_PER_HOST
        folder = path / "ranks" / f"{rank:05d}"
        folder.mkdir(parents=True)
        head = {"schema": 1, "rank": rank, "host": names[host]}
        (folder / "rank.json").write_text(json.dumps(head | {"kind": "rank"}))
        own_ns = int(clock_ns[host])
        texts = {
            "steps": _step_lines(start_RS[rank] + own_ns, enter_RSC[rank] + own_ns, end_SC + own_ns, draw),
            "collectives": group + _call_lines(enter_RSC[rank] + own_ns, end_SC + own_ns, draw),
            "clock": "".join(
                f'{{"monotonic_ns":{at + own_ns},"unix_ns":{UNIX_NS + at + int(error_ns[host])}}}\n'
                for at in range(0, 10_000_000_000, 1_000_000_000)
            ),
        }
        for kind, text in texts.items():
            (folder / f"{kind}.jsonl").write_text(json.dumps(head | {"kind": kind}) + "\n" + text)


def _times(shape: Shape, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Starts of all ranks' steps, their enters, and the collectives' common ends, on one true clock.

    A collective starts when its last member has entered and the one before it has ended.
    """
    start_RS = np.zeros((shape.ranks, shape.steps + 1), dtype=np.int64)
    enter_RSC = np.empty((shape.ranks, shape.steps, shape.collectives), dtype=np.int64)
    end_SC = np.empty((shape.steps, shape.collectives), dtype=np.int64)
    start_RS[:, 0] = draw.integers(0, 10_000, shape.ranks)
    for step in range(shape.steps):
        late_RC = draw.integers(0, 20_000, (shape.ranks, shape.collectives))
        enter_RSC[:, step] = start_RS[:, step, None] + np.cumsum(late_RC + KERNEL_NS, axis=1)
        end = 0
        for index, last in enumerate(enter_RSC[:, step].max(axis=0).tolist()):
            end = max(end, last) + SERVICE_NS
            end_SC[step, index] = end
        start_RS[:, step + 1] = end + draw.integers(10_000, 20_000, shape.ranks)
    return start_RS, enter_RSC, end_SC


def _step_lines(start_S: np.ndarray, enter_SC: np.ndarray, end_SC: np.ndarray, draw: np.random.Generator) -> str:
    """A backward span up to each collective, then the wait for the last one."""
    steps, collectives = enter_SC.shape
    spans = '["backward",%d,%d],' * collectives + '["wait",%d,%d]'
    line = (
        '{"step":%d,"start_ns":%d,"end_ns":%d,"spans_ns":[' + spans + '],"useful":{"valid_tokens":%d,"samples":4},'
        '"loss":%.4f}\n'
    )
    bounds = np.concatenate([start_S[:-1, None], enter_SC], axis=1) - start_S[:-1, None]
    columns = [np.arange(steps), start_S[:-1], start_S[1:]]
    for index in range(collectives):
        columns += [bounds[:, index], bounds[:, index + 1]]
    columns += [bounds[:, -1], end_SC[:, -1] + 5_000 - start_S[:-1], draw.integers(3_000, 4_096, steps)]
    whole = np.column_stack(columns).tolist()
    losses = draw.random(steps).tolist()
    return "".join(line % (*row, loss) for row, loss in zip(whole, losses, strict=True))


def _call_lines(enter_SC: np.ndarray, end_SC: np.ndarray, draw: np.random.Generator) -> str:
    """Every member leaves a little after the service ended, each at its own time."""
    steps, collectives = enter_SC.shape
    call = '{"group":"dp","seq":%d,"op":"all_reduce","payload_bytes":1048576,"step":%d,"enter_ns":%d,"end_ns":%d}\n'
    columns = np.stack(
        [
            np.arange(steps * collectives),
            np.repeat(np.arange(steps), collectives),
            enter_SC.ravel(),
            end_SC.ravel() + draw.integers(0, 5_000, steps * collectives),
        ],
        axis=1,
    )
    return (call * len(columns)) % tuple(columns.ravel().tolist())
