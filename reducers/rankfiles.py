"""The three growing files of one rank as columns, read from their JSON lines or from what they were compacted to."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from narrows.reducers.columns import CallColumns, StepColumns, call_columns, step_columns
from narrows.reducers.jsonlines import Lines, damaged, read_bytes
from narrows.reducers.records import ClockPairs

if TYPE_CHECKING:
    from pathlib import Path

KINDS = ("steps", "collectives", "clock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file as it was written: size, SHA-256, time of change, header, and whether its end was torn."""

    num_bytes: int
    sha256: str
    mtime_ns: int
    header: dict[str, Any]
    torn: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFiles:
    """What one rank wrote, nothing changed; ``sources`` lacks a kind whose file is absent."""

    sources: dict[str, Source]
    steps: StepColumns
    calls: CallColumns
    clock: ClockPairs


def rank_folders(root: Path) -> dict[int, str]:
    """The folders of the ranks that wrote anything, by rank, as paths inside the run directory, in order of rank."""
    found = ((int(child.name), child.name) for child in (root / "ranks").glob("*") if child.name.isdecimal())
    return {rank: f"ranks/{name}" for rank, name in sorted(found) if (root / "ranks" / name).is_dir()}


def read_lines(root: Path, folder: str) -> RankFiles:
    """The files of one rank from their lines, plain or compressed by gzip.

    Raises RunDirectoryError where one of them is damaged before its last line, or cannot be read.
    """
    sources: dict[str, Source] = {}
    lines = {kind: _lines(root, folder, kind, sources) for kind in KINDS}
    pairs = lines["clock"].clock()
    return RankFiles(
        sources=sources,
        steps=step_columns(lines["steps"].steps(), f"{folder}/steps.jsonl"),
        calls=call_columns(lines["collectives"].collectives(), f"{folder}/collectives.jsonl"),
        clock=ClockPairs(
            monotonic_ns_K=np.array([pair.monotonic_ns for pair in pairs], dtype=np.int64),
            unix_ns_K=np.array([pair.unix_ns for pair in pairs], dtype=np.int64),
        ),
    )


def written_bytes(path: Path) -> tuple[bytes, int] | None:
    """A file as it was written and its time of change; unpacked from ``PATH.gz`` where only that is there.

    Raises RunDirectoryError where it cannot be read or unpacked.
    """
    data = read_bytes(path)
    if data is not None:
        return data, path.stat().st_mtime_ns
    packed = path.with_name(f"{path.name}.gz")
    data = read_bytes(packed)
    if data is None:
        return None
    try:
        return gzip.decompress(data), packed.stat().st_mtime_ns
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(str(packed), f"it does not unpack ({error})") from error


def _lines(root: Path, folder: str, kind: str, sources: dict[str, Source]) -> Lines:
    path = root / folder / f"{kind}.jsonl"
    found = written_bytes(path)
    data, mtime_ns = found or (b"", 0)
    lines = Lines(data, str(path), kind)
    if found is not None:
        sources[kind] = Source(
            num_bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            mtime_ns=mtime_ns,
            header=lines.header,
            torn=bool(lines.torn),
        )
    return lines
