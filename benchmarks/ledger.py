"""Seconds to read, match, sweep and view a run: python benchmarks/ledger.py --ranks 64 --steps 200 --collectives 30"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from narrows.reducers.collectives import match_collectives
from narrows.reducers.lateness import lateness
from narrows.reducers.ledger import build_ledger
from narrows.reducers.rundir import read_run
from narrows.reducers.units import units
from narrows.reducers.views import critical_path, least_waiting_rank, rank_mean

T = TypeVar("T")
KERNEL_NS = 200_000
SERVICE_NS = 150_000


def write_run(path: Path, num_ranks: int, num_steps: int, num_collectives: int) -> int:
    """A data-parallel run with overlapped collectives; returns its number of intervals (spans and collectives)."""
    draw = random.Random(7)
    ends = [[0] * num_collectives for _ in range(num_steps)]
    enters = [[[0] * num_collectives for _ in range(num_steps)] for _ in range(num_ranks)]
    starts = [[0] * (num_steps + 1) for _ in range(num_ranks)]
    for step in range(num_steps):
        for rank in range(num_ranks):
            at = starts[rank][step]
            for index in range(num_collectives):
                at += KERNEL_NS + draw.randrange(20_000)
                enters[rank][step][index] = at
        end = 0
        for index in range(num_collectives):
            end = max(end, *(enters[rank][step][index] for rank in range(num_ranks))) + SERVICE_NS
            ends[step][index] = end
        for rank in range(num_ranks):
            starts[rank][step + 1] = end + draw.randrange(10_000)
    path.mkdir()
    manifest = {"schema": 1, "kind": "manifest", "run": path.name, "hosts": {"n0": {"boot_id": "b"}}}
    (path / "manifest.json").write_text(json.dumps(manifest))
    for rank in range(num_ranks):
        _write_rank(path / "ranks" / f"{rank:05d}", rank, num_ranks, starts[rank], enters[rank], ends)
    return num_ranks * num_steps * (2 * num_collectives + 1)


def _write_rank(
    folder: Path, rank: int, num_ranks: int, starts: list[int], enters: list[list[int]], ends: list[list[int]]
) -> None:
    folder.mkdir(parents=True)
    head = {"schema": 1, "rank": rank, "host": "n0"}
    steps, calls = [head | {"kind": "steps"}], [head | {"kind": "collectives"}]
    calls.append({"group": "dp", "ranks": list(range(num_ranks))})
    for step, entered in enumerate(enters):
        start = starts[step]
        bounds = [start, *entered]
        spans = [["backward", a - start, b - start] for a, b in zip(bounds, entered, strict=False)]
        spans.append(["wait", entered[-1] - start, ends[step][-1] - start])
        line = {"step": step, "start_ns": start, "end_ns": starts[step + 1], "spans_ns": spans}
        steps.append(line | {"useful": {"valid_tokens": 4096, "samples": 4}})
        for index, enter in enumerate(entered):
            seq = step * len(entered) + index
            call = {"group": "dp", "seq": seq, "op": "all_reduce", "payload_bytes": 1 << 20, "step": step}
            calls.append(call | {"enter_ns": enter, "end_ns": ends[step][index]})
    for kind, lines in {"steps": steps, "collectives": calls, "clock": [head | {"kind": "clock"}]}.items():
        (folder / f"{kind}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "rank.json").write_text(json.dumps(head | {"kind": "rank"}))


def timed(name: str, num_intervals: int, work: Callable[[], T]) -> T:
    began = time.perf_counter()
    result = work()
    wall_s = time.perf_counter() - began
    print(f"{name:22} {wall_s:8.3f} s {wall_s / num_intervals * 1e9:10.0f} ns an interval")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--collectives", type=int, default=30)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        num = write_run(path, chosen.ranks, chosen.steps, chosen.collectives)
        print(f"{chosen.ranks} ranks x {chosen.steps} steps x {chosen.collectives} collectives: {num:,} intervals")
        run = timed("read", num, lambda: read_run(path))
        timed("match", num, lambda: match_collectives(run))
        ledger = timed("match and sweep", num, lambda: build_ledger(run))
        path_view = timed("critical path", num, lambda: critical_path(ledger))
        timed("rank mean", num, lambda: rank_mean(ledger))
        timed("least-waiting rank", num, lambda: least_waiting_rank(ledger))
        timed("lateness", num, lambda: lateness(ledger))
        timed("units", num, lambda: units(path_view, ledger, "p25"))


if __name__ == "__main__":
    main()
