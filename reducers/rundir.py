"""The one reader of run directories: refused whole, or read with every loss counted."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from narrows.inquiry.errors import RunDirectoryError
from narrows.reducers.clocks import host_clocks
from narrows.reducers.columns import collective_records, step_records
from narrows.reducers.jsonlines import Lines, check_header, damaged, read_bytes
from narrows.reducers.records import (
    ClockPairs,
    CollectiveRecords,
    Loss,
    LossKind,
    RankRecords,
    Run,
    StepRecords,
)


def read_run(path: Path | str) -> Run:
    """Everything in one run directory, times on one clock, losses counted.

    A torn last line, an absent file, a rank without a folder and spans outside their window are losses. Damage
    elsewhere is refused, as are a newer schema, a missing manifest, a step or collective that ends before it
    starts, a step that is there twice, and hosts whose clocks nothing relates.

    Raises RunDirectoryError naming the file, the line where known, and the rule.
    """
    reading = _Reading(root=Path(path))
    manifest = _manifest(reading)
    ranks = {rank: _rank(reading, rank, folder) for rank, folder in _rank_folders(reading, manifest)}
    groups, ranks = _unified_groups(reading, manifest, ranks)
    clock, offset_ns = host_clocks(ranks, _boot_ids(manifest, reading.host_facts))
    if offset_ns:
        ranks = {rank: _shifted(records, offset_ns[records.host]) for rank, records in ranks.items()}
    return Run(
        path=reading.root,
        name=str(manifest.get("run", reading.root.name)),
        arm=_text(manifest.get("arm")),
        launch=_text(manifest.get("launch")),
        manifest=manifest,
        ranks=ranks,
        groups=groups,
        losses=tuple(reading.losses),
        clock=clock,
        digest=reading.digest(),
    )


@dataclass(slots=True, kw_only=True)
class _Reading:
    """What accumulates while the files are read."""

    root: Path
    losses: list[Loss] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    declared: dict[int, dict[str, tuple[int, ...]]] = field(default_factory=dict)
    host_facts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def lose(self, kind: LossKind, place: str, count: int = 1, detail: str = "") -> None:
        self.losses.append(Loss(kind=kind, place=place, count=count, detail=detail))

    def bytes_of(self, place: str) -> bytes | None:
        data = read_bytes(self.root / place)
        if data is not None:
            self.digests.append(f"{place} {hashlib.sha256(data).hexdigest()}\n")
        return data

    def lines_of(self, folder: str, kind: str) -> Lines:
        place = f"{folder}/{kind}.jsonl"
        data = self.bytes_of(place)
        if data is None:
            self.lose(LossKind.MISSING_FILE, place)
            data = b""
        lines = Lines(data, str(self.root / place), kind)
        if lines.torn:
            self.lose(LossKind.TORN_LINE, place, detail="the last line was cut; dropped")
        return lines

    def digest(self) -> str:
        return hashlib.sha256("".join(sorted(self.digests)).encode()).hexdigest()


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _manifest(reading: _Reading) -> dict[str, Any]:
    data = reading.bytes_of("manifest.json")
    if data is None:
        raise RunDirectoryError(f"{reading.root}: no manifest.json, so this is not a run directory; check the path")
    return check_header(data, str(reading.root / "manifest.json"), "manifest")


def _rank_folders(reading: _Reading, manifest: dict[str, Any]) -> list[tuple[int, str]]:
    root = reading.root / "ranks"
    found = {int(child.name): child.name for child in root.glob("*") if child.is_dir() and child.name.isdecimal()}
    if not found:
        raise RunDirectoryError(f"{root}: no rank has written anything; the run ended before its first step")
    placed = {int(entry["rank"]) for entry in manifest.get("placement") or ()}
    for rank in sorted(placed - set(found)):
        reading.lose(LossKind.MISSING_RANK, f"ranks/{rank:05d}", detail="the manifest places this rank")
    if placed:
        for rank in sorted(set(found) - placed):
            reading.lose(LossKind.UNPLACED_RANK, f"ranks/{found[rank]}", detail="not in the manifest's placement")
    return [(rank, f"ranks/{found[rank]}") for rank in sorted(found)]


def _rank(reading: _Reading, rank: int, folder: str) -> RankRecords:
    facts = _rank_facts(reading, folder)
    step_lines = reading.lines_of(folder, "steps")
    steps, step_losses = step_records(step_lines.steps(), f"{folder}/steps.jsonl")
    call_lines = reading.lines_of(folder, "collectives")
    calls, groups, call_losses = collective_records(call_lines.collectives(), f"{folder}/collectives.jsonl")
    pairs = reading.lines_of(folder, "clock").clock()
    for header in (step_lines.header, call_lines.header):
        if header.get("rank", rank) != rank:
            raise damaged(f"{reading.root / folder}", f"its files say rank {header['rank']}")
    if step_lines.header.get("clock", "monotonic_ns") != "monotonic_ns":
        raise damaged(f"{folder}/steps.jsonl:1", f"clock {step_lines.header['clock']!r}; 'monotonic_ns' was expected")
    reading.losses += step_losses + call_losses
    reading.declared[rank] = groups
    host = facts.get("host") or step_lines.header.get("host") or call_lines.header.get("host") or f"host-of-rank-{rank}"
    if facts.get("host_facts"):
        reading.host_facts[host] = facts["host_facts"]
    clock = ClockPairs(
        monotonic_ns_K=np.array([pair.monotonic_ns for pair in pairs], dtype=np.int64),
        unix_ns_K=np.array([pair.unix_ns for pair in pairs], dtype=np.int64),
    )
    return RankRecords(rank=rank, host=host, steps=steps, collectives=calls, clock=clock)


def _rank_facts(reading: _Reading, folder: str) -> dict[str, Any]:
    data = reading.bytes_of(f"{folder}/rank.json")
    if data is None:
        reading.lose(LossKind.MISSING_FILE, f"{folder}/rank.json")
        return {}
    return check_header(data, str(reading.root / folder / "rank.json"), "rank")


def _boot_ids(manifest: dict[str, Any], host_facts: dict[str, dict[str, Any]]) -> dict[str, str]:
    facts = {**host_facts, **(manifest.get("hosts") or {})}
    return {host: fact["boot_id"] for host, fact in facts.items() if fact.get("boot_id")}


def _unified_groups(
    reading: _Reading, manifest: dict[str, Any], ranks: dict[int, RankRecords]
) -> tuple[dict[str, tuple[int, ...]], dict[int, RankRecords]]:
    """The groups of all ranks under distinct names, and the ranks with their records under these names."""
    placed = {name: tuple(sorted(members)) for name, members in (manifest.get("groups") or {}).items()}
    variants: dict[str, set[tuple[int, ...]]] = {name: {members} for name, members in placed.items()}
    for groups in reading.declared.values():
        for name, members in groups.items():
            variants.setdefault(name, set()).add(members)
    named = {
        (name, members): name if len(found) == 1 else f"{name}[{','.join(map(str, members))}]"
        for name, found in variants.items()
        for members in sorted(found)
    }
    renamed = {}
    for rank, records in ranks.items():
        members_of = placed | reading.declared[rank]
        names = tuple(named.get((name, members_of.get(name, ())), name) for name in records.collectives.groups)
        renamed[rank] = replace(records, collectives=replace(records.collectives, groups=names))
    return {label: members for (_, members), label in named.items()}, renamed


def _shifted(records: RankRecords, offset_ns: int) -> RankRecords:
    """The same records with every time moved by a whole number of nanoseconds, so that no duration changes."""
    steps, calls = records.steps, records.collectives
    moved_steps: StepRecords = replace(
        steps,
        start_ns_N=steps.start_ns_N + offset_ns,
        end_ns_N=steps.end_ns_N + offset_ns,
        span_start_ns_M=steps.span_start_ns_M + offset_ns,
        span_end_ns_M=steps.span_end_ns_M + offset_ns,
    )
    moved_calls: CollectiveRecords = replace(
        calls, enter_ns_N=calls.enter_ns_N + offset_ns, end_ns_N=calls.end_ns_N + offset_ns
    )
    return replace(records, steps=moved_steps, collectives=moved_calls)
