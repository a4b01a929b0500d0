"""The one reader of run directories: refused whole, or read with every loss counted."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from narrows.inquiry.errors import RunDirectoryError
from narrows.reducers.clocks import host_clocks
from narrows.reducers.columns import collective_records, step_records
from narrows.reducers.compaction import read_columns
from narrows.reducers.jsonlines import check_header, damaged, read_bytes
from narrows.reducers.rankfiles import KINDS, RankFiles, rank_folders, read_lines
from narrows.reducers.records import CollectiveRecords, Loss, LossKind, RankRecords, Run, StepRecords


def read_run(path: Path | str) -> Run:
    """Everything in one run directory, times on one clock, losses counted.

    A torn last line, an absent file, a rank without a folder and spans outside their window are losses. Damage
    elsewhere is refused, as are a newer schema, a missing manifest, a step or collective that ends before it
    starts, a step that is there twice, and hosts whose clocks nothing relates.

    Raises RunDirectoryError naming the file, the line where known, and the rule.
    """
    reading = _Reading(root=Path(path))
    manifest = _manifest(reading)
    ranks = {rank: _rank(reading, rank, folder) for rank, folder in _rank_folders(reading, manifest).items()}
    groups, ranks = _unified_groups(reading, manifest, ranks)
    clock, offset_ns = host_clocks(ranks, _boot_ids(manifest, reading.host_facts))
    for rank, records in ranks.items() if offset_ns else ():  # one at a time: two copies of a large run are too much
        ranks[rank] = _shifted(records, offset_ns[records.host])
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


class _Placed(msgspec.Struct):
    rank: int


class _ManifestShape(msgspec.Struct):
    """What is read from a manifest; other fields are the writer's."""

    placement: list[_Placed] | None = None
    groups: dict[str, list[int]] | None = None
    hosts: dict[str, dict[str, Any]] | None = None


class _HeaderShape(msgspec.Struct):
    """What is read from rank.json and from the first line of a rank's files."""

    rank: int | None = None
    host: str | None = None
    clock: str | None = None
    host_facts: dict[str, Any] | None = None


_Shape = TypeVar("_Shape", _ManifestShape, _HeaderShape)


@dataclass(slots=True, kw_only=True)
class _Reading:
    """What accumulates while the files are read."""

    root: Path
    losses: list[Loss] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    declared: dict[int, dict[str, tuple[int, ...]]] = field(default_factory=dict)
    host_facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    members: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)

    def lose(self, kind: LossKind, place: str, count: int = 1, detail: str = "") -> None:
        self.losses.append(Loss(kind=kind, place=place, count=count, detail=detail))

    def bytes_of(self, place: str) -> bytes | None:
        data = read_bytes(self.root / place)
        if data is not None:
            self.digests.append(f"{place} {hashlib.sha256(data).hexdigest()}\n")
        return data

    def files_of(self, folder: str) -> RankFiles:
        files = read_columns(self.root, folder) or read_lines(self.root, folder)
        for kind in KINDS:
            place, source = f"{folder}/{kind}.jsonl", files.sources.get(kind)
            if source is None:
                self.lose(LossKind.MISSING_FILE, place)
                continue
            self.digests.append(f"{place} {source.sha256}\n")
            if source.torn:
                self.lose(LossKind.TORN_LINE, place, detail="the last line was cut; dropped")
        return files

    def one_of(self, members: tuple[int, ...]) -> tuple[int, ...]:
        """The same members in one tuple for all ranks: thousands of ranks each declare groups of thousands."""
        return self.members.setdefault(members, members)

    def digest(self) -> str:
        return hashlib.sha256("".join(sorted(self.digests)).encode()).hexdigest()


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _shaped(value: dict[str, Any], shape: type[_Shape], place: str) -> _Shape:
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        raise damaged(place, str(error)) from error


def _manifest(reading: _Reading) -> dict[str, Any]:
    place = reading.root / "manifest.json"
    data = reading.bytes_of("manifest.json")
    if data is None:
        raise RunDirectoryError(f"{reading.root}: no manifest.json, so this is not a run directory; check the path")
    if not data.strip():
        raise RunDirectoryError(
            f"{place}: empty: the run was stopped before rank 0 wrote what ran; start it again, or leave it out"
        )
    manifest = check_header(data, str(place), "manifest")
    _shaped(manifest, _ManifestShape, str(place))
    return manifest


def _rank_folders(reading: _Reading, manifest: dict[str, Any]) -> dict[int, str]:
    found = rank_folders(reading.root)
    if not found:
        raise RunDirectoryError(
            f"{reading.root / 'ranks'}: no rank has written anything: the run ended before its first step; "
            "start it again, or leave it out"
        )
    placed = {int(entry["rank"]) for entry in manifest.get("placement") or ()}
    for rank in sorted(placed - set(found)):
        reading.lose(LossKind.MISSING_RANK, f"ranks/{rank:05d}", detail="the manifest places this rank")
    if placed:
        for rank in sorted(set(found) - placed):
            reading.lose(LossKind.UNPLACED_RANK, found[rank], detail="not in the manifest's placement")
    return found


def _rank(reading: _Reading, rank: int, folder: str) -> RankRecords:
    facts = _rank_facts(reading, folder)
    files = reading.files_of(folder)
    steps, step_losses = step_records(files.steps, f"{folder}/steps.jsonl")
    calls, call_losses = collective_records(files.calls, f"{folder}/collectives.jsonl")
    headers = {
        kind: _shaped(source.header, _HeaderShape, f"{reading.root / folder}/{kind}.jsonl:1")
        for kind, source in files.sources.items()
    }
    for kind in ("steps", "collectives"):
        found = headers.get(kind, _HeaderShape())
        if found.rank not in (None, rank):
            raise damaged(f"{reading.root / folder}", f"its files say rank {found.rank}")
        if kind == "steps" and found.clock not in (None, "monotonic_ns"):
            raise damaged(f"{folder}/steps.jsonl:1", f"clock {found.clock!r}; 'monotonic_ns' was expected")
    reading.losses += step_losses + call_losses
    reading.declared[rank] = {name: reading.one_of(members) for name, members in files.calls.declared.items()}
    named = (facts, *(headers[kind] for kind in ("steps", "collectives") if kind in headers))
    host = next((one.host for one in named if one.host), f"host-of-rank-{rank}")
    if facts.host_facts:
        reading.host_facts[host] = facts.host_facts
    return RankRecords(rank=rank, host=host, steps=steps, collectives=calls, clock=files.clock)


def _rank_facts(reading: _Reading, folder: str) -> _HeaderShape:
    """Where the rank ran. An empty file is that of a rank stopped while it started, and as good as none."""
    place = f"{folder}/rank.json"
    data = reading.bytes_of(place)
    if data is None or not data.strip():
        reading.lose(LossKind.MISSING_FILE, place, detail="" if data is None else "empty")
        return _HeaderShape()
    return _shaped(check_header(data, str(reading.root / place), "rank"), _HeaderShape, str(reading.root / place))


def _boot_ids(manifest: dict[str, Any], host_facts: dict[str, dict[str, Any]]) -> dict[str, str]:
    facts = {**host_facts, **(manifest.get("hosts") or {})}
    return {host: fact["boot_id"] for host, fact in facts.items() if fact.get("boot_id")}


def _unified_groups(
    reading: _Reading, manifest: dict[str, Any], ranks: dict[int, RankRecords]
) -> tuple[dict[str, tuple[int, ...]], dict[int, RankRecords]]:
    """The groups of all ranks under distinct names, and the ranks with their records under these names."""
    placed = {name: reading.one_of(tuple(sorted(members))) for name, members in (manifest.get("groups") or {}).items()}
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
