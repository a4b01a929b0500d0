"""Every operation of torch.distributed on two real gloo ranks: recorded once, identified alike, results unchanged."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import narrows.instruments as narrows

ForkRanks = Callable[..., list[Any]]
ReadLines = Callable[[Path, int, str], list[dict[str, Any]]]

pytestmark = [
    pytest.mark.dist,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def joined(rank: int, run: Path | None) -> narrows.Recorder | None:
    import torch.distributed as dist

    narrows.wrap_collectives()
    recorder = None if run is None else narrows.start(run)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    if recorder is not None:
        recorder.begin()
    return recorder


def finished(recorder: narrows.Recorder | None) -> None:
    if recorder is not None:
        recorder.step()
        recorder.close()


def operations(lines: list[dict[str, Any]], p2p: bool = False) -> list[tuple[Any, ...]]:
    return [
        (line["group"], line["seq"], line["op"], line.get("payload_bytes"))
        for line in sorted((line for line in lines if "op" in line), key=lambda line: line["enter_ns"])
        if line.get("p2p", False) == p2p
    ]


def every_collective(rank: int, run: Path | None) -> list[float]:
    """Runs all collectives; returns a number of each result, to compare runs with and without recording."""
    import torch
    import torch.distributed as dist

    recorder = joined(rank, run)
    own, both = torch.full((256,), float(rank + 1)), torch.arange(512.0) * (rank + 1)
    parts = [torch.zeros(256) for _ in range(2)]
    results: list[torch.Tensor] = []
    dist.all_reduce(own)
    results.append(own.clone())
    dist.all_gather(parts, own)
    dist.all_gather_into_tensor(whole := torch.zeros(512), own)
    dist.reduce_scatter_tensor(shard := torch.zeros(256), both)
    dist.reduce_scatter(other := torch.zeros(256), [own, own * 2])
    dist.broadcast(own, 0)
    dist.reduce(sums := own.clone(), 0)
    dist.all_to_all_single(swapped := torch.zeros(512), both)
    dist.gather(own, parts if rank == 0 else None, dst=0)
    dist.scatter(piece := torch.zeros(256), parts if rank == 0 else None, src=0)
    dist.barrier()
    dist.all_gather_object(names := [None, None], {"rank": rank})
    dist.broadcast_object_list(said := [rank], 0)
    results += [whole, shard, other, sums, swapped, piece, torch.tensor([len(names), said[0]])]
    finished(recorder)
    return [float(tensor.double().sum()) for tensor in results]


def test_all_collectives_are_recorded_alike_on_both_ranks_and_change_nothing(
    fork_ranks: ForkRanks, read_lines: ReadLines, tmp_path: Path
) -> None:
    recorded = fork_ranks(every_collective, tmp_path / "run")
    assert recorded == fork_ranks(every_collective, None)
    lines = [read_lines(tmp_path / "run", rank, "collectives") for rank in range(2)]
    assert operations(lines[0]) == operations(lines[1])
    assert [(op, size) for _, _, op, size in operations(lines[0])] == [
        ("all_reduce", 1024),
        ("all_gather", 2048),
        ("all_gather", 2048),
        ("reduce_scatter", 2048),
        ("reduce_scatter", 2048),
        ("broadcast", 1024),
        ("reduce", 1024),
        ("all_to_all", 2048),
        ("gather", 2048),
        ("scatter", 2048),
        ("barrier", 0),
        ("all_gather_object", None),
        ("broadcast_object", None),
    ]
    assert lines[0][0] == {"group": "dp", "ranks": [0, 1]}


def test_blocking_collectives_are_waits_of_the_training_thread(
    fork_ranks: ForkRanks, read_lines: ReadLines, tmp_path: Path
) -> None:
    fork_ranks(every_collective, tmp_path / "run")
    for rank in range(2):
        (step,) = read_lines(tmp_path / "run", rank, "steps")
        inside = sum(
            line["end_ns"] - line["enter_ns"] for line in read_lines(tmp_path / "run", rank, "collectives")[1:]
        )
        waited_ns = step["parts_us"]["wait"] * 1000
        assert 0.5 * inside < waited_ns <= inside


def late_waiter(rank: int, run: Path) -> bool:
    import torch
    import torch.distributed as dist

    recorder = joined(rank, run)
    work = dist.all_reduce(torch.ones(4), async_op=True)
    same = isinstance(work, dist.Work)
    time.sleep(0.2)
    work.wait()
    forgotten = torch.ones(4)
    dist.all_reduce(forgotten, async_op=True)
    time.sleep(0.2)
    finished(recorder)
    return same and bool((forgotten == 2).all())


def test_an_async_collective_ends_when_it_completes_not_when_it_is_waited_for(
    fork_ranks: ForkRanks, read_lines: ReadLines, tmp_path: Path
) -> None:
    assert fork_ranks(late_waiter, tmp_path / "run") == [True, True]
    for rank in range(2):
        _, waited, unwaited = read_lines(tmp_path / "run", rank, "collectives")
        assert waited["end_ns"] - waited["enter_ns"] < 150e6
        assert unwaited["end_ns"] - unwaited["enter_ns"] < 150e6


def functional_and_coalesced(rank: int, run: Path) -> list[float]:
    import torch
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as functional

    recorder = joined(rank, run)
    world = dist.group.WORLD
    results = [functional.all_reduce(torch.ones(16), "sum", world) + 0]
    results.append(functional.all_gather_single(torch.ones(16), 0, world) + 0)
    results.append(functional.reduce_scatter_single(torch.ones(16), "sum", 0, world) + 0)
    results += [tensor + 0 for tensor in functional.all_reduce_coalesced([torch.ones(8), torch.ones(4)], "sum", world)]
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.all_reduce(first := torch.ones(4))
        dist.all_reduce(second := torch.ones(12))
    manager.wait()
    results += [first, second]
    finished(recorder)
    return [float(tensor.sum()) for tensor in results]


def test_functional_and_coalesced_collectives_are_recorded_once_each(
    fork_ranks: ForkRanks, read_lines: ReadLines, tmp_path: Path
) -> None:
    expected = [32.0, 32.0, 16.0, 16.0, 8.0, 8.0, 24.0]
    assert fork_ranks(functional_and_coalesced, tmp_path / "run") == [expected, expected]
    lines = [read_lines(tmp_path / "run", rank, "collectives") for rank in range(2)]
    assert operations(lines[0]) == operations(lines[1])
    assert [(op, size) for _, _, op, size in operations(lines[0])] == [
        ("all_reduce", 64),
        ("all_gather", 128),
        ("reduce_scatter", 64),
        ("all_reduce", 48),
        ("all_reduce", 64),
    ]
    assert all("end_ns" in line for line in lines[0] if "op" in line)


def messages(rank: int, run: Path) -> list[float]:
    import torch
    import torch.distributed as dist

    plain = dist.isend  # what ``from torch.distributed import isend`` before the wrapping would hold
    recorder = joined(rank, run)
    peer = 1 - rank
    tensor = torch.full((8,), float(rank))
    if rank == 0:
        dist.send(tensor, 1)
        dist.send(tensor, 1)
    else:
        assert dist.recv(torch.zeros(8)) == 0  # from any rank
        assert dist.recv(torch.zeros(8), src=0) == 0
    received = torch.zeros(8)
    batch = [dist.P2POp(plain, tensor, peer), dist.P2POp(dist.irecv, received, peer)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    again = torch.zeros(8)
    works = [dist.isend(tensor, peer), dist.irecv(again, peer)]
    for work in works:
        work.wait()
    finished(recorder)
    return [float(received.sum()), float(again.sum())]


def test_the_nth_send_meets_the_nth_receive(fork_ranks: ForkRanks, read_lines: ReadLines, tmp_path: Path) -> None:
    assert fork_ranks(messages, tmp_path / "run") == [[8.0, 8.0], [0.0, 0.0]]
    lines = [[line for line in read_lines(tmp_path / "run", rank, "collectives") if "op" in line] for rank in range(2)]
    assert all(line["p2p"] and line["peer"] == 1 - rank for rank in range(2) for line in lines[rank])
    for sender, receiver in ((0, 1), (1, 0)):
        sent = [(line["seq"], line["payload_bytes"]) for line in lines[sender] if line["op"] == "send"]
        received = [(line["seq"], line["payload_bytes"]) for line in lines[receiver] if line["op"] == "recv"]
        assert sorted(sent) == sorted(received) == [(number, 32) for number in range(len(sent))]


def named_groups(rank: int, run: Path) -> list[str]:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    recorder = joined(rank, run)
    dist.all_reduce(tensor := torch.ones(2))
    unnamed, tensor_parallel, second = (dist.new_group([0, 1]) for _ in range(3))
    names = [narrows.name_group(tensor_parallel, "tp"), narrows.name_group(second, "tp")]
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("pp", "ep"))
    for group in (None, unnamed, tensor_parallel, second, mesh.get_group("ep")):
        dist.all_reduce(tensor, group=group)
    finished(recorder)
    return names


def test_groups_are_recorded_by_role_and_never_share_a_name(
    fork_ranks: ForkRanks, read_lines: ReadLines, tmp_path: Path
) -> None:
    names = fork_ranks(named_groups, tmp_path / "run")
    assert names[0] == names[1]
    assert names[0][0] == "tp"
    assert names[0][1].startswith("tp-")
    for rank in range(2):
        lines = read_lines(tmp_path / "run", rank, "collectives")
        members = {line["group"]: line["ranks"] for line in lines if "ranks" in line}
        assert members == {
            "dp": [0, 1], "group1": [0, 1], "tp": [0, 1], names[0][1]: [0, 1], "ep": [rank]
        }  # fmt: skip
        place = json.loads((tmp_path / "run" / "ranks" / f"{rank:05d}" / "rank.json").read_text())
        assert place["groups"] == members


def meshed(rank: int, run: Path) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    recorder = joined(rank, run)
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    for group in (None, mesh.get_group("dp")):
        dist.all_reduce(torch.ones(2), group=group)
    finished(recorder)


def test_where_a_mesh_gives_the_roles_the_group_of_all_ranks_is_the_world(
    fork_ranks: ForkRanks, read_lines: ReadLines, tmp_path: Path
) -> None:
    fork_ranks(meshed, tmp_path / "run")
    for rank in range(2):
        lines = read_lines(tmp_path / "run", rank, "collectives")
        members = {line["group"]: line["ranks"] for line in lines if "ranks" in line}
        assert members == {"world": [0, 1], "dp": [rank]}


def failing(rank: int, run: Path) -> str:
    import torch
    import torch.distributed as dist

    recorder = joined(rank, run)
    try:
        dist.all_gather([torch.zeros(4)], torch.zeros(8, dtype=torch.int32))
    except (RuntimeError, TypeError, ValueError) as error:
        message = type(error).__name__
    dist.barrier()
    finished(recorder)
    return message


def test_an_error_of_torch_reaches_the_caller_and_leaves_the_operation_open(
    fork_ranks: ForkRanks, read_lines: ReadLines, tmp_path: Path
) -> None:
    assert set(fork_ranks(failing, tmp_path / "run")) <= {"RuntimeError", "TypeError", "ValueError"}
    lines = [line for line in read_lines(tmp_path / "run", 0, "collectives") if "op" in line]
    assert {line["op"]: "end_ns" in line for line in lines} == {"barrier": True, "all_gather": False}


def late_recorder(rank: int, run: Path) -> None:
    import torch
    import torch.distributed as dist

    recorder = joined(rank, run if rank == 0 else None)
    dist.all_reduce(torch.ones(1))
    dist.send(torch.ones(1), 1) if rank == 0 else dist.recv(torch.ones(1))
    recorder = recorder or narrows.start(run)
    dist.barrier()
    dist.send(torch.ones(1), 1) if rank == 0 else dist.recv(torch.ones(1), 0)
    finished(recorder)


def test_sequence_numbers_agree_when_one_rank_starts_recording_later(
    fork_ranks: ForkRanks, read_lines: ReadLines, tmp_path: Path
) -> None:
    fork_ranks(late_recorder, tmp_path / "run")
    lines = [read_lines(tmp_path / "run", rank, "collectives") for rank in range(2)]
    assert operations(lines[0])[-1] == operations(lines[1])[-1] == ("dp", 1, "barrier", 0)
    assert [operations(lines[rank], p2p=True)[-1][1] for rank in range(2)] == [1, 1]


def wrapped_twice(rank: int, run: Path) -> bool:
    import torch.distributed as dist

    recorder = joined(rank, None)
    before = dist.all_reduce
    narrows.wrap_collectives()
    import torch

    dist.all_reduce(torch.ones(1))  # nobody records: it passes through
    finished(recorder)
    return dist.all_reduce is before and not run.exists()


def test_wrapping_again_changes_nothing_and_without_a_recorder_calls_pass_through(
    fork_ranks: ForkRanks, tmp_path: Path
) -> None:
    assert fork_ranks(wrapped_twice, tmp_path / "run") == [True, True]
