from __future__ import annotations

from pathlib import Path
from typing import Any

import brute_force
import msgspec
import trace_makers as make

from narrows.reducers.traces.reduce import reduce_file
from narrows.reducers.traces.reduced import encode_reduced, read_reduced

T = make.BASE_US * 1000


def two_steps() -> list[make.Event]:
    """Two steps of 1 ms on the host; the device runs each step's kernel while the host is in the next one."""
    events = [
        make.annotation("ProfilerStep#7", T, 990_000),
        make.annotation("ProfilerStep#8", T + 1_000_000, 1_000_000),
    ]
    for number in range(2):
        at = T + number * 1_000_000
        events.append(make.launch(at + 100_000, 51 + number))
        events.append(make.kernel(at + 1_200_000, 400_000, args={"correlation": 51 + number}))
    return events


def test_device_work_belongs_to_the_step_that_launched_it(tmp_path: Path) -> None:
    trace = reduce_file(make.write(tmp_path / "trace.json", two_steps()))
    assert [(step.step, step.devices["0"].busy_ns) for step in trace.steps] == [(7, 400_000), (8, 400_000)]
    assert [step.host_ns for step in trace.steps] == [1_000_000, 1_000_000]
    assert trace.outside == {}


def test_work_launched_before_the_trace_is_kept_apart_and_counts_in_the_whole(tmp_path: Path) -> None:
    early = make.kernel(T + 300_000, 100_000, args={"correlation": 3})
    trace = reduce_file(make.write(tmp_path / "trace.json", [*two_steps(), early]))
    assert trace.outside["before"]["0"].busy_ns == 100_000
    assert trace.devices["0"].busy_ns == 900_000
    assert trace.quality.unlinked == 1


def test_work_whose_launch_is_missing_is_in_no_step(tmp_path: Path) -> None:
    lost = make.kernel(T + 300_000, 100_000, args={"correlation": 9_999})
    trace = reduce_file(make.write(tmp_path / "trace.json", [*two_steps(), lost]))
    assert trace.outside["unlinked"]["0"].busy_ns == 100_000


def test_all_kernels_of_a_graph_belong_to_its_one_launch(tmp_path: Path) -> None:
    events = [*two_steps(), make.launch(T + 150_000, 60, "cudaGraphLaunch")]
    events += [make.kernel(T + 2_700_000 + at, 10_000, args={"correlation": 60}) for at in range(0, 60_000, 20_000)]
    trace = reduce_file(make.write(tmp_path / "trace.json", events))
    assert trace.steps[0].devices["0"].busy_ns == 430_000
    assert trace.quality.unlinked == 0


def test_the_annotation_on_the_device_makes_no_step(tmp_path: Path) -> None:
    ghost = make.annotation("ProfilerStep#7", T + 5, 16_000, cat="gpu_user_annotation")
    trace = reduce_file(make.write(tmp_path / "trace.json", [ghost, *two_steps()]))
    assert trace.steps[0].host_ns == 1_000_000


def gap_events(cause: str) -> list[make.Event]:
    """Two kernels with 100 us between them, T+100us to T+200us, launched so that one cause holds."""
    launched = {"host": T + 180_000, "launch": T + 101_000, "dependency": T + 10_000}[cause]
    events = [make.launch(T - 50_000, 1), make.kernel(T, 100_000, args={"correlation": 1})]
    return [*events, make.launch(launched, 2), make.kernel(T + 200_000, 50_000, args={"correlation": 2})]


def test_an_idle_gap_is_the_hosts_until_the_launch_and_under_way_after(tmp_path: Path) -> None:
    late = reduce_file(make.write(tmp_path / "late.json", gap_events("host"))).gaps["0"]
    assert (late.host_ns, late.launch_ns, late.dependency_ns) == (80_000, 20_000, 0)
    soon = reduce_file(make.write(tmp_path / "soon.json", gap_events("launch"))).gaps["0"]
    assert (soon.host_ns, soon.launch_ns) == (1_000, 99_000)


def test_work_launched_in_time_waited_for_something_else(tmp_path: Path) -> None:
    gaps = reduce_file(make.write(tmp_path / "trace.json", gap_events("dependency"))).gaps["0"]
    assert (gaps.dependency_ns, gaps.total_ns) == (100_000, 100_000)


def test_waiting_for_data_is_told_from_the_host(tmp_path: Path) -> None:
    loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    events = [*gap_events("host"), make.annotation(loader, T + 110_000, 60_000)]
    gaps = reduce_file(make.write(tmp_path / "trace.json", events)).gaps["0"]
    assert (gaps.input_ns, gaps.host_ns, gaps.launch_ns) == (60_000, 20_000, 20_000)


def test_gaps_without_a_launch_and_gaps_under_a_microsecond_are_told_apart(tmp_path: Path) -> None:
    events = [make.kernel(T, 1_000), make.kernel(T + 1_900, 1_000), make.kernel(T + 9_900, 1_000)]
    gaps = reduce_file(make.write(tmp_path / "trace.json", events)).gaps["0"]
    assert (gaps.queue_ns, gaps.unlinked_ns, gaps.num) == (900, 7_000, 2)


def test_gaps_of_all_causes_add_up_to_the_idle_time(tmp_path: Path) -> None:
    trace = reduce_file(make.write(tmp_path / "trace.json", make.training(seed=9, steps=4)))
    assert trace.gaps["0"].total_ns == trace.devices["0"].idle_ns > 0


def test_every_launched_event_is_in_the_step_whose_window_holds_its_launch(tmp_path: Path) -> None:
    """Against an independent reading: each event's launch by its correlation, each launch's step by its time."""
    path = make.write(tmp_path / "trace.json", make.training(seed=5, steps=4))
    events = brute_force.events_of(path)
    launched = {e["args"]["correlation"]: e["ts"] for e in events if e.get("cat") == "cuda_runtime"}
    opened = {int(e["name"][13:]): e["ts"] for e in events if e.get("cat") == "user_annotation"}
    mine: dict[int, list[dict[str, Any]]] = {step: [] for step in opened}
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy"):
            at = launched[event["args"]["correlation"]]
            mine[max(step for step, start in opened.items() if start <= at)].append(event)
    for step in reduce_file(path).steps:
        wanted, _ = brute_force.accounts(mine[step.step])
        assert msgspec.structs.asdict(step.devices["0"]) == wanted["0"]


def test_a_reduced_trace_is_small_and_reads_back_as_it_was(tmp_path: Path) -> None:
    trace = reduce_file(make.write(tmp_path / "trace.json.gz", make.training(steps=3)))
    path = tmp_path / "trace.reduced.json"
    path.write_bytes(encode_reduced(trace))
    assert read_reduced(path) == trace
    assert path.stat().st_size < 10_000
