"""What recording costs the training thread: ns for a span, a step, a collective, and bytes for each.

Run it on an otherwise idle core: ``python benchmarks/recorder.py``. Figures are medians over blocks of calls.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import narrows.instruments as narrows
from narrows.instruments import Recorder

BLOCKS = 200
CALLS = 100


def cost_ns(call: Callable[[], object], between: Callable[[], object] = lambda: None) -> float:
    """Median over blocks of the mean time of one call, ns. ``between`` runs after each block, outside the clock."""
    blocks = []
    for _ in range(BLOCKS):
        begin = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        blocks.append((time.perf_counter_ns() - begin) / CALLS)
        between()
    return statistics.median(blocks)


def span(recorder: Recorder) -> None:
    with recorder.span("forward"):
        pass


def collective(recorder: Recorder) -> None:
    recorder.enter("all_reduce", group="dp", payload_bytes=1 << 20).end()


def step_of_six(recorder: Recorder) -> None:
    """A step as a training loop records it: six spans and the step's end."""
    for name in ("input", "forward", "loss", "backward", "wait", "optimizer"):
        now = time.monotonic_ns()
        recorder.add_span(name, now, now + 1)
    recorder.step(useful={"samples": 32}, loss=1.0)


def main() -> None:
    """Prints one line for each operation."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = narrows.start(Path(folder) / "run")
        recorder.begin()
        rows = {
            "span, as a context manager": cost_ns(lambda: span(recorder), recorder.step),
            "add_span": cost_ns(lambda: recorder.add_span("forward", 1, 2), recorder.step),
            "step with six spans": cost_ns(lambda: step_of_six(recorder)),
            "collective, enter and end": cost_ns(lambda: collective(recorder)),
        }
        recorder.close()
        rank = Path(folder) / "run" / "ranks" / "00000"
        sizes = {path.name: path.stat().st_size for path in rank.glob("*.jsonl")}
    for name, nanoseconds in rows.items():
        print(f"{name:30s} {nanoseconds:8.0f} ns")
    print(f"{'bytes of a collective':30s} {sizes['collectives.jsonl'] / (BLOCKS * CALLS):8.0f}")
    print(f"python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
