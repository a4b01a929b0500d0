"""The same numbers once more, slowly: whole files through json, exact decimals, a sweep over every boundary."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

SEVEN_DAYS_NS = 7 * 24 * 3600 * 10**9
_KERNELS = {"kernel", "Kernel", "mtia_ccp_events"}
_COPIES = {"gpu_memcpy", "gpu_memset", "Memcpy", "Memset"}
_COMMUNICATION = ("nccl", "cross_device_reduce", "multimem_all", "nvshmem", "deep_ep")


def events_of(path: Path) -> list[dict[str, Any]]:
    raw = path.read_bytes()
    text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    found = json.loads(text, parse_float=Decimal)
    return found if isinstance(found, list) else found["traceEvents"]


def _ns(value: Any) -> int:
    return int((Decimal(value) * 1000).to_integral_value())


def _work(event: dict[str, Any]) -> str:
    name = event["name"].lower()
    if event["cat"] in _COPIES or (event["cat"] == "mtia_ccp_events" and ("dma" in name or "memcpy" in name)):
        return "copy"
    named = "Collective name" in event.get("args", {}) or any(word in name for word in _COMMUNICATION)
    return "communication" if named else "compute"


def accounts(events: list[dict[str, Any]]) -> tuple[dict[str, dict[str, int]], int]:
    """The accounts by device, in ns, and the overlap inside streams."""
    rows = defaultdict(list)
    for event in events:
        if event.get("ph") != "X" or event.get("cat") not in _KERNELS | _COPIES or "dur" not in event:
            continue
        args = event.get("args", {})
        start, dur = _ns(event["ts"]), _ns(event["dur"])
        if not 0 <= dur <= SEVEN_DAYS_NS:
            continue
        device = str(args.get("device", event["pid"]))
        stream = str(args.get("stream", event["tid"]))
        rows[device].append([stream, start, start + dur, _work(event)])
    clipped = sum(_clip(device_rows) for device_rows in rows.values())
    return {device: _sweep(device_rows) for device, device_rows in rows.items()}, clipped


def _clip(rows: list[list[Any]]) -> int:
    clipped = 0
    rows.sort(key=lambda row: row[:3])
    for row, after in pairwise(rows):
        if row[0] == after[0] and row[2] > after[1]:
            clipped += row[2] - after[1]
            row[2] = after[1]
    return clipped


def _sweep(rows: list[list[Any]]) -> dict[str, int]:
    changes = sorted([(start, 1, work) for _, start, _, work in rows] + [(end, -1, work) for _, _, end, work in rows])
    active = {"compute": 0, "communication": 0, "copy": 0}
    total = dict.fromkeys(("busy", "compute", "communication", "exposed_communication", "copy", "exposed_copy"), 0)
    at = changes[0][0]
    for time, change, work in changes:
        length, at = time - at, time
        total["busy"] += length * any(active.values())
        for name, number in active.items():
            total[name] += length * bool(number)
        total["exposed_communication"] += length * bool(active["communication"] and not active["compute"])
        alone = active["copy"] and not active["compute"] and not active["communication"]
        total["exposed_copy"] += length * bool(alone)
        active[work] += change
    span = changes[-1][0] - changes[0][0]
    return {f"{name}_ns": value for name, value in (total | {"span": span, "idle": span - total["busy"]}).items()}
