"""CPU seconds and peak memory of reading a trace, ours beside others: python benchmarks/traces.py --mb 50 200 1000

Each reading runs in a fresh process, tools in turn, and the median over rounds is shown; compare ratios, not seconds.
The others run below `--alone-from-mb` only: they need 5 to 10 bytes of memory for a byte of trace.
They run where they are installed: here, or in an environment of their own, whose interpreter --peer-python names
(`python -m venv peers && peers/bin/pip install HolisticTraceAnalysis==0.5.0 pandas==2.3.3 orjson`). Peers build tables
that answer more questions; the row of `narrows` is what `narrows reduce` does: accounts, steps, gaps by cause,
collectives, kernels, memory and a label.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

# What only the measuring process needs is imported in its functions: a reading process pays for its reader alone.

BASE_US = 4_458_676_983_526
KERNELS = (
    "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 32, true, 1>(float, float, float, cudnnTensorStruct)",
    "ampere_sgemm_128x64_nt",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorList>",
)
OPERATORS = ("aten::add_", "aten::convolution_backward", "autograd::engine::evaluate_function: AddmmBackward0")
RUNTIME = ("cudaLaunchKernel", "cudaEventRecordWithFlags", "cudaStreamWaitEvent")
HEAD = """
{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "Synthetic GPU", "totalGlobalMem": 42297524224
    }
  ],
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1711964646000000000,
  "traceEvents": ["""
COLLECTIVE = (
    ',      "Collective name": "allreduce", "In msg nelems": 6637568, "Out msg nelems": 6637568,      "Group size": 2, '
    '"dtype": "Float", "Process Group Name": "0", "Process Group Description": "default_pg", '
    '"Process Group Ranks": "[0, 1]", "Seq": {seq}'
)


def event(cat: str, name: str, ts: float, dur: float, args: str, *, pid: int = 290, tid: int = 291) -> str:
    return (
        f'\n  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
        f'    "ts": {ts:.3f}, "dur": {dur:.3f},\n    "args": {{\n      {args}\n    }}\n  }}'
    )


def units(seed: int) -> Iterator[list[str]]:
    """Endless training: operators, launches, flows and one kernel a unit; a copy in four, a collective in 150."""
    import random

    draw = random.Random(seed)
    ts, device, number, step_at = float(BASE_US), float(BASE_US), 0, float(BASE_US)
    while True:
        number += 1
        found = []
        for op in range(5):
            dims = f'"External id": {number}, "Ev Idx": {op}, "Input Dims": [[2048, 512, 7, 7], [], [2048]], '
            found.append(event("cpu_op", draw.choice(OPERATORS), ts, 21.5, dims + '"Input type": ["float", "Scalar"]'))
            ts += draw.random() * 4
        for call in range(3):
            ids = f'"External id": {number}, "cbid": 211, "correlation": {3 * number + call}'
            found.append(event("cuda_runtime", RUNTIME[call], ts + call, 5.2, ids))
        device = max(device, ts + 4)
        dur = draw.random() * 60
        found.extend(device_events(number, ts, device, dur))
        device += dur + 0.4
        if number % 500 == 0:
            found.append(
                event("user_annotation", f"ProfilerStep#{number // 500}", step_at, ts - step_at, '"Ev Idx": 1')
            )
            step_at = ts
        yield found


def device_events(number: int, ts: float, at: float, dur: float) -> Iterator[str]:
    flow = f'"id": {3 * number}, "pid": 290, "tid": 291, "ts": {ts:.3f},\n    "cat": "ac2g", "name": "ac2g"'
    yield f'\n  {{\n    "ph": "s", {flow}\n  }}'
    place = f'"External id": {number},      "queued": 0, "device": 0, "context": 1,      "correlation": {3 * number}, '
    shape = '"registers per thread": 40,      "shared memory": 0,      "grid": [512, 1, 1],      "block": [512, 1, 1]'
    if number % 150 == 0:
        named = '"stream": 40,      ' + shape + COLLECTIVE.replace("{seq}", str(number))
        yield event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", at, 2 * dur, place + named, pid=0, tid=40)
    elif number % 4 == 0:
        yield event(
            "gpu_memcpy", "Memcpy DtoD (Device -> Device)", at, dur, place + '"stream": 7, "bytes": 4000', pid=0
        )
    else:
        yield event("kernel", KERNELS[number % 4], at, dur, place + '"stream": 7,      ' + shape, pid=0, tid=7)
    yield f'\n  {{\n    "ph": "f", {flow}, "bp": "e"\n  }}'


def write_trace(path: Path, num_bytes: int, seed: int = 7) -> None:
    """A trace of at least this size in Kineto's own layout."""
    with path.open("w") as out:
        written = out.write(HEAD)
        separator = ""
        for found in units(seed):
            written += out.write(separator + ",".join(found))
            separator = ","
            if written >= num_bytes:
                break
        out.write('\n  ],\n  "traceName": "/tmp/trace.json"\n}')


def read_ours(path: str) -> None:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command does, before numpy starts its threads
    from narrows.reducers.traces.reduce import reduce_file

    assert reduce_file(path).devices["0"].busy_ns > 0


def read_json(path: str) -> None:
    import json

    assert json.loads(Path(path).read_bytes())["traceEvents"]


def read_orjson(path: str) -> None:
    import orjson

    assert orjson.loads(Path(path).read_bytes())["traceEvents"]


def read_hta(path: str) -> None:
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis(trace_files={0: path})
    analysis.get_temporal_breakdown(visualize=False)
    analysis.get_comm_comp_overlap(visualize=False)
    analysis.get_gpu_kernel_breakdown(visualize=False)


def read_tracelens(path: str) -> None:
    from TraceLens import TreePerfAnalyzer

    analyzer = TreePerfAnalyzer.from_file(path)
    analyzer.get_df_gpu_timeline()
    analyzer.get_df_kernel_launchers()


TOOLS: dict[str, tuple[str, Callable[[str], None]]] = {
    "narrows": ("narrows.reducers", read_ours),
    "json.loads": ("json", read_json),
    "orjson.loads": ("orjson", read_orjson),
    "HTA": ("hta", read_hta),
    "TraceLens": ("TraceLens", read_tracelens),
}


def interpreter_of(tool: str, peer_python: Path | None) -> str | None:
    """The interpreter that can import the tool, ours first; None when there is none."""
    import subprocess

    module = TOOLS[tool][0]
    for python in [sys.executable, *([str(peer_python)] if peer_python else [])]:
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module.split('.')[0]!r}) is None)"
        if subprocess.run([python, "-c", code], check=False).returncode == 0:
            return python
    return None


def cost(python: str, tool: str, path: Path) -> tuple[float, float, bool]:
    """CPU seconds (user and system), peak MB and success of one reading in a fresh process."""
    import subprocess

    words = [python, __file__, "--read", tool, str(path)]
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, child.returncode == 0


def compare(path: Path, tools: Mapping[str, str], rounds: int) -> None:
    from statistics import median

    taken: dict[str, list[tuple[float, float, bool]]] = {tool: [] for tool in tools}
    for _ in range(rounds):
        for tool, python in tools.items():
            taken[tool].append(cost(python, tool, path))
    ours = median(cpu for cpu, _, _ in taken["narrows"])
    size_mb = path.stat().st_size / 1e6
    for tool, rows in taken.items():
        cpu_s, peak_mb = median(row[0] for row in rows), max(row[1] for row in rows)
        failed = "" if all(row[2] for row in rows) else "  (failed)"
        row = f"| {path.name} | {size_mb:.0f} | {tool} | {cpu_s:.2f} | {peak_mb:.0f} | {cpu_s / ours:.1f} |{failed}"
        print(row, flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--read"]:
        tool, path = sys.argv[2:]
        TOOLS[tool][1](path)
        return
    measure()


def measure() -> None:
    import argparse
    import gzip
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, nargs="+", default=[50, 200])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alone-from-mb", type=int, default=1000, help="traces of this size or more: narrows alone")
    parser.add_argument("--gz", action="store_true", help="compress the trace as well, for our row alone")
    parser.add_argument("--tools", nargs="+", choices=list(TOOLS), default=list(TOOLS))
    parser.add_argument("--peer-python", type=Path, help="interpreter of the environment that the peers are in")
    chosen = parser.parse_args()
    found = {tool: interpreter_of(tool, chosen.peer_python) for tool in TOOLS if tool in {*chosen.tools, "narrows"}}
    tools = {tool: python for tool, python in found.items() if python}
    print(f"not installed: {', '.join(sorted(set(found) - set(tools))) or 'none'}; load {os.getloadavg()[0]:.1f}")
    print("| trace | MB | reader | CPU s | peak MB | times narrows' CPU |\n|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for size in chosen.mb:
            path = Path(folder) / f"synthetic-{size}mb.json"
            write_trace(path, size * 10**6)
            alone = {"narrows": tools["narrows"]}
            compare(path, alone if size >= chosen.alone_from_mb else tools, chosen.rounds)
            if chosen.gz:
                packed = path.with_suffix(".json.gz")
                with path.open("rb") as plain, gzip.open(packed, "wb", 6) as out:
                    while block := plain.read(1 << 20):
                        out.write(block)
                compare(packed, alone, chosen.rounds)
            path.unlink()


if __name__ == "__main__":
    main()
