"""Which faults `narrows compare` names in step records: python benchmarks/slow_runs.py DIR [--generated 200] [--write]

DIR holds a folder a case, with ``healthy/`` and ``regressed/`` step records of the same job, and ``truth.json`` with
each case's ``victim_scope`` (rank, host, or all ranks), ``victim_rank`` and ``fault_steps``, which only the score sees.
The halves of every healthy run are compared both ways too: nothing may be claimed of them. ``--generated N`` adds
generated pairs of runs, N without a fault and N of each planted size. ``--write`` puts the tables into
docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from page import PAGE, put_section

from narrows.reducers.compared_parts import Comparison
from narrows.reducers.compared_records import compare_records
from narrows.reducers.readers.step_records import PARTS, StepRecord, StepRecords
from narrows.reducers.slow_ranks import compute_waits, own_time
from narrows.reducers.step_record_sides import RecordFile, record_file, step_table
from narrows.reducers.step_scan import without_spikes

HEADING = "## Labelled slow runs"
SIZES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.3)
"""Planted losses of one rank, as shares of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One comparison and what is true of it. ``scope`` is rank, host, all ranks, or nothing for two healthy halves."""

    case: str
    scope: str
    victim: int | None
    fault_steps: tuple[int, int] | None
    found: Comparison

    @property
    def named(self) -> str:
        kind, members = self.found.culprit["kind"], self.found.culprit["members"]
        return " ".join([kind, *map(str, members)])

    @property
    def grade(self) -> str:
        """``right``; ``wrong`` where somebody else is named, or anything is claimed of equals; else ``not named``."""
        kind, members = self.found.culprit["kind"], list(self.found.culprit["members"])
        if self.scope == "nothing":
            return "wrong" if self.found.status in ("slower", "faster") or kind != "none" else "right"
        if kind in ("none", "varies"):
            return "not named"
        expected = {"rank": ("rank", [self.victim]), "all ranks": ("all", [])}.get(self.scope)
        right = kind == "host" and len(members) == 1 if expected is None else (kind, members) == expected
        return "right" if right else "wrong"


def read_side(folder: Path) -> list[RecordFile]:
    return [record_file(path) for path in sorted(folder.iterdir())]


def halves(files: Sequence[RecordFile]) -> tuple[list[RecordFile], list[RecordFile]]:
    """The first and the second half of a run's steps."""
    found: tuple[list[RecordFile], list[RecordFile]] = ([], [])
    for file in files:
        middle = len(file.records.steps) // 2
        for half, steps in zip(found, (file.records.steps[:middle], file.records.steps[middle:]), strict=True):
            half.append(replace(file, records=replace(file.records, steps=steps)))
    return found


def outcomes_of(root: Path) -> tuple[list[Outcome], list[Outcome]]:
    """Of every case, its pair of runs; and the halves of its healthy run, both ways."""
    truth: dict[str, dict[str, Any]] = json.loads((root / "truth.json").read_text(encoding="utf-8"))
    pairs: list[Outcome] = []
    equals: list[Outcome] = []
    for case, true in truth.items():
        healthy, regressed = (read_side(root / case / arm) for arm in ("healthy", "regressed"))
        first, last = true["fault_steps"]
        pairs.append(
            Outcome(case=case, scope=true["victim_scope"], victim=true["victim_rank"], fault_steps=(first, last),
                    found=compare_records(healthy, regressed, ("healthy", "regressed")))
        )  # fmt: skip
        one, two = halves(healthy)
        for name, sides in (("first, second", (one, two)), ("second, first", (two, one))):
            equals.append(
                Outcome(case=f"{case}: {name}", scope="nothing", victim=None, fault_steps=None,
                        found=compare_records(*sides, ("one half", "the other")))
            )  # fmt: skip
    return pairs, equals


def rise_within(files: Sequence[RecordFile], *, least: int = 100) -> tuple[float, int]:
    """The rank whose own time rises most within its run, by ms: ``least`` steps or more against the run's others."""
    table = step_table(files, "run")
    own_RT = without_spikes(own_time(table, compute_waits=compute_waits((table, table))).excess_RT)
    count = own_RT.shape[1]
    running = np.cumsum(np.pad(own_RT, ((0, 0), (1, 0))), axis=1)
    rises = np.full(len(own_RT), -np.inf)
    for length in range(least, count - least + 1, 10):
        inside = running[:, length:] - running[:, :-length]
        apart = inside / length - (running[:, -1:] - inside) / (count - length)
        rises = np.maximum(rises, apart.max(axis=1))
    at = int(rises.argmax())
    return float(rises[at]), table.ranks[at]


def within(root: Path, pairs: Sequence[Outcome]) -> str:
    """Why the unnamed are not named from their own run alone: ranks of healthy runs rise as much."""
    healthy = max((*rise_within(read_side(root / one.case / "healthy")), one.case) for one in pairs)
    told = []
    for one in pairs:
        if one.grade == "not named":
            rise, rank = rise_within(read_side(root / one.case / "regressed"))
            told.append(
                f"rank {rank} of {one.case} ({rise:+.1f} ms; true: {one.scope} {one.victim or ''}".rstrip() + ")"
            )
    return (
        "Within a run alone, the rank whose own time rises most for 100 steps or more is "
        f"{' and '.join(told)}, and in the healthy run of {healthy[2]} rank {healthy[1]} rises by {healthy[0]:.1f} ms: "
        "a rule that named these would name healthy ranks too."
    )


def lines(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """The markdown table, a row a case."""
    yield "| case | true | fault steps | named | slow steps | step, ms | account | outcome |"
    yield "|---|---|---|---|---|--:|---|---|"
    for one in outcomes:
        true = f"rank {one.victim}" if one.scope == "rank" else one.scope
        fault = f"{one.fault_steps[0]} to {one.fault_steps[1]}" if one.fault_steps else "-"
        slow = one.found.slow_steps
        shown = f"{slow[0]} to {slow[1]}" if slow else "whole run" if one.found.status == "slower" else "-"
        grade = one.grade if one.grade == "right" else f"**{one.grade}** ({one.found.status})"
        delta = f"{one.found.step.delta:+.1f}"
        yield f"| {one.case} | {true} | {fault} | {one.named} | {shown} | {delta} | {one.found.lead or '-'} | {grade} |"


def totals(pairs: Sequence[Outcome], equals: Sequence[Outcome]) -> str:
    count = {grade: sum(one.grade == grade for one in pairs) for grade in ("right", "wrong", "not named")}
    claims = sum(one.grade == "wrong" for one in equals)
    return (
        f"{len(pairs)} cases: {count['right']} right, {count['wrong']} wrong, {count['not named']} not named. "
        f"{len(equals)} comparisons of the halves of one healthy run: {claims} with a claim."
    )


def generated(
    seed: int, *, ranks: int = 16, steps: int = 500, loss: float = 0.0, victim: int = 0, span: tuple[int, int] = (0, 0)
) -> list[RecordFile]:
    """A run whose ranks end each step together, waiting inside compute; rank ``victim`` loses time in ``span``.

    A step of 80 ms with noise of its own and of each rank, both autocorrelated (0.5), a checkpoint every 100 steps,
    and for every 50 steps another rank that is slower by 1 ms. ``loss`` is a share of the step and lies in no part.
    """
    draw = np.random.default_rng(seed)
    own = 4.0 + 0.3 * draw.standard_normal((ranks, 1)) + 0.3 * _noise(draw, ranks, steps)
    for start in range(0, steps, 50):
        own[draw.integers(ranks), start : start + 50] += 1.0
    own[victim, slice(*span)] += 80.0 * loss
    own = np.maximum(own, 1.5)
    shared = 76.0 + 0.8 * _noise(draw, 1, steps)[0]
    shared[::100] += 240.0
    step = shared + own.max(axis=0)
    times = {"data_ms": np.full(own.shape, 1.0), "compute_ms": step - own - 6.5}
    times |= {"comm_ms": np.full(own.shape, 6.0), "wait_ms": np.full(own.shape, 0.5)}
    return [_file(rank, step, {name: table[rank] for name, table in times.items()}) for rank in range(ranks)]


def _noise(draw: np.random.Generator, rows: int, steps: int, phi: float = 0.5) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Autocorrelated noise of unit variance."""
    found = draw.standard_normal((rows, steps))
    for at in range(1, steps):
        found[:, at] = phi * found[:, at - 1] + (1 - phi**2) ** 0.5 * found[:, at]
    return found


def _file(rank: int, step: Any, times: dict[str, Any]) -> RecordFile:
    rows = tuple(
        StepRecord(step=at, step_ms=float(step[at]), **{name: float(values[at]) for name, values in times.items()})
        for at in range(len(step))
    )
    records = StepRecords(steps=rows, parts=PARTS, median_step_ms=float(np.median(step)), rank=rank, host="node 0")
    return RecordFile(place=f"rank {rank}", records=records)


def power(count: int) -> Iterator[str]:
    """A row for each planted loss: in how many of ``count`` pairs of runs the rank was named, and another one was."""
    yield "| loss of one rank | pairs | named | another named | called slower | ends within 10 steps |"
    yield "|---|--:|--:|--:|--:|--:|"
    for loss in SIZES:
        draw = np.random.default_rng(int(1000 * loss))
        named = wrong = slower = sharp = 0
        for at in range(count):
            victim, start, length = int(draw.integers(16)), int(draw.integers(50, 250)), int(draw.integers(60, 200))
            healthy = generated(2 * at)
            regressed = generated(2 * at + 1, loss=loss, victim=victim, span=(start, start + length))
            found = compare_records(healthy, regressed, ("healthy", "regressed"))
            right = loss > 0 and found.culprit == {"kind": "rank", "members": [victim]}
            named += right
            wrong += found.culprit["kind"] not in ("none", "varies") and not right
            slower += found.status == "slower"
            slow = found.slow_steps
            sharp += right and slow is not None and max(abs(slow[0] - start), abs(slow[1] - start - length)) <= 10
        size = f"{loss:.0%} of the step" if loss else "none"
        yield f"| {size} | {count} | {named} | {wrong} | {slower} | {sharp} |"


def section(pairs: Sequence[Outcome], equals: Sequence[Outcome], simulated: Sequence[str], about_unnamed: str) -> str:
    """The section of the page, heading included."""
    machine = f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}"
    about = (
        f"`python benchmarks/slow_runs.py DIR`, {time.strftime('%Y-%m-%d')}, on {machine}.\n"
        "Step records of real jobs of 16 ranks on one host, with one fault each, as [compare](compare.md) reads them; "
        "the truth is used for the score alone.\n"
        "The rules were chosen with these cases and these generated runs at hand, and none were held out: expect less "
        "on other jobs.\nWith one host in the records, a host that is named can only be that one."
    )
    parts = [HEADING, about, totals(pairs, equals), "\n".join(lines(pairs))]
    if unnamed := [one for one in pairs if one.grade == "not named"]:
        parts.append("Not named: " + " ".join(f"{one.case}: {one.found.reading}" for one in unnamed))
        parts.append(about_unnamed)
    if simulated:
        parts += ["Generated runs (`--generated`), with the false alarms in the first row:", "\n".join(simulated)]
    return "\n\n".join(parts) + "\n"


def main() -> int:
    """Prints the tables; 0 when nobody wrong was named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, metavar="DIR", help="the folder with the cases and truth.json")
    parser.add_argument("--generated", type=int, default=0, metavar="N", help="generated pairs of each size")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/benchmarks.md")
    args = parser.parse_args()
    if not (args.root / "truth.json").is_file():
        parser.error(f"{args.root}: holds no truth.json; give the folder with the labelled cases")
    pairs, equals = outcomes_of(args.root)
    print(*lines(pairs), sep="\n")
    for one in equals:
        if one.grade == "wrong":
            print(f"{one.case}: {one.found.status}, {one.named}")
    unnamed = within(args.root, pairs) if any(one.grade == "not named" for one in pairs) else ""
    print("", totals(pairs, equals), unnamed, "", sep="\n")
    simulated = []
    for line in power(args.generated) if args.generated else ():
        simulated.append(line)
        print(line, flush=True)
    if args.write:
        put_section(PAGE, HEADING, section(pairs, equals, simulated, unnamed))
        print(f"written to {PAGE}")
    return int(any(one.grade == "wrong" for one in [*pairs, *equals]))


if __name__ == "__main__":
    sys.exit(main())
