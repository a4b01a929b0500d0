"""Discrete events of one training step: kernels, collectives of tensor, data and pipeline groups, what a host adds.

Every rank has a compute stream and, for gradients, a communication stream; ranks meet in collectives and nowhere
else. Shape legend: R ranks that take part, G groups, M members of a group. Times in ns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from simulation.documents import lengths_of, packed
from simulation.job import F64, I64, Segment, placed_factor
from simulation.noise import step_factors
from simulation.recording import Call, Recording, StepEvents

_GRADIENTS = (4, 4, 1, 3)
_LAUNCH_NS = 15_000.0
_TAIL_NS = 20_000.0
_INSIDE_DELAY_NS, _INSIDE_BYTES_PER_NS = 15_000.0, 20.0
_ACTIVATION_BYTES = 1 << 21
_MICROBATCHES = 4


def play(segment: Segment, *, number: int, pair: int, steps: int, washout: int, first_batch: int, now_ns: float
         ) -> Recording:  # fmt: skip
    """The segment's steps, from a common start at ``now_ns``."""
    seats, config = segment.seats, segment.config
    recording = Recording(
        segment=number, pair=pair, washout=washout, ranks=seats.ranks, hosts=seats.hosts, locals=seats.locals,
        groups={one.role: [tuple(seats.ranks[at] for at in m) for m in one.members]
                for one in (segment.tensor, segment.data)},
    )  # fmt: skip
    job_S = step_factors(segment.noise, steps, segment.rng) * segment.factor
    segment.now_R = np.full(len(seats.ranks), now_ns)
    steady_R = placed_factor(config, seats) * segment.device_R * (1 + segment.total("compute"))
    drift_R = segment.total("drift")
    loader = _Loader(segment, now_ns)
    for at in range(steps):
        segment.job = float(job_S[at])
        segment.slow_R = steady_R * segment.job * (1 + drift_R * (1 - np.exp(-3 * at / steps)))
        segment.events = StepEvents(start_R=segment.now_R, end_R=segment.now_R, batch=first_batch + at)
        _before(segment, loader, at, steps)
        layers_R = _work(segment)
        (_staged if segment.shape.pipeline > 1 else _layered)(segment, layers_R)
        segment.kernel("optimizer", 1000.0 * config["optimizer_us"])
        _after(segment, at)
        segment.now_R = segment.now_R + _TAIL_NS
        segment.events.end_R = segment.now_R
        recording.steps.append(segment.events)
    return recording


@dataclass(slots=True)
class _Loader:
    """One prefetching loader a rank: it loads ahead as far as its queue reaches."""

    segment: Segment
    start_ns: float
    ready: list[F64] = field(default_factory=list)
    taken: list[F64] = field(default_factory=list)

    def take(self, at: int, extra_R: F64) -> F64:
        """When batch ``at`` is ready on each rank; ``extra_R`` is what it takes longer to load."""
        config, now_R = self.segment.config, self.segment.now_R
        depth = int(config["prefetch"])
        load = 1000.0 * (config["loader_us"] + config["slow_input"]) * self.segment.job + extra_R
        free = self.ready[-1] if self.ready else np.full_like(now_R, self.start_ns)
        room = self.taken[at - depth - 1] if at > depth else free
        begin = np.maximum(free, room) if depth else now_R
        self.ready.append(begin + load)
        self.taken.append(np.maximum(now_R, self.ready[-1]))
        return self.ready[-1]


def _before(segment: Segment, loader: _Loader, at: int, steps: int) -> None:
    """What a step spends before its first kernel: input, retries, allocator, garbage collection, the copy."""
    config, rng, ranks = segment.config, segment.rng, len(segment.seats.ranks)
    extra = np.zeros(ranks)
    for fault in segment.faults:
        if fault.input_us and at % fault.every == 0:
            extra += segment.on(fault) * 1000 * fault.input_us
    ready = loader.take(at, extra)
    if config["input"] == "loader":
        waited: F64 = np.maximum(0.0, ready - segment.now_R)
        segment.span("input", waited)
    for fault in segment.faults:
        if fault.retry_us and rng.random() < fault.chance:
            segment.span("retry", 1000 * fault.retry_us)
        if fault.pause_us:
            struck = segment.on(fault) & (rng.random(ranks) < fault.chance)
            segment.span("gc", np.asarray(1000 * fault.pause_us * struck, dtype=np.float64))
    growth = segment.total("growth_us") * 2 * (at + 1) / steps
    segment.span("alloc", 1000.0 * (config["alloc_us"] + growth) * segment.job)
    segment.span("h2d", 1000.0 * config["h2d_us"] * segment.job)


def _injected(segment: Segment) -> None:
    """A delay that an arm asks for by a knob of its own, whatever it is called: it stands for itself."""
    for name, value in segment.config.items():
        if name.startswith("inject") and isinstance(value, (int, float)) and value:
            segment.span("host", float(value) * (1000.0 if name.endswith("_us") else 1e6))


def _work(segment: Segment) -> F64:
    """Forward time of one layer on each rank, without its device's factor; counts the step's work."""
    config, shape = segment.config, segment.shape
    lengths, tokens = lengths_of(config), int(config["tokens_per_rank"])
    batch, places = segment.events.batch, np.array(segment.seats.shards)
    dealt = packed(lengths, tokens, shape.world_size, str(config["packing"]), segment.seed, batch)
    pad = 1 + float(config["padding"])
    valid, squares = dealt.tokens_N[places], dealt.squares_N[places]
    executed_R = 1 + segment.total("executed")
    spread_R = segment.total("spread") * segment.rng.exponential(size=len(places))
    layers, hidden = int(config["layers"]), int(config["hidden"])
    model = _flops(layers, hidden, valid, squares, 3)
    executed = _flops(layers, hidden, valid * pad, squares * pad**2, 3 + bool(config["recompute"])) * executed_R
    useful = {
        "valid_tokens": valid, "padded_tokens": np.rint(valid * pad) - valid, "samples": dealt.documents_N[places],
        "sum_sq_len": squares, "model_flops": model,
    }  # fmt: skip
    if not np.allclose(executed, model):
        useful |= {"executed_flops": np.rint(executed), "executed_sum_sq_len": np.rint(squares * pad**2)}
    segment.events.useful = useful
    segment.events.loss = 6.0 + 0.01 * np.sin(batch)
    time = config["linear_ns_per_token"] * valid * pad + config["quadratic_ns_per_token2"] * squares * pad**2
    return np.asarray(time * executed_R * (1 + spread_R), dtype=np.float64)


def _flops(layers: int, hidden: int, tokens_R: F64, squares_R: F64, passes: int) -> F64:
    return np.rint(passes * (24 * layers * hidden**2 * tokens_R + 4 * layers * hidden * squares_R))


def _launch(segment: Segment) -> None:
    config = segment.config
    extra = 1000.0 * (config["launch_gap_us"] + segment.total("launch_us") / (2 * config["layers"]))
    noisy = _LAUNCH_NS * (1 + 0.2 * segment.rng.exponential(size=len(segment.now_R)))
    segment.span("launch", (noisy + extra) * segment.job)


def _layered(segment: Segment, layers_R: F64) -> None:
    """Forward and backward layer by layer, gradients reduced beside backward, or after it."""
    config, layers = segment.config, int(segment.config["layers"])
    buckets = gradient_buckets(layers, int(config["hidden"]), int(config["bucket_bytes"]), str(config["grad_dtype"]))
    last = segment.now_R
    for _ in range(int(config["accumulate"])):
        part_R = layers_R / int(config["accumulate"])
        for _ in range(layers):
            _launch(segment)
            segment.kernel("forward", part_R)
            _meet(segment)
        _stalls(segment)
        segment.data.free[:] = 0.0
        last = segment.now_R
        for layer in reversed(range(layers)):
            _launch(segment)
            segment.kernel("backward", (3 if config["recompute"] else 2) * part_R)
            _meet(segment)
            if config["overlap"]:
                for size in buckets[layer]:
                    last = _reduce(segment, size)
    if not config["overlap"]:
        for size in (size for layer in reversed(range(layers)) for size in buckets[layer]):
            last = _reduce(segment, size)
    segment.span("wait", np.maximum(0.0, last - segment.now_R))


def _stalls(segment: Segment) -> None:
    """The operating system takes the host away: the device starves, and what it computes takes longer."""
    noise, ranks = segment.noise, len(segment.now_R)
    hit = segment.rng.random(ranks) < noise.stall
    length_R = hit * segment.rng.exponential(noise.stall_ms * 1e6, ranks)
    for fault in segment.faults:
        if fault.stall_us:
            length_R += segment.on(fault) * (segment.rng.random(ranks) < fault.chance) * 1000 * fault.stall_us
    segment.span("forward", length_R)


def gradient_buckets(layers: int, hidden: int, bucket_bytes: int, dtype: str) -> dict[int, list[int]]:
    """For each layer the sizes, in bytes on the wire, of the buckets that its backward completes."""
    found: dict[int, list[int]] = {layer: [] for layer in range(layers)}
    filled = 0
    wire = 2 if dtype == "bfloat16" else 4
    order = [(layer, 4 * units * hidden**2) for layer in reversed(range(layers)) for units in _GRADIENTS]
    for at, (layer, size) in enumerate(order):
        filled += size
        following = order[at + 1][1] if at + 1 < len(order) else bucket_bytes + 1
        if filled + following > bucket_bytes:
            found[layer].append(filled * wire // 4)
            filled = 0
    return found


def _meet(segment: Segment) -> None:
    """The tensor group adds up a layer's activations: nobody goes on before the last has come."""
    group = segment.tensor
    if not group.members:
        return
    slow = np.array([max(segment.total("inside")[m]) for m in group.members])
    service = 2 * (_INSIDE_DELAY_NS + _ACTIVATION_BYTES / 2 / _INSIDE_BYTES_PER_NS) * (1 + slow)
    service = service * segment.job * _fabric_noise(segment, len(group.members))
    enter = segment.now_R
    end = group.enter(enter, service)
    segment.span("wait", end - enter)
    segment.events.calls.append(
        Call(role="tp", op="all_reduce", payload_bytes=_ACTIVATION_BYTES, group_R=group.group_R, enter_R=enter,
             end_R=end)
    )  # fmt: skip


def _fabric_noise(segment: Segment, groups: int) -> F64:
    return np.asarray(1 + segment.config["fabric_jitter"] * segment.rng.exponential(size=groups))


def _reduce(segment: Segment, payload_bytes: int) -> F64:
    """When each rank's next gradient bucket is reduced; the compute stream goes on meanwhile."""
    group = segment.data
    if not group.members:
        return segment.now_R
    service = _gradient_service(segment, payload_bytes) * segment.job * _fabric_noise(segment, len(group.members))
    enter = segment.now_R
    end = group.enter(enter, service, queue=True)
    segment.events.calls.append(
        Call(role="dp", op="all_reduce", payload_bytes=payload_bytes, group_R=group.group_R, enter_R=enter, end_R=end)
    )
    return end


def _gradient_service(segment: Segment, payload_bytes: int) -> F64:
    """Ring all-reduce over the fabric for each data group, and what a slow or faulty link adds where it is crossed."""
    config, group = segment.config, segment.data
    if segment.rng.random() < 0.03:
        segment.episode = not segment.episode
    found = np.zeros(len(group.members))
    for g, members in enumerate(group.members):
        found[g] = ring_ns(len(members), payload_bytes, config["fabric_delay_us"], config["fabric_mbit"])
        hosts = {segment.seats.hosts[at] for at in members}
        link = config.get("slow_link")
        if link is not None and group.crossing[g] and (not link.get("host") or link["host"] in hosts):
            found[g] += ring_ns(len(members), payload_bytes, link.get("delay_us", 200.0), link.get("mbit", 500.0))
        rail = segment.seats.shards[members[0]] % segment.shape.tensor
        for fault in segment.faults:
            if group.crossing[g] and fault.rail in (None, rail):
                found[g] += 1000 * fault.across_us + 1000 * fault.episode_us * segment.episode
            if group.racks[g]:
                found[g] += 1000 * fault.racks_us
    return found


def ring_ns(ranks: int, payload_bytes: int, delay_us: float, mbit: float) -> float:
    """A ring all-reduce: two passes, each of a delay and of (n-1)/n of the buffer."""
    return 2 * (1000 * delay_us + (ranks - 1) / ranks * payload_bytes * 8000 / mbit)


def _after(segment: Segment, at: int) -> None:
    config = segment.config
    for what in ("checkpoint", "eval"):
        if config[f"{what}_every"] and (at + 1) % config[f"{what}_every"] == 0:
            segment.span(what, 1000.0 * config[f"{what}_us"] * segment.job)
    _injected(segment)


def _staged(segment: Segment, layers_R: F64) -> None:
    """All micro-batches forward through the stages, then all backward; gradients are reduced at the end."""
    config, layers = segment.config, int(segment.config["layers"])
    stage_R = np.array([segment.shape.stage(shard) for shard in segment.seats.shards])
    share = layers / segment.shape.pipeline / _MICROBATCHES
    for name, passes, back in (("forward", 1, False), ("backward", 2, True)):
        for _ in range(_MICROBATCHES):
            _one_microbatch(segment, name, passes * share * layers_R, stage_R, back=back)
    segment.data.free[:] = 0.0
    last = segment.now_R
    for sizes in gradient_buckets(layers, int(config["hidden"]), int(config["bucket_bytes"]),
                                  str(config["grad_dtype"])).values():  # fmt: skip
        for size in sizes:
            last = _reduce(segment, size)
    segment.span("wait", np.maximum(0.0, last - segment.now_R))


def _one_microbatch(segment: Segment, name: str, length_R: F64, stage_R: I64, *, back: bool) -> None:
    """One stage after the other computes; the next waits until its peer's activations have come."""
    stages = sorted(set(stage_R.tolist()), reverse=back)
    jitter = 1 + segment.config["jitter"] * segment.rng.exponential(size=len(stage_R))
    for at, stage in enumerate(stages):
        here = stage_R == stage
        if at:
            _receive(segment, stages[at - 1], stage, stage_R)
        segment.span("launch", here * _LAUNCH_NS * segment.job)
        segment.span(name, here * length_R * segment.slow_R * jitter)


def _receive(segment: Segment, source: int, target: int, stage_R: I64) -> None:
    """Every rank of one stage gets from its peer of the other what that had at its last kernel."""
    shards = np.array(segment.seats.shards)
    hop = segment.shape.world_size // segment.shape.pipeline * (target - source)
    by_shard = {int(shard): at for at, shard in enumerate(shards)}
    enter, end = segment.now_R.copy(), segment.now_R.copy()
    pairs = [(by_shard[int(s) - hop], at) for at, s in enumerate(shards) if stage_R[at] == target
             and int(s) - hop in by_shard]  # fmt: skip
    peer, group = np.full(len(shards), -1), np.full(len(shards), -1)
    for g, (giver, taker) in enumerate(pairs):
        done = max(segment.now_R[giver], segment.now_R[taker]) + _INSIDE_DELAY_NS + _ACTIVATION_BYTES / 2
        end[giver], end[taker] = segment.now_R[giver] + 1000, done
        peer[giver], peer[taker] = segment.seats.ranks[taker], segment.seats.ranks[giver]
        group[[giver, taker]] = g
    if pairs:
        segment.span("wait", end - enter)
        segment.events.calls.append(
            Call(role=f"pp{source}{target}", op="send", payload_bytes=_ACTIVATION_BYTES, group_R=group, enter_R=enter,
                 end_R=end, p2p=True, peer_R=peer)
        )  # fmt: skip
