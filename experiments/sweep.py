"""One collective at one message size: calls after a barrier each, on the real backend or the emulated fabric."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

from narrows.experiments.fabric import Fabric
from narrows.experiments.places import Place, Team
from narrows.experiments.timing import wait_until
from narrows.experiments.workload import CollectiveConfig
from narrows.instruments import Recorder


class Caller(Protocol):
    """Makes one call of the swept operation; returns this rank's enter and end, in monotonic ns."""

    def __call__(self) -> tuple[int, int]: ...


def even_bytes(size_bytes: int, num_ranks: int) -> int:
    """The least size from `size_bytes` on that `num_ranks` members share evenly in whole float32."""
    return 4 * num_ranks * -(-size_bytes // (4 * num_ranks))


def make_caller(
    config: CollectiveConfig, size_bytes: int, *, place: Place, team: Team, recorder: Recorder, seed: int | None
) -> Caller:
    """The caller of one operation with a total buffer of `size_bytes`, rounded up to what the members share evenly.

    With a seed the operation runs on the emulated fabric, whose noise it seeds.
    """
    payload_bytes = even_bytes(size_bytes, len(team))
    if seed is not None:
        fabric = Fabric(team=team, config=config, recorder=recorder, seed=seed)
        return _emulated_caller(config, payload_bytes, fabric, recorder)
    return _real_caller(config, payload_bytes, place, team, recorder)


def call_after_barrier(call: Caller, *, team: Team, recorder: Recorder, repeats: int, washout: int) -> list[int]:
    """This rank's times of the calls after the wash-out, in ns. Every call is a step of the record."""
    took = []
    for index in range(repeats):
        team.barrier()
        enter_ns, end_ns = call()
        recorder.step(warmup=index < washout, end_ns=end_ns)
        if index >= washout:
            took.append(end_ns - enter_ns)
    return took


def post_barrier_us(team: Team, took_ns: list[int]) -> float:
    """Median over calls of the shortest time among the members, in us.

    The member that arrives last waits for nobody, so the shortest time is the service after the last arrival.
    """
    mine = torch.tensor(took_ns, dtype=torch.float64, device=team.device)
    theirs = [torch.empty_like(mine) for _ in team.ranks]
    team.process_group.allgather([theirs], [mine]).wait()
    shortest: list[float] = torch.stack(theirs).amin(dim=0).tolist()
    return statistics.median(shortest) / 1000


def _emulated_caller(config: CollectiveConfig, payload_bytes: int, fabric: Fabric, recorder: Recorder) -> Caller:

    def call() -> tuple[int, int]:
        enter_ns = time.monotonic_ns()
        fabric.issue(config.op, payload_bytes, enter_ns)
        end_ns = fabric.finish()
        recorder.add_span("wait", enter_ns, end_ns)
        wait_until(end_ns)
        return enter_ns, end_ns

    return call


def _real_caller(config: CollectiveConfig, payload_bytes: int, place: Place, team: Team, recorder: Recorder) -> Caller:
    run = _operation(config.op, payload_bytes, place, team)
    added_ns = team.link_ns(config.slow_link, config.op, payload_bytes)

    def call() -> tuple[int, int]:
        token = recorder.enter(config.op, group=team.name, payload_bytes=payload_bytes)
        enter_ns = token.record.enter_ns
        run().wait()
        if place.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        end_ns = wait_until(time.monotonic_ns() + added_ns)
        token.end(end_ns)
        recorder.add_span("wait", enter_ns, end_ns)
        return enter_ns, end_ns

    return call


def _operation(op: str, payload_bytes: int, place: Place, team: Team) -> Callable[[], Any]:
    """Starts the operation; `payload_bytes` is the whole buffer, of which each member holds or gets a share."""
    whole = torch.zeros(payload_bytes // 4, device=place.device)
    part = torch.zeros(len(whole) // len(team), device=place.device)
    group = team.process_group
    root = dist.BroadcastOptions()
    root.rootRank = 0
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: group.allreduce([whole]),
        "all_gather": lambda: group.allgather([list(whole.chunk(len(team)))], [part]),
        "reduce_scatter": lambda: group.reduce_scatter([part], [list(whole.chunk(len(team)))]),
        "broadcast": lambda: group.broadcast([whole], root),
        "all_to_all": lambda: group.alltoall_base(torch.empty_like(whole), whole, [], []),
    }
    return calls[op]
