"""What `narrows reduce TRACE --json` and `narrows compare A B --json` print, field by field, against a slow reading."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import brute_force
import pytest
import trace_makers as make

from narrows.flows.cli import main

T = make.BASE_US * 1000
ACCOUNTS = {f"{name}_ns" for name in ("span", "busy", "idle", "compute", "communication", "exposed_communication",
                                      "copy", "exposed_copy")}  # fmt: skip
QUALITY = {"layout": str, "bytes": int, "truncated": bool, "repaired": int, "dropped": int, "dropped_for": dict,
           "unlinked": int, "clipped_ns": int}  # fmt: skip
PAGES = Path(__file__).parents[2] / "docs"


def rocm() -> list[make.Event]:
    events = make.training(seed=5)
    for event in events:
        if event.get("cat") == "cuda_runtime":
            event["name"] = "hipLaunchKernel"
        elif event.get("cat") == "kernel" and "Collective name" in event["args"]:
            event["name"] = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>) [clone .kd]"
    return events


def mtia() -> list[make.Event]:
    """One category for all work on the device; what is a copy is told by name alone."""
    events = make.training(seed=6)
    for event in events:
        if event.get("cat") == "cuda_runtime":
            event["cat"] = "mtia_runtime"
        elif event.get("cat") in ("kernel", "gpu_memcpy"):
            event["name"] = "dma_copy" if event["cat"] == "gpu_memcpy" else event["name"]
            event["cat"] = "mtia_ccp_events"
    return events


def cpu_only() -> list[make.Event]:
    found = []
    for step in range(3):
        at = T + step * 1_000_000
        found += [make.annotation(f"ProfilerStep#{step}", at, 900_000), make.annotation("gloo:all_reduce", at, 200_000)]
    return found


VARIANTS: dict[str, Callable[[], list[make.Event]]] = {
    "cuda": lambda: make.training(seed=4), "rocm": rocm, "mtia": mtia, "cpu": cpu_only,
}  # fmt: skip


Printed = Callable[..., dict[str, Any]]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    """What a command prints as JSON, through the command line itself."""

    def run(*words: object) -> dict[str, Any]:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        assert ended.value.code == 0
        return json.loads(capsys.readouterr().out)

    return run


def ns(time_us: Any) -> int:
    return brute_force._ns(time_us)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("layout", make.LAYOUTS)
def test_a_reduced_trace_is_what_a_slow_reading_of_the_same_file_gives(
    layout: str, variant: str, tmp_path: Path, printed: Printed
) -> None:
    path = make.write(tmp_path / "trace.json", VARIANTS[variant](), layout, rank=1)
    found = printed("reduce", path, "--json")
    events = brute_force.events_of(path)
    wanted, clipped_ns = brute_force.accounts(events)
    assert (found["schema"], found["rank"], found["devices"]) == (1, 1, wanted)
    assert all(set(entry) == ACCOUNTS for entry in found["devices"].values())
    assert {key: type(value) for key, value in found["quality"].items()} == QUALITY
    assert found["quality"] | {"layout": layout, "bytes": path.stat().st_size} == found["quality"]
    assert (found["quality"]["truncated"], found["quality"]["clipped_ns"]) == (False, clipped_ns)
    _check_steps(found, events)
    _check_kernels(found, events)
    _check_collectives(found, events, on_host=variant == "cpu")
    _check_memory(found, events)
    label = found["label"]
    assert (label is None) == (variant == "cpu")
    assert label is None or {"version", "label", "measurements", "margins"} <= set(label)


def _device_work(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kinds = brute_force._KERNELS | brute_force._COPIES
    return [event for event in events if event.get("ph") == "X" and event.get("cat") in kinds]


def _check_steps(found: dict[str, Any], events: list[dict[str, Any]]) -> None:
    """A step holds the work whose launch lies between its start and the next step's."""
    opened = sorted((ns(event["ts"]), ns(event["ts"]) + ns(event["dur"]), int(event["name"][13:]))
                    for event in events
                    if event["name"].startswith("ProfilerStep") and event["cat"] == "user_annotation")  # fmt: skip
    ends = [start for start, _, _ in opened[1:]] + [opened[-1][1]]
    launches = {event["args"]["correlation"]: ns(event["ts"])
                for event in events if event.get("cat") in ("cuda_runtime", "mtia_runtime")}  # fmt: skip
    assert [(step["step"], step["start_ns"], step["host_ns"]) for step in found["steps"]] == [
        (number, start + make.BASE_NS, end - start) for (start, _, number), end in zip(opened, ends, strict=True)
    ]
    for step, (start, _, _), end in zip(found["steps"], opened, ends, strict=True):
        mine = [e for e in _device_work(events) if start <= launches[e["args"]["correlation"]] < end]
        assert step["devices"] == brute_force.accounts(mine)[0]


def _check_kernels(found: dict[str, Any], events: list[dict[str, Any]]) -> None:
    totals: Counter[str] = Counter()
    numbers: Counter[str] = Counter()
    for event in _device_work(events):
        totals[event["name"]] += ns(event["dur"])
        numbers[event["name"]] += 1
    assert {one["name"]: (one["num"], one["total_ns"]) for one in found["top_kernels"]} == {
        name: (numbers[name], total) for name, total in totals.items()
    }
    assert {one["work"] for one in found["top_kernels"]} <= {"compute", "communication", "copy"}


def _check_collectives(found: dict[str, Any], events: list[dict[str, Any]], *, on_host: bool) -> None:
    if on_host:
        rows = [event for event in events if event["name"].startswith("gloo:")]
    else:
        rows = [event for event in _device_work(events) if "Collective name" in event["args"]]
    wanted = sorted((ns(e["ts"]) + make.BASE_NS, ns(e["ts"]) + ns(e["dur"]) + make.BASE_NS, e["args"].get("Seq"))
                    for e in rows)  # fmt: skip
    assert [(one["start_ns"], one["end_ns"], one.get("seq")) for one in found["collectives"]] == wanted
    assert {one["op"] for one in found["collectives"]} == {"all_reduce"}
    assert {one["on"] for one in found["collectives"]} == {"host" if on_host else "0"}
    if not on_host:
        assert {one["payload_bytes"] for one in found["collectives"]} == {1024 * 4}
        assert {(one["group"], one["group_size"], one["dtype"]) for one in found["collectives"]} == {("0", 2, "Float")}


def _check_memory(found: dict[str, Any], events: list[dict[str, Any]]) -> None:
    held = [event["args"]["Total Allocated"] for event in events if event["name"] == "[memory]"]
    if not held:
        assert found["memory"] == {}
        return
    peak = {"peak_allocated_bytes": max(held), "peak_reserved_bytes": 2 * max(held), "num_events": len(held)}
    assert found["memory"] == {"0": peak}


def slower(path: Path, rank: int, extra_ns: int) -> Path:
    """Steps of one kernel and one all-reduce; with ``extra_ns`` rank 1 computes longer, and rank 0 waits for it."""
    events: list[make.Event] = []
    for step in range(6):
        at = T + step * 2_000_000
        own = 800_000 + (extra_ns if rank == 1 else 0)
        last = 800_000 + extra_ns
        events += [make.annotation(f"ProfilerStep#{step}", at, last + 200_000), make.launch(at, 2 * step + 1),
                   make.launch(at + 10, 2 * step + 2), make.kernel(at, own, args={"correlation": 2 * step + 1}),
                   make.collective(at + own, at + last + 50_000, step, correlation=2 * step + 2)]  # fmt: skip
    return make.write(path, events, rank=rank)


COMPARE = {"step_ms", "accounts_ms", "tested", "window_steps", "culprit", "label", "delta_label", "coverage", "limits",
           "next"}  # fmt: skip


def test_a_comparison_of_traces_is_what_was_planted(tmp_path: Path, printed: Printed) -> None:
    for arm, extra_ns in (("healthy", 0), ("regressed", 300_000)):
        (tmp_path / arm).mkdir()
        for rank in (0, 1):
            slower(tmp_path / arm / f"rank{rank}.json", rank, extra_ns)
    found = printed("compare", tmp_path / "healthy", tmp_path / "regressed", "--json")
    assert set(found) >= COMPARE
    # Windows tile: 5 reach to the next start (2 ms); the last ends with its annotation.
    before, after = (5 * 2.0 + 1.0) / 6, (5 * 2.0 + 1.3) / 6
    assert found["step_ms"]["healthy"] == pytest.approx(before)
    assert found["step_ms"]["regressed"] == pytest.approx(after)
    for change in (found["step_ms"], *found["accounts_ms"].values()):
        assert {"healthy", "regressed", "delta"} <= set(change)
        assert change["delta"] == pytest.approx(change["regressed"] - change["healthy"])
    for side in ("healthy", "regressed", "delta"):
        assert sum(one[side] for one in found["accounts_ms"].values()) == pytest.approx(found["step_ms"][side])
    means = found["views_ms"]["rank_mean"]
    assert means["compute"]["delta"] == pytest.approx(0.15)
    assert means["skew"]["delta"] == pytest.approx(0.15)
    assert means["transfer"]["delta"] == pytest.approx(0.0, abs=1e-9)
    assert means["pipeline"]["delta"] == 0.0
    assert found["window_steps"] == {"healthy": 6, "regressed": 6}
    assert (found["tested"], found["coverage"]) == (False, 1.0)
    assert set(found["culprit"]) == {"kind", "members"}
    assert all(isinstance(one, str) for one in found["limits"])
    assert isinstance(found["label"], str)
    assert isinstance(found["delta_label"], str)
    assert {"row", "experiment", "prediction", "rejection"} <= set(found["next"])


def test_every_key_of_reduced_traces_is_documented(tmp_path: Path, printed: Printed) -> None:
    page = (PAGES / "traces.md").read_text(encoding="utf-8")
    words = set(re.findall(r"`(\w+)`", page))
    paths = [make.write(tmp_path / f"rank{rank}.json", make.training(), rank=rank) for rank in (0, 1)]
    found = printed("reduce", *paths, "--json")
    one = next(iter(found["traces"].values()))
    parts = [one, one["quality"], *one["devices"].values(), *one["steps"], *one["gaps"].values(), *one["collectives"],
             *one["memory"].values(), *one["top_kernels"], found, found["across_ranks"],
             *found["across_ranks"]["collectives"]]  # fmt: skip
    keys = {key for part in parts for key in part}
    assert keys - words - {"kind", "schema"} == set()
