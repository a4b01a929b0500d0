"""CPU seconds and peak memory of each part from a run directory to its ledger and views, at growing sizes.

python benchmarks/scale.py writes runs of 512 to 4,096 ranks, compacts them, and reads each in a fresh process, as JSON
lines and compacted; the last line extrapolates to 16,384 ranks. `--ranks 512 --steps 500` measures one size.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from scale_run import Shape, write_run

from narrows.reducers.alignment import align
from narrows.reducers.collectives import match_collectives
from narrows.reducers.compaction import NAME, compact_run
from narrows.reducers.lateness import lateness
from narrows.reducers.ledger import Ledger, build_ledger
from narrows.reducers.records import Run
from narrows.reducers.rundir import read_run
from narrows.reducers.units import units, work
from narrows.reducers.views import critical_path, least_waiting_rank, rank_mean

T = TypeVar("T")
PARTS = ("read", "align clocks", "match", "sweep", "critical path", "other views", "units")
SHAPES = ((512, 500), (2048, 125), (4096, 62))
EXTRAPOLATED = 16_384


class Parts:
    """CPU seconds of all threads, a part at a time."""

    def __init__(self) -> None:
        self.cpu_s: dict[str, float] = {}

    def timed(self, part: str, task: Callable[[], T]) -> T:
        began = time.process_time()
        result = task()
        self.cpu_s[part] = time.process_time() - began
        return result


def measure(path: Path) -> dict[str, object]:
    """The parts of one run; matching alone is inside the sweep's time as well, and taken out of it."""
    parts = Parts()
    ledger = _ledger(parts, path)
    path_view = parts.timed("critical path", lambda: critical_path(ledger))
    parts.timed("other views", lambda: (rank_mean(ledger), least_waiting_rank(ledger), lateness(ledger)))
    parts.timed("units", lambda: (units(path_view, ledger, "p25"), work(ledger)))
    assert (ledger.account_ns_RSA.sum(axis=2) == ledger.end_ns_RS - ledger.start_ns_RS).all()
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"cpu_s": parts.cpu_s, "peak_mb": peak_mb}


def _aligned(parts: Parts, path: Path) -> Run:
    """The aligned run; the one on the hosts' own clocks is gone when this returns."""
    read = parts.timed("read", lambda: read_run(path))
    return parts.timed("align clocks", lambda: align(read))


def _ledger(parts: Parts, path: Path) -> Ledger:
    run = _aligned(parts, path)
    parts.timed("match", lambda: len(match_collectives(run).rows))
    ledger = parts.timed("sweep", lambda: build_ledger(run))
    parts.cpu_s["sweep"] -= parts.cpu_s["match"]
    return ledger


def measured_apart(path: Path) -> dict[str, object]:
    command = [sys.executable, __file__, "--measure", str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def show(label: str, found: dict[str, object], records: int) -> float:
    """Prints one line of the table; the total CPU seconds."""
    cpu_s = found["cpu_s"]
    total_s = sum(cpu_s.values())
    cells = " | ".join(f"{cpu_s[part]:.2f}" for part in PARTS)
    per_record_ns = total_s / records * 1e9
    print(f"| {label} | {cells} | {total_s:.1f} | {per_record_ns:,.0f} | {found['peak_mb']:,.0f} |", flush=True)
    return total_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, help="measure this number of ranks alone")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--collectives", type=int, default=30)
    parser.add_argument("--lines", action="store_true", help="measure the JSON lines at every size, not at the first")
    parser.add_argument("--folder", type=Path, help="where the runs are written, and removed again")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        print(json.dumps(measure(chosen.measure)))
        return
    print(f"load {os.getloadavg()[0]:.1f}")
    print(f"| ranks x steps x collectives | {' | '.join(PARTS)} | CPU s | ns a record | peak MB |")
    print("|---" * (len(PARTS) + 4) + "|")
    sizes = ((chosen.ranks, chosen.steps),) if chosen.ranks else SHAPES
    totals = []
    for place, (ranks, steps) in enumerate(sizes):
        shape = Shape(ranks=ranks, steps=steps, collectives=chosen.collectives)
        folder = Path(tempfile.mkdtemp(dir=chosen.folder))
        try:
            totals.append((ranks * steps, one_size(folder / "run", shape, lines=chosen.lines or not place), ranks))
        finally:
            shutil.rmtree(folder)
    if len(totals) > 1:
        extrapolate(totals, chosen.collectives)


def one_size(path: Path, shape: Shape, *, lines: bool) -> float:
    write_run(path, shape)
    if lines:
        show(f"{shape}, JSON lines", measured_apart(path), shape.records)
    began = time.process_time()
    compacted = compact_run(path)
    size = sum(file.stat().st_size for file in path.glob(f"ranks/*/{NAME}"))
    compact_s = time.process_time() - began
    total_s = show(f"{shape}, compacted", measured_apart(path), shape.records)
    print(f"<!-- compacting: {compact_s:.1f} s of CPU, {compacted.bytes_before / 1e6:,.0f} to {size / 1e6:,.0f} MB -->")
    return total_s


def extrapolate(totals: list[tuple[int, float, int]], collectives: int) -> None:
    """By the line through all sizes, in records and in ranks."""
    table = np.array([(rank_steps * collectives, ranks) for rank_steps, _, ranks in totals], dtype=np.float64)
    cost, *_ = np.linalg.lstsq(table, np.array([total_s for _, total_s, _ in totals]), rcond=None)
    steps = 100
    total_s = float(np.array([EXTRAPOLATED * steps * collectives, EXTRAPOLATED]) @ cost)
    print(f"extrapolated: {EXTRAPOLATED:,} x {steps} x {collectives}: {total_s:.0f} s of CPU")


if __name__ == "__main__":
    main()
