"""One file, or a set of them, to a reading: detect the kind, read it, and say what several of one kind say together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from narrows.reducers.readers import nsys
from narrows.reducers.readers.common import LARGEST, NotUnderstood, UnknownKindError, UnreadableError, plain, unpacked
from narrows.reducers.readers.dcgm import Diag, read_dcgm
from narrows.reducers.readers.detect import Kind, detect, is_trace
from narrows.reducers.readers.flight_reading import FlightReading, read_dumps
from narrows.reducers.readers.flight_recorder import Dump, rank_from_name, read_flight_recorder
from narrows.reducers.readers.logs import TrainingLog, read_log
from narrows.reducers.readers.nccl_pairs import PairReading, read_pairs
from narrows.reducers.readers.nccl_tests import NcclTests, read_nccl_tests
from narrows.reducers.readers.nccl_topology import NcclTopology, read_nccl_topology
from narrows.reducers.readers.network import PortList, read_ports
from narrows.reducers.readers.nvidia_smi import SmiQuery, read_nvidia_smi
from narrows.reducers.readers.nvidia_topo import TopoMatrix, read_topo
from narrows.reducers.readers.pipeline_reading import PipelineReading, read_pipeline
from narrows.reducers.readers.slurm import SlurmOutput, read_slurm
from narrows.reducers.readers.step_records import StepRecords, read_step_records

SCHEMA = 1
_HEAD = 256 << 10
_FEWEST_PAIRS = 3  # two pairs of hosts cannot say which of them is the odd one

Value = (
    Diag | Dump | NcclTests | NcclTopology | PipelineReading | PortList | SlurmOutput | SmiQuery | StepRecords
    | TopoMatrix | TrainingLog | nsys.NsysReport
)  # fmt: skip

READERS: dict[Kind, Callable[[bytes, str], Value]] = {
    Kind.NCCL_TESTS: read_nccl_tests,
    Kind.TRAINING_LOG: read_log,
    Kind.DCGM: read_dcgm,
    Kind.NVIDIA_SMI: read_nvidia_smi,
    Kind.NVIDIA_TOPO: read_topo,
    Kind.PORTS: read_ports,
    Kind.NCCL_TOPOLOGY: read_nccl_topology,
    Kind.SLURM: read_slurm,
    Kind.STEP_RECORDS: read_step_records,
    Kind.OPERATION_TIMELINE: read_pipeline,
    Kind.NSYS: nsys.read_nsys_bytes,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A file that was read. ``torn``: its gzip is cut, and ``value`` holds what came before the cut."""

    path: Path
    kind: Kind
    value: Value
    torn: bool = False

    @property
    def not_understood(self) -> NotUnderstood:
        return self.value.not_understood


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A file that was not read, and why. ``unknown``: it is of no known kind, which is no damage."""

    path: Path
    why: str
    unknown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All files given, and what those of one kind say together: ``dumps`` of two or more ranks, ``pairs`` of three or
    more two-host tests. ``why_not`` says why a set could not be read as one.
    """

    readings: tuple[Reading, ...]
    refusals: tuple[Refusal, ...]
    dumps: FlightReading | None = None
    pairs: PairReading | None = None
    why_not: tuple[str, ...] = ()


def read_file(path: Path, pattern: str | None = None) -> Reading:
    """The file's evidence. With ``pattern`` it is a training log, whatever it looks like.

    Raises:
        UnreadableError: it cannot be opened, is of no known kind, or is damaged.
        ValueError: ``pattern`` is no regular expression with a group ``step``.
    """
    stored = _stored(path, pattern)
    if pattern is None and stored[: len(nsys.MAGIC)] == nsys.MAGIC and path.is_file():
        return Reading(path=path, kind=Kind.NSYS, value=nsys.read_nsys(path))
    data, torn = unpacked(stored, str(path))
    if not data.strip(b"\x00"):
        raise UnreadableError(f"{path}: {_nothing(stored, torn)}; copy it again from where it was written")
    if pattern is not None:
        return Reading(path=path, kind=Kind.TRAINING_LOG, value=read_log(data, str(path), pattern), torn=torn)
    kind = detect(data)
    if kind is Kind.FLIGHT_RECORDER:
        dump = read_flight_recorder(data, str(path), _rank(path))
        return Reading(path=path, kind=kind, value=dump, torn=torn)
    if kind is Kind.KINETO:
        raise _trace(path)
    if kind not in READERS:
        raise UnknownKindError(
            f"{path}: is of no known kind ({len(data)} bytes); a training log of your own is read with --pattern and "
            "named groups, as in '(?P<step>\\d+) .* (?P<step_ms>[\\d.]+) ms'"
        )
    return Reading(path=path, kind=kind, value=READERS[kind](data, str(path)), torn=torn)


def _rank(path: Path) -> int | None:
    return rank_from_name(path.name)


def _trace(path: Path) -> UnreadableError:
    return UnreadableError(f"{path}: is a profiler trace; read it with narrows reduce {path}")


def _nothing(stored: bytes, torn: bool) -> str:
    if not stored:
        return "is empty"
    return "its gzip is torn before anything in it is whole" if torn else "holds nothing, or NUL bytes alone"


def _stored(path: Path, pattern: str | None) -> bytes:
    """The file as it is stored, read once from front to back, as a pipe can be; of SQLite the beginning alone.

    A trace is refused by its beginning, since it can be larger than memory.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
            if pattern is None and is_trace(unpacked(head, str(path))[0]):
                raise _trace(path)
            if pattern is None and head[: len(nsys.MAGIC)] == nsys.MAGIC and path.is_file():
                return head
            data = head + file.read(LARGEST + 1 - len(head))
    except IsADirectoryError:
        raise UnreadableError(f"{path}: is a folder without files; give the files, or the folders in it") from None
    except OSError as error:
        raise UnreadableError(f"{path}: cannot be opened ({error.strerror})") from None
    if len(data) > LARGEST:
        raise UnreadableError(f"{path}: is larger than {LARGEST} bytes; cut it to the part that matters")
    return data


def read_evidence(paths: Sequence[Path], pattern: str | None = None) -> Evidence:
    """Every file of ``paths``, those of folders included; one that cannot be read does not stop the others."""
    readings: list[Reading] = []
    refusals: list[Refusal] = []
    for path in _files(paths):
        try:
            readings.append(read_file(path, pattern))
        except UnreadableError as error:
            unknown = isinstance(error, UnknownKindError)
            refusals.append(Refusal(path=path, why=str(error), unknown=unknown))
    why_not: list[str] = []
    return Evidence(
        readings=tuple(readings),
        refusals=tuple(refusals),
        dumps=_together(readings, Dump, 2, read_dumps, why_not),
        pairs=_together(_pairwise(readings), NcclTests, _FEWEST_PAIRS, read_pairs, why_not),
        why_not=tuple(why_not),
    )


def _files(paths: Iterable[Path]) -> Iterable[Path]:
    """The files, and those in the folders; a folder without any, or that cannot be listed, stands for itself."""
    for path in paths:
        try:
            inside = sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else []
        except OSError:
            inside = []
        yield from inside or [path]


def _pairwise(readings: Sequence[Reading]) -> list[Reading]:
    """The two-host tests, and those that failed before they named a host, where there are pairs enough to compare."""
    found = [one for one in readings if isinstance(one.value, NcclTests) and len(one.value.hosts) in (0, 2)]
    pairs = {one.value.hosts for one in found if isinstance(one.value, NcclTests) and one.value.hosts}
    return found if len(pairs) >= _FEWEST_PAIRS else []


def _together(
    readings: Sequence[Reading], kind: type[Any], fewest: int, read: Callable[[dict[str, Any]], Any], why_not: list[str]
) -> Any:
    values = {str(one.path): one.value for one in readings if isinstance(one.value, kind)}
    if len(values) < fewest:
        return None
    try:
        return read(values)
    except ValueError as error:
        why_not.append(str(error))
        return None


def as_json(evidence: Evidence) -> dict[str, Any]:
    """The machine form: schema 1; what was not measured is absent."""
    files: list[dict[str, Any]] = []
    for one in evidence.readings:
        value = plain(one.value)
        unread = value.pop("not_understood")
        head = {"path": str(one.path), "kind": one.kind.value, "torn": one.torn}
        files.append({**head, "reading": value, "not_understood": unread})
    files += [{"path": str(one.path), "error": one.why} for one in evidence.refusals]
    sets = {
        key: plain(value)
        for key, value in (("flight_recorder", evidence.dumps), ("nccl_pairs", evidence.pairs))
        if value is not None
    }
    return {"schema": SCHEMA, "kind": "read", "files": files, "sets": sets, "why_not": list(evidence.why_not)}
