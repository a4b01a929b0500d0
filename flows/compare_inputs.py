"""What each side of `narrows compare` was given, found out by content, and the comparison that fits it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from narrows.inquiry.errors import RunDirectoryError
from narrows.reducers.compared_files import compare_step_times, compare_traces
from narrows.reducers.compared_parts import Comparison
from narrows.reducers.compared_records import compare_step_records
from narrows.reducers.compared_runs import compare_runs, run_directories
from narrows.reducers.readers import step_records
from narrows.reducers.readers.common import as_text, unpacked
from narrows.reducers.readers.detect import Kind as Evidence
from narrows.reducers.readers.detect import detect
from narrows.reducers.readers.logs import read_log
from narrows.reducers.topology import read_topology
from narrows.reducers.traces.labels import BT_1, Thresholds
from narrows.reducers.traces.memory_files import memory_kind
from narrows.reducers.traces.reduce import reduce_file
from narrows.reducers.traces.reduced import KIND, Reduced, read_reduced

_HEAD_BYTES = 1 << 16
_GZIP = b"\x1f\x8b"
_ENDINGS = (".json", ".jsonl", ".log", ".txt", ".out", ".err")  # each also with .gz


class Kind(StrEnum):
    """What one side may consist of."""

    RUNS = "run directories"
    REDUCED = "reduced traces"
    TRACES = "traces"
    LOGS = "logs"
    STEP_RECORDS = "step records"


def compare_inputs(
    healthy: Sequence[Path],
    regressed: Sequence[Path],
    statistic: str,
    topology: Path | None = None,
    thresholds: Thresholds = BT_1,
    pattern: str | None = None,
) -> Comparison:
    """The comparison of two sides, each one or several paths: run directories, traces (reduced or not), or logs.

    ``topology`` is a file that tells where hosts and ranks sit; ``thresholds`` decide the labels; ``pattern`` reads the
    steps of logs. Raises ``NarrowsError`` where a side is not there, cannot be read, or is of another kind than the
    other.
    """
    names = _name(healthy), _name(regressed)
    kinds = kind_of(healthy), kind_of(regressed)
    traces = (Kind.REDUCED, Kind.TRACES)
    if kinds[0] is not kinds[1] and not (kinds[0] in traces and kinds[1] in traces):
        raise RunDirectoryError(
            f"{names[0]} holds {kinds[0]} and {names[1]} {kinds[1]}; compare two sides of the same kind"
        )
    if topology is not None and kinds[0] is not Kind.RUNS:
        raise RunDirectoryError(f"--topology {topology}: is for run directories; {names[0]} holds {kinds[0]}")
    if kinds[0] is Kind.RUNS:
        told = None if topology is None else read_topology(topology)
        return compare_runs(
            runs_of(healthy), runs_of(regressed), statistic=statistic, names=names, topology=told, thresholds=thresholds
        )
    if kinds[0] is Kind.STEP_RECORDS:
        return compare_step_records(files_of(healthy), files_of(regressed), names, statistic, thresholds)
    if kinds[0] is Kind.LOGS:
        (first, torn), (second, torn_too) = _logs(healthy, pattern), _logs(regressed, pattern)
        return compare_step_times(first, second, names, statistic, losses=(*torn, *torn_too))
    sides = [_traces(side, kind, thresholds) for side, kind in zip((healthy, regressed), kinds, strict=True)]
    return compare_traces(sides[0], sides[1], names, statistic, thresholds)


def _name(paths: Sequence[Path]) -> str:
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{paths[0]}{more}"


def kind_of(paths: Sequence[Path]) -> Kind:
    """What a side consists of, by content. Reduced traces come before the traces that they were made from.

    Raises ``RunDirectoryError`` for a path that is not there, holds nothing, or a mixture.
    """
    for path in paths:
        if not path.exists():
            raise RunDirectoryError(f"{path} is not there; give a run directory, traces, or a log")
    runs = [bool(run_directories(path)) for path in paths]
    if all(runs):
        return Kind.RUNS
    kinds = {_file_kind(file) for file in files_of(paths)}
    if any(runs) or not kinds:
        raise RunDirectoryError(
            f"{_name(paths)}: {'run directories are mixed with other files' if any(runs) else 'nothing to read here'}; "
            "give run directories, or a folder of traces, or logs"
        )
    if Kind.REDUCED in kinds and kinds <= {Kind.REDUCED, Kind.TRACES}:
        return Kind.REDUCED
    if len(kinds) > 1:
        raise RunDirectoryError(f"{_name(paths)}: holds {' and '.join(sorted(kinds))}; give one kind")
    return kinds.pop()


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The files themselves, and those in folders whose names end like a trace's or a log's."""
    found: list[Path] = []
    for path in paths:
        inside = (
            sorted(one for one in path.iterdir() if one.name.removesuffix(".gz").endswith(_ENDINGS))
            if path.is_dir()
            else [path]
        )
        # A memory timeline beside traces is no side of a comparison; one given by name is refused by what it is.
        found.extend(one for one in inside if one.is_file() and (one == path or not memory_kind(one)))
    return found


def _file_kind(path: Path) -> Kind:
    head = _head(path).lstrip()
    if not head:
        raise RunDirectoryError(f"{path}: is empty, or cut before anything in it; copy it again, or leave it out")
    if f'"{KIND}"'.encode() in head[:200]:
        return Kind.REDUCED
    if step_records.looks_like(as_text(head)):
        return Kind.STEP_RECORDS
    return Kind.TRACES if head[:1] == b"{" or head[:2] in (b"[{", b"[\n", b"[ ") else Kind.LOGS


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        first = file.read(_HEAD_BYTES)
    if not first.startswith(_GZIP):
        return first
    try:
        return zlib.decompressobj(31).decompress(first, _HEAD_BYTES)
    except zlib.error as error:
        raise RunDirectoryError(f"{path}: is damaged gzip ({error}); copy it again from where it was written") from None


def runs_of(paths: Sequence[Path]) -> list[Path]:
    """The run directories that ``paths`` name; a folder of run directories stands for all of them.

    Raises ``RunDirectoryError`` for a path that is neither.
    """
    found: list[Path] = []
    for path in paths:
        own = run_directories(path)
        if not own:
            raise RunDirectoryError(f"{path} is no run directory; give what `narrows run` or an investigation wrote")
        found.extend(own)
    return found


def _traces(paths: Sequence[Path], kind: Kind, thresholds: Thresholds) -> list[Reduced]:
    files = [file for file in files_of(paths) if _file_kind(file) is kind]
    return [read_reduced(file) if kind is Kind.REDUCED else reduce_file(file, limits=thresholds) for file in files]


def _logs(paths: Sequence[Path], pattern: str | None) -> tuple[list[list[float]], list[str]]:
    """The step times of each log, in ms, steps without one left out, and which of the logs are torn."""
    found: list[list[float]] = []
    torn: list[str] = []
    for file in files_of(paths):
        data, cut = unpacked(file.read_bytes(), str(file))
        kind = detect(data)
        if kind is Evidence.UNKNOWN and pattern is None:
            raise RunDirectoryError(
                f"{file}: is no trace, no step records, and no training log of a known format; a log of your own is "
                "read with --pattern and a regular expression with the groups step and step_ms"
            )
        if kind not in (Evidence.TRAINING_LOG, Evidence.UNKNOWN):
            raise RunDirectoryError(f"{file}: is {kind}, which holds no steps to compare; narrows read reads it")
        found.append([step.step_ms for step in read_log(data, str(file), pattern).steps if step.step_ms is not None])
        torn += [f"{file}: its gzip is torn; what came before the cut was compared"] * cut
    return found, torn
