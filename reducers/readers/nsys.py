"""Nsight Systems reports exported to SQLite: what each GPU did, its NCCL kernels, and its NVTX ranges.

All times are integer nanoseconds of the report's own clock. Unions of intervals: what runs at the same time counts
once. Compute is every kernel that is not communication; copy is memcpy and memset.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from narrows.reducers.readers.common import NotUnderstood, UnreadableError, UnreadList

MAGIC = b"SQLite format 3\x00"
TOP = 20
_KERNELS, _MEMCPY, _MEMSET, _NVTX = (
    "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET", "NVTX_EVENTS",
)  # fmt: skip
_COMMUNICATION = re.compile(r"nccl|rccl|msccl|nvshmem", re.IGNORECASE)
# Source: ENUM_NSYS_EVENT_TYPE of the export: NvtxPushPopRange and NvtxStartEndRange.
_RANGES = (59, 60)

Spans = NDArray[np.int64]  # n x 2: start, end


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTotal:
    """All launches of one kernel on one device; ``total_ns`` is their sum, overlaps counted twice."""

    name: str
    device: int
    count: int
    total_ns: int
    longest_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclKernel:
    """One communication kernel."""

    name: str
    device: int
    stream: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NvtxTotal:
    """All ranges with one text."""

    text: str
    count: int
    total_ns: int
    longest_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTotals:
    """One device, from its first to its last activity."""

    span_ns: int
    busy_ns: int
    idle_ns: int
    compute_ns: int
    communication_ns: int
    exposed_communication_ns: int
    copy_ns: int
    exposed_copy_ns: int
    kernels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NsysReport:
    """The whole report. ``devices`` by device number; ``missing`` tables were not recorded or not exported."""

    devices: dict[int, DeviceTotals]
    kernels: tuple[KernelTotal, ...]
    nccl: tuple[NcclKernel, ...]
    nvtx: tuple[NvtxTotal, ...]
    nvtx_ranges: int = 0
    product: str | None = None
    schema_version: str | None = None
    missing: tuple[str, ...] = ()
    not_understood: NotUnderstood = field(default_factory=NotUnderstood)


@dataclass(frozen=True, slots=True)
class _Activity:
    """Rows of one kind: spans n x 2, device and stream per row, and a name per row where there is one."""

    spans: Spans
    device: NDArray[np.int64]
    stream: NDArray[np.int64]
    names: list[str]


def read_nsys(path: Path) -> NsysReport:
    """The report in ``path``, which is opened read-only.

    Raises:
        UnreadableError: not an SQLite file, damaged, or without a table that nsys exports.
    """
    try:
        with path.open("rb") as file:
            head = file.read(len(MAGIC))
    except OSError as error:
        raise UnreadableError(f"{path}: cannot be opened ({error.strerror})") from None
    return _read(head, str(path), f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1")


def read_nsys_bytes(data: bytes, name: str = "input") -> NsysReport:
    """The report that ``data`` holds, as a compressed export is when it is unpacked.

    Raises:
        UnreadableError: as ``read_nsys``.
    """
    return _read(data, name, ":memory:")


def _read(data: bytes, name: str, where: str) -> NsysReport:
    """The report in the database ``where``, or in ``data`` itself where that is memory."""
    if data[: len(MAGIC)] != MAGIC:
        raise UnreadableError(f"{name}: is no SQLite file; export with nsys export --type sqlite")
    try:
        with closing(sqlite3.connect(where, uri=True)) as base:
            if where == ":memory:":
                base.deserialize(data)
            base.execute("PRAGMA trusted_schema=OFF")
            base.text_factory = lambda raw: raw.decode("utf-8", "replace")
            return _report(base, name)
    except (sqlite3.Error, UnicodeDecodeError, OverflowError) as error:
        raise UnreadableError(f"{name}: is a damaged SQLite file ({error}); export it again") from None


def _tables(base: sqlite3.Connection) -> set[str]:
    """Tables alone: a view may compute for ever."""
    return {str(name) for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _report(base: sqlite3.Connection, name: str) -> NsysReport:
    tables = _tables(base)
    if not tables & {_KERNELS, _NVTX, "META_DATA_EXPORT"}:
        raise UnreadableError(f"{name}: has no table that nsys exports; export with nsys export --type sqlite")
    unread = UnreadList()
    strings = dict(base.execute("SELECT id, value FROM StringIds")) if "StringIds" in tables else {}
    kernels = _activity(base, _KERNELS, tables, strings, unread)
    copies = [_activity(base, table, tables, {}, unread) for table in (_MEMCPY, _MEMSET)]
    meta = dict(base.execute("SELECT name, value FROM META_DATA_EXPORT")) if "META_DATA_EXPORT" in tables else {}
    nvtx, ranges = _nvtx(base, tables, strings, unread)
    product = f"{meta.get('EXPORT_PRODUCT_NAME', '')} {meta.get('EXPORT_PRODUCT_VERSION', '')}".strip()
    return NsysReport(
        devices=_devices(kernels, copies),
        kernels=tuple(_kernel_totals(kernels)),
        nccl=tuple(_nccl(kernels)),
        nvtx=nvtx,
        nvtx_ranges=ranges,
        product=product or None,
        schema_version=str(meta["EXPORT_SCHEMA_VERSION"]) if meta.get("EXPORT_SCHEMA_VERSION") else None,
        missing=tuple(name for name in (_KERNELS, _MEMCPY, _MEMSET, _NVTX) if name not in tables),
        not_understood=unread.done(),
    )


def _activity(
    base: sqlite3.Connection, table: str, tables: set[str], strings: Mapping[int, str], unread: UnreadList
) -> _Activity:
    rows: list[tuple[int, int, int, int, int]] = []
    if table in tables:
        name = "shortName" if table == _KERNELS else "0"
        query = f'SELECT start, "end", deviceId, streamId, {name} FROM {table}'  # noqa: S608 - our own names
        for row in base.execute(query):
            if all(isinstance(value, int) and abs(value) < 2**62 for value in row) and row[1] >= row[0]:
                rows.append(row)
            else:
                unread.add(0, f"{table}: {row}", "not integers, or an end before its start")
    table_N5 = np.array(rows, dtype=np.int64).reshape(-1, 5)
    names = [str(strings.get(int(key), key)) for key in table_N5[:, 4]]
    return _Activity(spans=table_N5[:, :2], device=table_N5[:, 2], stream=table_N5[:, 3], names=names)


def _is_communication(names: list[str]) -> NDArray[np.bool_]:
    known = {name: bool(_COMMUNICATION.search(name)) for name in set(names)}
    return np.array([known[name] for name in names], dtype=bool)


def _devices(kernels: _Activity, copies: list[_Activity]) -> dict[int, DeviceTotals]:
    communication = _is_communication(kernels.names)
    copy_spans = np.concatenate([one.spans for one in copies])
    copy_device = np.concatenate([one.device for one in copies])
    found = {}
    for device in np.unique(np.concatenate([kernels.device, copy_device])):
        mine = kernels.device == device
        compute, talk = kernels.spans[mine & ~communication], kernels.spans[mine & communication]
        copy = copy_spans[copy_device == device]
        every = np.concatenate([compute, talk, copy])
        span, busy = int(every[:, 1].max() - every[:, 0].min()), covered(every)
        found[int(device)] = DeviceTotals(
            span_ns=span,
            busy_ns=busy,
            idle_ns=span - busy,
            compute_ns=covered(compute),
            communication_ns=covered(talk),
            exposed_communication_ns=covered(np.concatenate([compute, talk])) - covered(compute),
            copy_ns=covered(copy),
            exposed_copy_ns=busy - covered(np.concatenate([compute, talk])),
            kernels=int(mine.sum()),
        )
    return found


def covered(spans: Spans) -> int:
    """The length of the union of half-open intervals, ns."""
    if not len(spans):
        return 0
    ordered = spans[np.argsort(spans[:, 0], kind="stable")]
    reach = np.maximum.accumulate(ordered[:, 1])
    starts = np.maximum(ordered[1:, 0], reach[:-1])
    return int(reach[0] - ordered[0, 0] + np.maximum(ordered[1:, 1] - starts, 0).sum())


def _kernel_totals(kernels: _Activity) -> list[KernelTotal]:
    totals: dict[tuple[str, int], list[int]] = {}
    lengths = (kernels.spans[:, 1] - kernels.spans[:, 0]).tolist()
    for name, device, length in zip(kernels.names, kernels.device.tolist(), lengths, strict=True):
        totals.setdefault((name, device), []).append(length)
    made = [
        KernelTotal(name=name, device=device, count=len(found), total_ns=sum(found), longest_ns=max(found))
        for (name, device), found in totals.items()
    ]
    return sorted(made, key=lambda one: (-one.total_ns, one.name, one.device))[:TOP]


def _nccl(kernels: _Activity) -> list[NcclKernel]:
    places = np.flatnonzero(_is_communication(kernels.names))
    made = [
        NcclKernel(
            name=kernels.names[at],
            device=int(kernels.device[at]),
            stream=int(kernels.stream[at]),
            start_ns=int(kernels.spans[at, 0]),
            end_ns=int(kernels.spans[at, 1]),
        )
        for at in places
    ]
    return sorted(made, key=lambda one: (one.device, one.start_ns))


def _nvtx(
    base: sqlite3.Connection, tables: set[str], strings: Mapping[int, str], unread: UnreadList
) -> tuple[tuple[NvtxTotal, ...], int]:
    """The texts with most time, and how many closed ranges there are in all."""
    if _NVTX not in tables:
        return (), 0
    totals: dict[str, list[int]] = {}
    count = 0
    query = f'SELECT text, textId, start, "end", eventType FROM {_NVTX}'  # noqa: S608 - our own names
    for text, key, start, end, kind in base.execute(query):
        if kind not in _RANGES or end is None:
            continue
        if not isinstance(start, int) or not isinstance(end, int) or end < start:
            unread.add(0, f"{_NVTX}: {text} {start} {end}", "not integers, or an end before its start")
            continue
        count += 1
        label = re.sub(r", op_id = \d+", "", str(text if text is not None else strings.get(key, key)))
        found = totals.setdefault(label, [0, 0, 0])
        found[0], found[1], found[2] = found[0] + 1, found[1] + end - start, max(found[2], end - start)
    made = [NvtxTotal(text=text, count=one[0], total_ns=one[1], longest_ns=one[2]) for text, one in totals.items()]
    return tuple(sorted(made, key=lambda one: (-one.total_ns, one.text))[:TOP]), count
