"""What-if replay of a pipeline-parallel timeline: how much slower it is than without stragglers, and who makes it so.

Each worker plays its operations in the order of the record; point-to-point calls that it started together are one
batch. A transfer begins when the last of its members is there. In the ideal run every compute operation takes the
mean of its kind, and every transfer the median of its kind.

Shape legend: N operations of a step, S steps, W workers, C scenarios.
Source: Lin et al., Understanding Stragglers in Large Model Training Using What-if Analysis, OSDI 2025.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrows.inquiry.errors import NarrowsError
from narrows.reducers.readers.operation_timeline import OPERATIONS, OperationTimeline
from narrows.reducers.whatif import Graph, Shares, graph, replay, shares

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narrows.reducers.records import F64, I64, Bool

COMPUTE = ("forward-compute", "backward-compute", "optimizer", "gc")
STRAGGLING = 1.1
"""A run at least this much slower than its ideal is called slowed by stragglers. Source: Lin et al., OSDI 2025."""

WORST_WORKERS = 0.03
"""Share of the workers that are made ideal together, at least one of them. Source: the same."""

SELF_CHECK = 0.03
"""The replay may differ from the measured steps by this much, plus what launching took."""

_POINT_TO_POINT = {"forward-send": 1, "forward-recv": -1, "backward-send": -1, "backward-recv": 1}
_NAMES = {
    "forward-send": "forward-pp-comm", "forward-recv": "forward-pp-comm",
    "backward-send": "backward-pp-comm", "backward-recv": "backward-pp-comm",
}  # fmt: skip
Key = tuple[int, int, int, int]  # dp rank, stage, operation, seq


class TimelineError(NarrowsError):
    """A timeline that cannot be replayed: names the place, the rule, the next move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggling:
    """``slowdown``: the replayed step over the ideal one; 1 is no straggler. ``of_*``: the slowdown of a run in which
    these alone take the time that they took, and all others the ideal time. ``worst_workers`` are
    the slowest ``WORST_WORKERS``; ``worker_shares`` theirs, ``stage_shares`` those of the last stage: None where there
    is no loss. ``measured_s`` is the mean step of the record; ``launch_slowdown`` it over the replay.
    """

    steps: int
    measured_s: float
    replayed_s: float
    ideal_s: float
    slowdown: float
    launch_slowdown: float
    of_dp_rank: dict[int, float]
    of_stage: dict[int, float]
    of_operation: dict[str, float]
    of_worker: dict[str, float]
    worst_workers: tuple[str, ...]
    worker_shares: Shares | None
    stage_shares: Shares | None
    step_slowdowns: dict[int, float]
    clamped_s: float

    @property
    def trusted(self) -> bool:
        """Whether the replay reproduces the record, so that what it says of other runs may be believed."""
        return abs(self.launch_slowdown - 1) <= SELF_CHECK


@dataclass(frozen=True, slots=True, kw_only=True)
class _Played:
    """The graph of steps that have the same operations in the same order; the first N nodes are the operations."""

    ops: Graph
    keys: tuple[Key, ...]
    duration_NS: F64
    measured_S: F64
    steps: tuple[int, ...]
    clamped_s: float


def pipeline_straggling(timeline: OperationTimeline) -> Straggling:
    """Slowdown and attribution over all steps.

    Raises:
        TimelineError: a transfer lacks a member, an operation is there twice, or operations wait in a circle.
    """
    played = _played(timeline)
    ideal = _ideal(played)
    workers = timeline.workers
    stages, dp_ranks = sorted({one[1] for one in workers}), sorted({one[0] for one in workers})
    kept: list[tuple[str, object]] = [("all", None), ("none", None)]
    kept += [("stage", one) for one in stages] + [("dp", one) for one in dp_ranks]
    kept += [("worker", one) for one in workers] + [("op", one) for one in _kinds(played)]
    times = _step_times(played, ideal, kept)
    mean = {one: float(times[one].mean()) for one in kept}
    original, fast = mean["all", None], mean["none", None]
    if fast <= 0:
        raise TimelineError("every operation of the timeline takes no time; give one with measured durations")
    of = {one: value / fast for one, value in mean.items()}
    of_worker = {one: of["worker", one] for one in workers}
    count = max(1, math.floor(WORST_WORKERS * len(workers) + 0.5))
    worst = tuple(sorted(workers, key=lambda one: -of_worker[one])[:count])
    last = stages[-1]
    pairs = [("workers", worst), ("without workers", worst), ("stage", last), ("without stage", last)]
    more = {one: float(value.mean()) for one, value in _step_times(played, ideal, pairs).items()}
    measured = float(np.concatenate([one.measured_S for one in played]).mean())
    numbers = [step for one in played for step in one.steps]
    return Straggling(
        steps=len(numbers),
        measured_s=measured,
        replayed_s=original,
        ideal_s=fast,
        slowdown=original / fast,
        launch_slowdown=measured / original,
        of_dp_rank={one: of["dp", one] for one in dp_ranks},
        of_stage={one: of["stage", one] for one in stages},
        of_operation={one: of["op", one] for one in _kinds(played)},
        of_worker={worker_name(*one): slowdown for one, slowdown in of_worker.items()},
        worst_workers=tuple(worker_name(*one) for one in worst),
        worker_shares=_shares(original, fast, more, "workers", worst),
        stage_shares=_shares(original, fast, more, "stage", last),
        step_slowdowns=dict(zip(numbers, (times["all", None] / times["none", None]).tolist(), strict=True)),
        clamped_s=sum(one.clamped_s for one in played),
    )


def worker_name(dp_rank: int, stage: int) -> str:
    return f"dp rank {dp_rank}, stage {stage}"


def _shares(slow: float, fast: float, more: dict[tuple[str, object], float], kind: str, which: object) -> Shares | None:
    return shares(slow=slow, fast=fast, removed=more[f"without {kind}", which], added=more[kind, which])


def _kinds(played: Sequence[_Played]) -> list[str]:
    found = {OPERATIONS[key[2]] for one in played for key in one.keys}
    return sorted({_NAMES.get(one, one) for one in found})


def _step_times(
    played: Sequence[_Played], ideal: dict[int, float], scenarios: Sequence[tuple[str, object]]
) -> dict[tuple[str, object], F64]:
    """Seconds of every step, of every scenario: what it names takes the measured time, the rest the ideal one."""
    parts = []
    for one in played:
        num_ops, num_steps = one.duration_NS.shape
        kept_NC = np.array([[_keeps(scenario, key) for scenario in scenarios] for key in one.keys], dtype=np.bool_)
        ideal_N = np.array([ideal[key[2]] for key in one.keys])
        duration_NCS = np.zeros((len(one.ops), len(scenarios), num_steps))
        measured_NCS, ideal_NCS = one.duration_NS[:, np.newaxis], ideal_N[:, np.newaxis, np.newaxis]
        duration_NCS[:num_ops] = np.where(kept_NC[:, :, np.newaxis], measured_NCS, ideal_NCS)
        done = replay(one.ops, duration_NCS.reshape(len(one.ops), -1))
        parts.append(done.max(axis=0).reshape(len(scenarios), num_steps))
    return dict(zip(scenarios, np.concatenate(parts, axis=1), strict=True))


def _keeps(scenario: tuple[str, object], key: Key) -> bool:
    kind, which = scenario
    worker = key[:2]
    if kind in ("workers", "without workers"):
        assert isinstance(which, tuple)
        return (worker in which) == (kind == "workers")
    if kind in ("stage", "without stage"):
        return (key[1] == which) == (kind == "stage")
    name = OPERATIONS[key[2]]
    facts: dict[str, object] = {"dp": key[0], "worker": worker, "op": _NAMES.get(name, name)}
    return kind == "all" or (kind != "none" and facts[kind] == which)


def _ideal(played: Sequence[_Played]) -> dict[int, float]:
    """Seconds of each kind of operation: the mean of compute, the median of transfers."""
    values: dict[int, list[F64]] = defaultdict(list)
    for one in played:
        ops = np.array([key[2] for key in one.keys])
        for op in np.unique(ops).tolist():
            values[op].append(one.duration_NS[ops == op].ravel())
    joined = {op: np.concatenate(found) for op, found in values.items()}
    return {op: float(np.mean(v) if OPERATIONS[op] in COMPUTE else np.median(v)) for op, v in joined.items()}


def _played(timeline: OperationTimeline) -> list[_Played]:
    """Steps with the same operations in the same order share a graph, whose columns they are."""
    orders: dict[tuple[tuple[Key, int], ...], list[tuple[int, I64]]] = defaultdict(list)
    columns = np.stack([timeline.dp_rank_N, timeline.stage_N, timeline.op_N, timeline.seq_N], axis=1)
    for step in timeline.steps:
        at_N = np.flatnonzero(timeline.step_N == step)
        order = np.lexsort((timeline.start_s_N[at_N], timeline.stage_N[at_N], timeline.dp_rank_N[at_N]))
        at_N = at_N[order]
        batch_N = _batches(timeline, at_N)
        keys = [(row[0], row[1], row[2], row[3]) for row in columns[at_N].tolist()]
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise TimelineError(f"step {step} has {_named(twice)} twice; leave one of the records out")
        orders[tuple(zip(keys, batch_N.tolist(), strict=True))].append((step, at_N))
    return [_one_graph(timeline, order, steps) for order, steps in orders.items()]


def _batches(timeline: OperationTimeline, at_N: I64) -> I64:
    """A number for every operation, shared by point-to-point calls that one worker started and ended together."""
    p2p = np.isin(timeline.op_N[at_N], [OPERATIONS.index(name) for name in _POINT_TO_POINT])
    same: Bool = np.ones(len(at_N), dtype=np.bool_)
    for values in (timeline.dp_rank_N, timeline.stage_N, timeline.start_s_N, timeline.duration_s_N):
        same[1:] &= values[at_N][1:] == values[at_N][:-1]
    same[1:] &= p2p[1:] & p2p[:-1]
    same[0] = False
    return np.cumsum(~same)


def _one_graph(
    timeline: OperationTimeline, order: tuple[tuple[Key, int], ...], steps: list[tuple[int, I64]]
) -> _Played:
    keys = tuple(key for key, _ in order)
    groups = _groups(keys)
    start_NS = np.stack([timeline.start_s_N[at] for _, at in steps], axis=1)
    end_NS = start_NS + np.stack([timeline.duration_s_N[at] for _, at in steps], axis=1)
    began_NS = start_NS.copy()
    for members in groups:
        began_NS[members] = start_NS[members].max(axis=0)
    duration_NS = end_NS - began_NS
    before = _program_order(order)
    for members in groups:
        # An operation more, which takes no time: all members are there.
        before.append(sorted({place for one in members for place in before[one]}))
        for one in members:
            before[one] = [len(before) - 1]
    try:
        ops = graph(before)
    except ValueError as error:
        raise TimelineError(f"step {steps[0][0]}: {error}") from None
    return _Played(
        ops=ops,
        keys=keys,
        duration_NS=np.maximum(duration_NS, 0.0),
        measured_S=end_NS.max(axis=0) - start_NS.min(axis=0),
        steps=tuple(step for step, _ in steps),
        clamped_s=float(-np.minimum(duration_NS, 0.0).sum()),
    )


def _program_order(order: tuple[tuple[Key, int], ...]) -> list[list[int]]:
    """Every operation waits for the whole batch that its worker started before."""
    before: list[list[int]] = []
    batch: list[int] = []
    previous: list[int] = []
    worker: tuple[int, int] | None = None
    number = -1
    for place, (key, own) in enumerate(order):
        if key[:2] != worker:
            worker, previous, batch = key[:2], [], []
        elif own != number:
            previous, batch = batch, []
        number = own
        batch.append(place)
        before.append(list(previous))
    return before


def _groups(keys: tuple[Key, ...]) -> list[list[int]]:
    """Places of the operations that meet in one transfer.

    Sends and receives meet their peer; gradients and parameters all data-parallel ranks of their stage; the
    embedding's gradients the stages that have them; the clipping's norm all workers.
    """
    place_of = {key: place for place, key in enumerate(keys)}
    stages = max(key[1] for key in keys) + 1
    found: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        name = OPERATIONS[key[2]]
        if name in _POINT_TO_POINT:
            _check_peer(key, place_of, stages)
        meeting = _meeting(key, stages)
        if meeting is not None:
            found[meeting].append(place)
    return list(found.values())


def _meeting(key: Key, stages: int) -> tuple[object, ...] | None:
    dp_rank, stage, op, seq = key
    name = OPERATIONS[op]
    if name in _POINT_TO_POINT:
        sender = stage if name.endswith("send") else (stage + _POINT_TO_POINT[name]) % stages
        return (name.split("-")[0], dp_rank, sender, seq)
    if name in ("params-all-gather", "grads-reduce-scatter"):
        return (name, stage, seq)
    if name == "embedding-grads-all-reduce":
        return (name, dp_rank, seq)
    return (name, seq) if name == "optimizer-clip-main-grad" else None


def _check_peer(key: Key, place_of: dict[Key, int], stages: int) -> None:
    dp_rank, stage, op, seq = key
    name = OPERATIONS[op]
    other = name.replace("send", "recv") if name.endswith("send") else name.replace("recv", "send")
    peer = (dp_rank, (stage + _POINT_TO_POINT[name]) % stages, OPERATIONS.index(other), seq)
    if peer not in place_of:
        raise TimelineError(
            f"{_named(key)} has no partner ({_named(peer)} is not in the record); give the timelines of all stages"
        )


def _named(key: Key) -> str:
    return f"{OPERATIONS[key[2]]} {key[3]} of {worker_name(key[0], key[1])}"
