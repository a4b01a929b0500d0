"""The lines of a finished rank as one columnar file, so that a run of thousands of ranks is read in seconds.

``ranks/00007/records.columns``: a JSON object on the first line, then the columns' bytes, then the CRC-32 of all
before it. The object holds ``schema``, ``kind`` ("columns"), the headers, sizes, digests and times of change of the
files it stands for, the names, and for each column ``[count, mode, type, first, least, offset]``. Numbers are
little-endian; each column starts at a multiple of 8 bytes after the first line.

Modes: ``same`` is one value for all; ``plain`` is the values; ``near`` is each value minus the least; ``rise`` is each
value's difference from the one before it, minus the least difference.

The columns hold what readers use, as written. Everything else stays in the lines, kept beside them, plain or by gzip.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import time
import zlib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from narrows.inquiry.errors import RunDirectoryError
from narrows.reducers.columns import CallColumns, StepColumns
from narrows.reducers.jsonlines import SCHEMA, check_header, damaged, read_bytes
from narrows.reducers.rankfiles import KINDS, RankFiles, Source, rank_folders, read_lines, written_bytes
from narrows.reducers.records import ClockPairs

if TYPE_CHECKING:
    from numpy.typing import NDArray

NAME = "records.columns"
_ALIGNMENT = 8
_CRC_BYTES = 4
_STILL_S = 60.0
"""A rank beats about once a second; without a closing beat it is over when its beat is this old."""
_TYPES = {"<i8": np.int64, "<f8": np.float64, "|b1": np.bool_, "<u4": np.uint32, "<u2": np.uint16, "|u1": np.uint8}
_PARTS: dict[str, type[StepColumns] | type[CallColumns] | type[ClockPairs]] = {
    "steps": StepColumns,
    "calls": CallColumns,
    "clock": ClockPairs,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """How many ranks are compacted, and the bytes of their lines before and of their folders' record files after."""

    num_ranks: int
    bytes_before: int
    bytes_after: int


def compact_run(path: Path, *, pack_lines: bool = False) -> Compacted:
    """Writes each rank's columnar file beside its lines; with ``pack_lines`` the lines become ``.jsonl.gz``.

    What readers see does not change, nor does the run's digest. A rank that is compacted already is written again.

    Raises RunDirectoryError for no run directory, damaged lines, and ranks that are still being written.
    """
    if not (path / "manifest.json").is_file():
        raise RunDirectoryError(f"{path}: no manifest.json, so this is not a run directory; check the path")
    folders = rank_folders(path)
    if not folders:
        raise RunDirectoryError(f"{path / 'ranks'}: no rank has written anything, so there is nothing to compact")
    for folder in folders.values():
        _check_finished(path / folder)
    before = after = 0
    for folder in folders.values():
        files = read_lines(path, folder)
        before += sum(source.num_bytes for source in files.sources.values())
        _write(path / folder / NAME, encode(files))
        if pack_lines:
            for kind in files.sources:
                _pack(path / folder / f"{kind}.jsonl")
        after += sum(entry.stat().st_size for entry in (path / folder).glob("*") if _is_record_file(entry.name))
    return Compacted(num_ranks=len(folders), bytes_before=before, bytes_after=after)


def read_columns(root: Path, folder: str) -> RankFiles | None:
    """A rank from its columnar file; None where it has none, or its lines were changed since.

    Raises RunDirectoryError where the file is damaged or of a newer schema.
    """
    path = root / folder / NAME
    data = read_bytes(path)
    if data is None:
        return None
    files = decode(data, str(path))
    known = all(_unchanged(root / folder / f"{kind}.jsonl", files.sources.get(kind)) for kind in KINDS)
    return files if known else None


def encode(files: RankFiles) -> bytes:
    """The bytes of the columnar file; ``decode`` gives equal files back."""
    blocks: list[bytes] = []
    columns: dict[str, list[Any]] = {}
    offset = 0
    for part, name, column in _columns(files):
        spec, block = _packed(column)
        columns[f"{part}.{name}"] = [*spec, offset]
        blocks.append(block + bytes(-len(block) % _ALIGNMENT))
        offset += len(blocks[-1])
    head = {
        "schema": SCHEMA,
        "kind": "columns",
        "files": {kind: asdict(source) for kind, source in files.sources.items()},
        "declared": files.calls.declared,
        "names": {"spans": files.steps.span_names, "groups": files.calls.groups, "ops": files.calls.ops},
        "columns": columns,
    }
    first = msgspec.json.encode(head)
    first += b" " * (-(len(first) + 1) % _ALIGNMENT) + b"\n"
    whole = first + b"".join(blocks)
    return whole + zlib.crc32(whole).to_bytes(_CRC_BYTES, "little")


def decode(data: bytes, place: str) -> RankFiles:
    """The files that ``encode`` was given. Raises RunDirectoryError where a byte of them differs, naming ``place``."""
    first, _, body = data.partition(b"\n")
    checksum = int.from_bytes(data[-_CRC_BYTES:], "little")
    if len(data) <= _CRC_BYTES or checksum != zlib.crc32(memoryview(data)[:-_CRC_BYTES]):
        raise RunDirectoryError(
            f"{place}: damaged: its checksum does not fit; delete it where the lines are still beside it, or restore it"
        )
    head = check_header(first, place, "columns")
    found: dict[str, dict[str, Any]] = {"steps": {"readings": {}}, "calls": {}, "clock": {}}
    for label, spec in head["columns"].items():
        part, _, name = label.partition(".")
        known = name in {one.name for one in fields(_PARTS[part])}
        target = found[part] if known else found["steps"]["readings"]
        target[name if known else name.removeprefix("readings.")] = _unpacked(spec, body)
    names = {kind: tuple(values) for kind, values in head["names"].items()}
    declared = {group: tuple(ranks) for group, ranks in head["declared"].items()}
    try:
        return RankFiles(
            sources={kind: Source(**source) for kind, source in head["files"].items()},
            steps=StepColumns(span_names=names["spans"], **found["steps"]),
            calls=CallColumns(declared=declared, groups=names["groups"], ops=names["ops"], **found["calls"]),
            clock=ClockPairs(**found["clock"]),
        )
    except TypeError as error:
        raise damaged(place, str(error)) from error


def _columns(files: RankFiles) -> list[tuple[str, str, NDArray[Any]]]:
    listed: list[tuple[str, str, NDArray[Any]]] = []
    for part in _PARTS:
        holder = getattr(files, part)
        for one in fields(holder):
            value = getattr(holder, one.name)
            if isinstance(value, np.ndarray):
                listed.append((part, one.name, value))
    listed.extend(("steps", f"readings.{name}", column) for name, column in files.steps.readings.items())
    return listed


def _packed(column: NDArray[Any]) -> tuple[list[Any], bytes]:
    """Count, mode, type, first and least, and the bytes: the narrowest of the modes."""
    num = len(column)
    bits = column.view(np.int64) if column.dtype == np.float64 else column
    if num and (bits == bits[0]).all():
        return [num, "same", column.dtype.str, 0, 0], column[:1].tobytes()
    if column.dtype != np.int64 or not num:
        return [num, "plain", column.dtype.str, 0, 0], column.tobytes()
    least, most = int(column.min()), int(column.max())
    choices = [("near", least, most, column)]
    if most - least < 2**62:  # so that no difference overflows
        rises = np.diff(column)
        choices.append(("rise", int(rises.min()), int(rises.max()), rises))
    mode, base, top, values = min(choices, key=lambda choice: _width(choice[2] - choice[1]))
    if _width(top - base) > 4:
        return [num, "plain", column.dtype.str, 0, 0], column.tobytes()
    kind = np.dtype(f"<u{_width(top - base)}")
    return [num, mode, kind.str, int(column[0]), base], (values - base).astype(kind).tobytes()


def _width(span: int) -> int:
    return next((width for width in (1, 2, 4) if span < 256**width), 8)


def _unpacked(spec: list[Any], body: bytes) -> NDArray[Any]:
    """The column; read-only where it has no memory of its own."""
    num, mode, kind, first, base, offset = spec
    dtype = _TYPES[kind]
    if mode == "same":
        return np.broadcast_to(np.frombuffer(body, dtype, 1, offset).copy(), (num,))
    if mode == "plain":
        return np.frombuffer(body, dtype, num, offset).copy()
    if mode == "near":
        near: NDArray[Any] = np.frombuffer(body, dtype, num, offset).astype(np.int64)
        near += base
        return near
    column = np.empty(num, dtype=np.int64)
    column[0] = 0
    np.cumsum(np.frombuffer(body, dtype, num - 1, offset), dtype=np.int64, out=column[1:])
    if base:
        column += base * np.arange(num)
    column += first
    return column


def _unchanged(path: Path, source: Source | None) -> bool:
    """Whether the lines are gone, or still those that were compacted; a file that was copied has a new time alone."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return source is not None or not path.with_name(f"{path.name}.gz").exists()
    if source is None or found.st_size != source.num_bytes:
        return False
    if found.st_mtime_ns == source.mtime_ns:
        return True
    return hashlib.sha256(path.read_bytes()).hexdigest() == source.sha256


def _check_finished(folder: Path) -> None:
    beat = folder / "heartbeat.json"
    data = read_bytes(beat)
    if data is None or time.time() - beat.stat().st_mtime > _STILL_S:
        return
    if check_header(data, str(beat), "heartbeat").get("state") != "closed":
        raise RunDirectoryError(f"{folder}: still being written; compact the run once it is over")


def _is_record_file(name: str) -> bool:
    return name == NAME or name.removesuffix(".gz") in {f"{kind}.jsonl" for kind in KINDS}


def _pack(path: Path) -> None:
    """Replaces a file by PATH.gz, which holds the same bytes and keeps its time of change."""
    found = written_bytes(path)
    if found is None or not path.exists():
        return
    data, mtime_ns = found
    packed = path.with_name(f"{path.name}.gz")
    _write(packed, gzip.compress(data, compresslevel=6, mtime=0))
    os.utime(packed, ns=(mtime_ns, mtime_ns))
    path.unlink()


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all, also when the machine stops."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
