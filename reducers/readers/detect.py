"""What kind of evidence a file is, by its content: names and endings are not looked at."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum

from narrows.reducers.readers import (
    dcgm,
    logs,
    nccl_tests,
    nccl_topology,
    network,
    nvidia_smi,
    nvidia_topo,
    operation_timeline,
    slurm,
    step_records,
)
from narrows.reducers.readers.common import as_text, unpacked

_PROBE = 4 << 20  # text beyond this does not change what a file is
_SQLITE = b"SQLite format 3\x00"


class Kind(StrEnum):
    """The kinds that are told apart. ``kineto`` is read by ``narrows reduce``."""

    FLIGHT_RECORDER = "flight-recorder"
    NCCL_TESTS = "nccl-tests"
    TRAINING_LOG = "training-log"
    STEP_RECORDS = "step-records"
    DCGM = "dcgm"
    NVIDIA_SMI = "nvidia-smi"
    NVIDIA_TOPO = "nvidia-topo"
    PORTS = "ibstat"
    NCCL_TOPOLOGY = "nccl-topology"
    SLURM = "slurm"
    NSYS = "nsys"
    OPERATION_TIMELINE = "operation-timeline"
    KINETO = "kineto"
    UNKNOWN = "unknown"


_LOOKED_FOR: tuple[tuple[Kind, str], ...] = (
    (Kind.NSYS, "the first bytes of an SQLite file"),
    (Kind.OPERATION_TIMELINE, "a parquet file's first bytes, with dp_rank, stage, step, optype, start_ts, duration"),
    (
        Kind.FLIGHT_RECORDER,
        "a pickle's first bytes with 'entries' in it, or JSON with 'entries' and 'pg_config'",
    ),
    (Kind.KINETO, "JSON with traceEvents"),
    (Kind.DCGM, "'DCGM Diagnostic' in JSON, or a table 'Diagnostic | Result'"),
    (Kind.NVIDIA_SMI, "'NVSMI LOG', or <nvidia_smi_log>"),
    (Kind.NCCL_TOPOLOGY, "<system> with <cpu>"),
    (Kind.NVIDIA_TOPO, "a line of GPU0, GPU1, ... over a matrix of links"),
    (Kind.PORTS, "CA 'name' or Infiniband device 'name' port N status"),
    (Kind.NCCL_TESTS, "'# nThread N nGpus N', a table of size, count, type, or a launcher's failure"),
    (Kind.SLURM, "JobId=, NodeName=, PartitionName=, SwitchName=, BlockName=, or a head of sacct's columns"),
    (Kind.STEP_RECORDS, "JSON lines with step and step_ms, one a step"),
    (Kind.TRAINING_LOG, "steps of a known training log, or a distributed PyTorch program's errors"),
)
# In this order: a training log may quote any of the others, and none of them quotes a training log.
_TEXTS: tuple[tuple[Kind, Callable[[str], bool]], ...] = (
    (Kind.DCGM, lambda text: dcgm.looks_like_json(text[:100_000]) or dcgm.looks_like_text(text[:100_000])),
    (Kind.NVIDIA_SMI, lambda text: nvidia_smi.looks_like_xml(text[:4000]) or nvidia_smi.looks_like_text(text[:4000])),
    (Kind.NCCL_TOPOLOGY, nccl_topology.looks_like),
    (Kind.PORTS, lambda text: network.looks_like(text[:20_000])),
    (Kind.NCCL_TESTS, nccl_tests.looks_like),
    (Kind.NVIDIA_TOPO, lambda text: nvidia_topo.looks_like(text[:20_000])),
    (Kind.SLURM, lambda text: _slurm(text[:200_000])),
    (Kind.STEP_RECORDS, step_records.looks_like),
    (Kind.TRAINING_LOG, logs.looks_like),
)


def looked_for() -> tuple[str, ...]:
    """What stands in a file of each kind, in words."""
    return tuple(f"{kind.value}: {sign}" for kind, sign in _LOOKED_FOR)


def detect(data: bytes) -> Kind:
    """The kind of ``data``, of gzip's content where it is gzip.

    Raises:
        UnreadableError: it begins as gzip and does not decompress.
    """
    data, _ = unpacked(data, "input")
    if data[: len(_SQLITE)] == _SQLITE:
        return Kind.NSYS
    if operation_timeline.is_parquet(data):
        return Kind.OPERATION_TIMELINE
    text = as_text(data[:_PROBE])
    if _pickled(data) or _json_dump(text):
        return Kind.FLIGHT_RECORDER
    if is_trace(data):
        return Kind.KINETO
    return next((kind for kind, matches in _TEXTS if matches(text)), Kind.UNKNOWN)


def _pickled(data: bytes) -> bool:
    """Protocols 2 and later begin with their number; a dump of another protocol than that is not known."""
    return data[:1] == b"\x80" and data[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")


def _json_dump(text: str) -> bool:
    if text.lstrip()[:1] != "{":
        return False
    return '"entries"' in text and ('"pg_config"' in text or '"profiling_name"' in text)


def is_trace(data: bytes) -> bool:
    """Whether ``data``, or its beginning, is of a profiler trace."""
    return b'"traceEvents"' in data[:_PROBE] or _event_list(data[:4000])


def _event_list(head: bytes) -> bool:
    """A trace may be a bare list of events, or begin with what was traced and where."""
    return b'"schemaVersion"' in head or (head.lstrip()[:1] == b"[" and b'"ph"' in head and b'"ts"' in head)


def _slurm(text: str) -> bool:
    if slurm.looks_like_topology(text) and not re.search(
        r"^(?!\s*(?:#|$|SwitchName|BlockName|BlockSizes))", text, re.MULTILINE
    ):
        return True
    return slurm.looks_like_scontrol(text) or slurm.looks_like_sacct(text)
