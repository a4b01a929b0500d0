"""What each side of `narrows compare` was given, found out by content, and the comparison that fits it."""

from __future__ import annotations

import gzip
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
from narrows.reducers.readers.common import as_text
from narrows.reducers.readers.logs import read_log
from narrows.reducers.topology import read_topology
from narrows.reducers.traces.memory_files import memory_kind
from narrows.reducers.traces.reduce import reduce_file
from narrows.reducers.traces.reduced import KIND, Reduced, read_reduced

_HEAD_BYTES = 1 << 16
_GZIP = b"\x1f\x8b"
_ENDINGS = (".json", ".json.gz", ".jsonl", ".jsonl.gz", ".log", ".txt", ".out", ".err")


class Kind(StrEnum):
    """What one side may consist of."""

    RUNS = "run directories"
    REDUCED = "reduced traces"
    TRACES = "traces"
    LOGS = "logs"
    STEP_RECORDS = "step records"


def compare_inputs(
    healthy: Sequence[Path], regressed: Sequence[Path], statistic: str, topology: Path | None = None
) -> Comparison:
    """The comparison of two sides, each one or several paths: run directories, traces (reduced or not), or logs.

    ``topology`` is a file that tells where hosts and ranks sit. Raises ``NarrowsError`` where a side is not there,
    cannot be read, or is of another kind than the other.
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
        return compare_runs(runs_of(healthy), runs_of(regressed), statistic=statistic, names=names, topology=told)
    if kinds[0] is Kind.STEP_RECORDS:
        return compare_step_records(files_of(healthy), files_of(regressed), names, statistic)
    if kinds[0] is Kind.LOGS:
        return compare_step_times(_logs(healthy), _logs(regressed), names, statistic)
    return compare_traces(_traces(healthy, kinds[0]), _traces(regressed, kinds[1]), names, statistic)


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
        inside = sorted(one for one in path.iterdir() if one.name.endswith(_ENDINGS)) if path.is_dir() else [path]
        # A memory timeline beside traces is no side of a comparison; one given by name is refused by what it is.
        found.extend(one for one in inside if one.is_file() and (one == path or not memory_kind(one)))
    return found


def _file_kind(path: Path) -> Kind:
    head = _head(path).lstrip()
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


def _traces(paths: Sequence[Path], kind: Kind) -> list[Reduced]:
    files = [file for file in files_of(paths) if _file_kind(file) is kind]
    return [read_reduced(file) if kind is Kind.REDUCED else reduce_file(file) for file in files]


def _logs(paths: Sequence[Path]) -> list[list[float]]:
    """The step times of each log, in ms, steps without one left out."""
    found: list[list[float]] = []
    for file in files_of(paths):
        data = file.read_bytes()
        log = read_log(gzip.decompress(data) if data.startswith(_GZIP) else data, str(file))
        found.append([step.step_ms for step in log.steps if step.step_ms is not None])
    return found
