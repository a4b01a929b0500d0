"""Cases that naive readers of traces get wrong, each written by hand with its right answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trace_makers as make

from narrows.reducers.traces.kinds import Work, operation_of, work_of
from narrows.reducers.traces.reduce import reduce_file
from narrows.reducers.traces.reduced import Accounts, Reduced

T = make.BASE_US * 1000


def reduced(tmp_path: Path, events: list[make.Event], **extra: Any) -> Reduced:
    return reduce_file(make.write(tmp_path / "trace.json", events, **extra))


def only(tmp_path: Path, events: list[make.Event]) -> Accounts:
    (entry,) = reduced(tmp_path, events).devices.values()
    return entry


def test_kernels_shorter_than_a_microsecond_keep_their_nanoseconds(tmp_path: Path) -> None:
    found = only(tmp_path, [make.kernel(T + 7, 20), make.kernel(T + 127, 300)])
    assert (found.span_ns, found.busy_ns, found.idle_ns) == (420, 320, 100)


def test_empty_kernels_cover_nothing_and_are_counted(tmp_path: Path) -> None:
    trace = reduced(tmp_path, [make.kernel(T, 100), make.kernel(T + 50, 0), make.kernel(T + 300, 0)])
    assert trace.devices["0"].busy_ns == 50  # the empty one in the middle starts the next slice of its stream
    assert trace.quality.clipped_ns == 50
    assert trace.top_kernels[0].num == 3


@pytest.mark.parametrize("dur", [-5.0, 7.5e15, None, 236 * 365 * 86_400 * 1e6])
def test_impossible_durations_are_dropped_and_counted(dur: float | None, tmp_path: Path) -> None:
    bad = make.kernel(T + 10, 5, args={"stream": 9}) | {"dur": dur}
    if dur is None:
        del bad["dur"]
    trace = reduced(tmp_path, [make.kernel(T, 100), bad, make.kernel(T + 100, 100)])
    assert trace.devices["0"].busy_ns == trace.devices["0"].span_ns == 200
    assert trace.quality.dropped == 1
    assert trace.quality.dropped_for == {"duration": 1}


def test_a_dropped_event_does_not_shift_the_collectives_behind_it(tmp_path: Path) -> None:
    bad = make.collective(T, T + 10, 0) | {"dur": -1}
    trace = reduced(tmp_path, [bad, make.kernel(T, 5), make.collective(T + 50, T + 90, 1)])
    assert [(call.seq, call.end_ns - call.start_ns) for call in trace.collectives] == [(1, 40)]


def test_overlap_inside_one_stream_is_clipped_to_the_next_start(tmp_path: Path) -> None:
    trace = reduced(tmp_path, [make.kernel(T, 150), make.kernel(T + 100, 20)])
    assert trace.quality.clipped_ns == 50
    assert trace.devices["0"].busy_ns == 120


def test_several_devices_are_kept_apart(tmp_path: Path) -> None:
    events = [make.kernel(T, 200), make.kernel(T + 200, 200, args={"device": 1})]
    devices = reduced(tmp_path, events).devices
    assert sorted(devices) == ["0", "1"]
    assert all((entry.busy_ns, entry.idle_ns) == (200, 0) for entry in devices.values())


def test_a_stream_makes_no_device_event(tmp_path: Path) -> None:
    host = make.kernel(T, 9_000, cat="cpu_op", name="triton_poi_fused", args={"stream": 0})
    sync = make.kernel(T, 900_000, cat="cuda_sync", name="Stream Sync")
    found = only(tmp_path, [host, sync, make.kernel(T + 100, 100)])
    assert (found.span_ns, found.compute_ns) == (100, 100)


def test_absolute_times_keep_their_nanoseconds(tmp_path: Path) -> None:
    base = 1_694_128_201_426_674
    text = make.render(make.document([make.kernel(0, 1), make.kernel(0, 2), make.launch(0, 3)]), "kineto")
    for digits, place in ((f"{base}.123", 1), (f"{base}.456", 2)):
        text = text.replace(f'"ts": 0, "dur": 0.00{place}', f'"ts": {digits}, "dur": 0.{place}00')
    path = tmp_path / "trace.json"
    path.write_text(text)
    found = reduce_file(path)
    assert found.devices["0"].span_ns == 533
    assert found.devices["0"].busy_ns == 300
    assert found.clock == "unix_ns"


def test_whole_microseconds_since_1970_are_absolute_without_a_base(tmp_path: Path) -> None:
    start = 1_694_128_201_426_674_000
    trace = reduced(tmp_path, [make.collective(start, start + 5_000)], baseTimeNanoseconds=None)
    assert (trace.clock, trace.collectives[0].start_ns) == ("unix_ns", start)


def test_relative_times_without_a_base_are_of_the_trace_alone(tmp_path: Path) -> None:
    assert reduced(tmp_path, [make.collective(T, T + 5_000)], baseTimeNanoseconds=None).clock == "trace_ns"


def test_communication_copies_and_compute_overlap_as_they_should(tmp_path: Path) -> None:
    copy = {"cat": "gpu_memcpy", "name": "CopyHostToDevice"}
    found = only(
        tmp_path,
        [
            make.kernel(T, 100),
            make.collective(T + 50, T + 250),
            make.kernel(T + 200, 200, args={"stream": 9}, **copy),
            make.kernel(T + 450, 50, cat="gpu_memset", name="Memset (Device)"),
        ],
    )
    assert (found.compute_ns, found.communication_ns, found.copy_ns) == (100, 200, 250)
    assert (found.exposed_communication_ns, found.exposed_copy_ns) == (150, 200)
    assert (found.busy_ns, found.idle_ns, found.span_ns) == (450, 50, 500)


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymDevKernel_AllGather_LL",
        "void rcclKernel",
        "mscclKernel_Sum_half",
        "void vllm::cross_device_reduce_1stage<__half, 8>(RankData*)",
        "nvshmemi_transfer",
        "void deep_ep::internode::dispatch<true>",
        "multimem_all_reduce_kernel<float>",
        "multimem_one_shot_all_reduce_kernel",
        "void two_shot_all_reduce_kernel<bf16>",
        "void tensorrt_llm::oneShotAllReduceKernel<half>",
        "allreduce_fusion_kernel_oneshot_lamport",
    ],
)
def test_communication_is_known_by_name_where_no_metadata_says_so(name: str) -> None:
    assert work_of("kernel", name, None) is Work.COMMUNICATION


@pytest.mark.parametrize(
    "name",
    ["void at::native::reduce_kernel<512>", "dma_gemm", "hipblaslt GEMM", "Memcpy_like_kernel", "splitKreduce_kernel"],
)
def test_names_that_only_look_like_something_else_are_compute(name: str) -> None:
    assert work_of("kernel", name, None) is Work.COMPUTE


def test_metadata_makes_any_kernel_communication() -> None:
    assert work_of("kernel", "my_fancy_kernel", "allreduce") is Work.COMMUNICATION


@pytest.mark.parametrize(
    ("text", "operation"),
    [
        ("allreduce", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("ncclKernel_Broadcast_RING", "broadcast"),
        ("ncclDevKernel_SendRecv(ncclDevComm*)", "send_recv"),
        ("send", "send"),
        ("recv 0<-1", "recv"),
        ("ncclDevKernel_Generic", "unknown"),
    ],
)
def test_operations_are_named_as_torch_names_them(text: str, operation: str) -> None:
    assert operation_of(text) == operation


def test_collectives_carry_group_sequence_bytes_and_peer(tmp_path: Path) -> None:
    send = make.collective(T + 900, T + 950, 4, **{"Collective name": "send", "Dst Rank": 3, "dtype": "BFloat16"})
    trace = reduced(tmp_path, [make.collective(T, T + 500, 7), send])
    reduce, sent = trace.collectives
    assert (reduce.op, reduce.group, reduce.group_role, reduce.seq) == ("all_reduce", "0", "default_pg", 7)
    assert (reduce.payload_bytes, reduce.group_size, reduce.p2p) == (4096, 2, False)
    assert (sent.op, sent.p2p, sent.peer, sent.payload_bytes) == ("send", True, 3, 2048)
    assert reduce.start_ns == T + make.BASE_NS


def test_a_rank_without_a_device_reports_its_collectives_on_the_host(tmp_path: Path) -> None:
    events = [make.annotation("ProfilerStep#5", T, 1_000_000)]
    events += [make.annotation("gloo:all_reduce", T + at, 60_000) for at in (100_000, 130_000, 400_000)]
    trace = reduced(tmp_path, events)
    assert trace.devices == {}
    assert trace.host is not None
    assert (trace.host.span_ns, trace.host.communication_ns, trace.host.num_collectives) == (1_000_000, 150_000, 3)
    assert [(call.op, call.on, call.step) for call in trace.collectives] == [("all_reduce", "host", 5)] * 3


def test_mtia_events_are_work_of_the_device_that_their_process_names(tmp_path: Path) -> None:
    run = {"ph": "X", "cat": "mtia_ccp_events", "name": "run_kernel", "pid": 9, "tid": "801"}
    moved = run | {"name": "dma_request", "tid": 408}
    events = [
        run | {"ts": make.BASE_US, "dur": 8.136},
        moved | {"ts": make.BASE_US + 4, "dur": 10, "args": {"size": 4}},
    ]
    trace = reduced(tmp_path, events)
    assert (trace.devices["9"].compute_ns, trace.devices["9"].exposed_copy_ns) == (8136, 5864)


def test_memory_peaks_are_kept_by_device_and_apart_from_the_host(tmp_path: Path) -> None:
    events = [make.memory(5_000), make.memory(9_000), make.memory(7_000, device=1), make.memory(99, device_type=0)]
    memory = reduced(tmp_path, events).memory
    assert {name: entry.peak_allocated_bytes for name, entry in memory.items()} == {"0": 9_000, "1": 7_000, "host": 99}
    assert memory["0"].peak_reserved_bytes == 18_000
