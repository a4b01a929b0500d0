"""Synthetic Kineto traces, written in every layout that profilers write. All numbers come from a seed."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

Event = dict[str, Any]
LAYOUTS = ("kineto", "kineto-lines", "indented", "compact", "minified")
BASE_US = 4_458_676_983_526
BASE_NS = 1_711_964_646_000_000_000


def us(ns: int) -> float:
    """Microseconds as Kineto writes them: three decimals."""
    return round(ns / 1000, 3) if ns % 1000 else ns // 1000


def kernel(start_ns: int, dur_ns: int, **changes: Any) -> Event:
    """A kernel; keywords replace its own keys, ``args`` adds to its arguments."""
    args = {"External id": 5, "device": 0, "context": 1, "stream": 7, "correlation": 0, "grid": [512, 1, 1]}
    args |= changes.pop("args", {})
    event = {"ph": "X", "cat": "kernel", "name": "gemm<float, 128>(float*)", "pid": args["device"], "tid": 7}
    event |= {"ts": us(start_ns), "dur": us(dur_ns)} | changes
    return event | {"args": args}


def launch(start_ns: int, correlation: int, name: str = "cudaLaunchKernel") -> Event:
    times = {"ts": us(start_ns), "dur": 5.25}
    event = {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 90, "tid": 91} | times
    return event | {"args": {"External id": 5, "cbid": 211, "correlation": correlation}}


def annotation(name: str, start_ns: int, dur_ns: int, cat: str = "user_annotation") -> Event:
    event = {"ph": "X", "cat": cat, "name": name, "pid": 90, "tid": 90, "ts": us(start_ns), "dur": us(dur_ns)}
    return event | {"args": {"External id": 1, "Ev Idx": 7}}


def memory(allocated: int, *, device_type: int = 1, device: int = 0) -> Event:
    args = {"Total Reserved": allocated * 2, "Total Allocated": allocated, "Bytes": 512, "Addr": 139733000000000}
    args |= {"Device Id": device, "Device Type": device_type, "Ev Idx": 3}
    return {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 90, "tid": 90} | {
        "ts": BASE_US,
        "args": args,
    }


def collective(start_ns: int, end_ns: int, seq: int | None = None, **args: Any) -> Event:
    named: dict[str, Any] = {"stream": 40, "Collective name": "allreduce", "In msg nelems": 1024, "dtype": "Float"}
    named |= {"Out msg nelems": 1024, "Group size": 2, "Process Group Name": "0", "Comms Id": 11529215046068469760}
    named |= {"Process Group Description": "default_pg", "Process Group Ranks": "[0, 1]"} | args
    if seq is not None:
        named["Seq"] = seq
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    return kernel(start_ns, end_ns - start_ns, name=name, args=named)


def noise(draw: random.Random, at_ns: int) -> list[Event]:
    """What a trace is mostly made of, and what must not be taken for work on a device."""
    stack = 'nn/modules/linear.py(114): forward \u00e9 \\U0001 {lambda()#1} "cat": "kernel"'
    host = {"ph": "X", "pid": 90, "tid": 90, "ts": us(at_ns), "dur": 40.125}
    device = {"ph": "X", "pid": 0, "tid": 7, "ts": us(at_ns), "dur": 900.5}
    shapes = {"Input Dims": [[2, 3], []], "Concrete Inputs": ["", "}, {"], "nested": [{"a": 1}, {"b": 2}]}
    return [
        host | {"cat": "python_function", "name": stack, "args": {"Python id": draw.randrange(99), "parent": None}},
        host | {"cat": "cpu_op", "name": "aten::linear", "args": {"stream": 0} | shapes},
        device | {"cat": "cuda_sync", "name": "Stream Sync", "args": {"device": 0, "stream": 7, "correlation": 1}},
        device | {"cat": "gpu_user_annotation", "name": "ProfilerStep#9", "args": {"External id": 1}},
        {"ph": "s", "id": 5, "pid": 90, "tid": 91, "ts": us(at_ns), "cat": "ac2g", "name": "ac2g"},
    ]


def training(seed: int = 1, steps: int = 3, kernels: int = 20) -> list[Event]:
    """Steps of kernels, copies and collectives on one device, launched from a host that runs ahead."""
    draw = random.Random(seed)
    begin = BASE_US * 1000
    host, device, number = begin, begin + 300_000, 100
    free = {20: begin, 40: begin}  # when the streams of copies and collectives are free
    events: list[Event] = []
    tail: list[Event] = [{"ph": "M", "name": "process_name", "pid": 90, "tid": 0, "args": {"name": "python"}}]
    for step in range(steps):
        opened = host
        for index in range(kernels):
            host += draw.randrange(2_000, 30_000)
            device = max(device + draw.randrange(0, 4_000), host + 2_500)
            number += 1
            dur = draw.randrange(500, 60_000)
            events += noise(draw, host)
            events.append(launch(host, number))
            args = {"correlation": number, "External id": number}
            if index % 5 in (3, 4):
                stream = 20 if index % 5 == 3 else 40
                start = max(device, free[stream])
                free[stream] = start + 2 * dur
                tail.append(_copy_or_collective(start, dur, stream, step * kernels + index, args))
            else:
                tail.append(kernel(device, dur, args=args | {"stream": 7 + index % 2}))
                device += dur
            events.append(memory(1_000_000 + draw.randrange(1000) * 512))
        host += 5_000
        events.append(annotation(f"ProfilerStep#{step + 4}", opened, host - opened))
        host += 1_000
    return events + tail


def _copy_or_collective(start: int, dur: int, stream: int, seq: int, args: dict[str, Any]) -> Event:
    if stream == 40:
        return collective(start, start + 2 * dur, seq, **args)
    copy = {"cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)"}
    return kernel(start, dur, args=args | {"bytes": 4096, "stream": stream}, **copy)


def document(events: list[Event], *, rank: int | None = 0, world: int = 2, **extra: Any) -> dict[str, Any]:
    head: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "GPU", "warpSize": 32}]}
    if rank is not None:
        head["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world}
    return head | {"displayTimeUnit": "ms", "baseTimeNanoseconds": BASE_NS} | extra | {"traceEvents": events}


def render(doc: dict[str, Any] | list[Event], layout: str) -> str:
    """The document in one of LAYOUTS; a list gives the bare array."""
    if layout == "minified":
        return json.dumps(doc, separators=(",", ":"))
    if layout == "compact":
        return json.dumps(doc)
    if layout == "indented":
        return json.dumps(doc, indent=2)
    one = _one_line if layout == "kineto" else _key_per_line
    events = doc if isinstance(doc, list) else doc["traceEvents"]
    body = ",\n".join(one(event) for event in events)
    if isinstance(doc, list):
        return "[\n" + body + "\n]"
    head = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in doc.items() if key != "traceEvents")
    return f'\n{{\n{head},\n  "traceEvents": [\n{body}\n  ],\n  "traceName": "/tmp/trace.json"\n}}'


def _one_line(event: Event) -> str:
    """As Kineto wrote from 2021 to 2026: several keys a line, a blank instead of a line break between arguments."""
    first = ", ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in event.items() if k not in ("ts", "dur", "args"))
    lines = [f"    {first}"]
    times = ", ".join(f'"{key}": {json.dumps(event[key])}' for key in ("ts", "dur") if key in event)
    lines += [f"    {times}"] if times else []
    if "args" in event:
        args = ",      ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in event["args"].items())
        lines.append(f'    "args": {{\n      {args}\n    }}')
    return "  {\n" + ",\n".join(lines) + "\n  }"


def _key_per_line(event: Event) -> str:
    lines = [f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in event.items() if key != "args"]
    if "args" in event:
        args = ",\n".join(f"      {json.dumps(k)}: {json.dumps(v)}" for k, v in event["args"].items())
        lines.append('    "args": {\n' + args + "\n    }")
    return "  {\n" + ",\n".join(lines) + "\n  }"


def write(path: Path, events: list[Event], layout: str = "kineto", **extra: Any) -> Path:
    """A trace file; compressed when the name says so."""
    text = render(document(events, **extra), layout).encode()
    path.write_bytes(gzip.compress(text, 1) if path.name.endswith(".gz") else text)
    return path
