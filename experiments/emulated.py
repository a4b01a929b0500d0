"""The training step on an emulated accelerator: kernels are waits of computed length, each with a small real kernel."""

from __future__ import annotations

import random

import torch

from narrows.experiments.batches import RankBatch
from narrows.experiments.buckets import BucketOrder, plan_buckets
from narrows.experiments.fabric import Fabric
from narrows.experiments.places import Place, Team
from narrows.experiments.timing import Timeline, sharpen_timers
from narrows.experiments.training import ArmRun, Outcome
from narrows.experiments.workload import StepConfig, layer_ns

_GRADIENTS = (4, 4, 1, 3)
"""Gradients of a layer in the order of backward, in units of hidden^2: MLP down, MLP up, projection, QKV."""
_REAL_KERNEL = 32
_STATE_BYTES = 1 << 16


class EmulatedTrainer:
    """One rank of the emulated step. Faults, padding and recomputation stretch kernels; nothing else is changed.

    Spans, collectives and the ends of steps are times on the emulated stream; what the host lost in waking late shows
    only where it exceeds what a host queues ahead, and then as residual.
    """

    def __init__(self, arm: ArmRun, place: Place, team: Team, *, seed: int) -> None:
        config = arm.config
        self._config = config
        self._recorder = arm.recorder
        self._slowdown = config.slowdown(place.rank, place.host, place.local_rank)
        self._stream = Timeline()
        self._jitter = random.Random(seed)  # noqa: S311  # timing noise, not secrets
        self._noise_key = f"{seed}:{arm.name}:{place.rank}"
        self._segments = 0
        self._operand = torch.ones(_REAL_KERNEL, _REAL_KERNEL)
        self._fabric: Fabric | None = None
        if len(team) > 1:
            self._fabric = Fabric(team=team, config=config, recorder=arm.recorder, seed=seed)
        self._shared_clock = place.shared_clock
        self._completes, self._payloads = gradient_buckets(config)
        self._order = BucketOrder(len(self._payloads))
        sharpen_timers()

    def reset(self) -> None:
        """Nothing to forget: an emulated step depends on its batch alone."""

    def begin(self) -> None:
        self._segments += 1
        self._stream.restart()
        if self._fabric is not None and not self._shared_clock:
            self._fabric.epoch_ns = self._stream.end_ns

    def now_ns(self) -> int:
        return self._stream.end_ns

    def hold(self, name: str, begin_ns: int, until_ns: int) -> None:
        if until_ns > begin_ns:
            self._recorder.add_span(name, begin_ns, until_ns)
        self._stream.resume(until_ns)

    def load(self, batch: RankBatch) -> RankBatch:
        return batch

    def train(self, loaded: RankBatch) -> Outcome:
        config = self._config
        self._jitter.seed(f"{self._noise_key}:{self._segments}:{loaded.batch}")
        self._span("alloc", 1000 * config.alloc_us)
        self._span("h2d", 1000 * config.h2d_us)
        parts = loaded.micro(config.accumulate)
        for part in parts:
            forward_ns = layer_ns(config, [length for _, length in part])
            self._forward(forward_ns)
            self._backward(forward_ns, reduce=part is parts[-1])
        self._wait_for_buckets()
        self._kernel("optimizer", 1000 * config.optimizer_us)
        return Outcome(loss=loaded.model_loss)

    def evaluate(self, loaded: RankBatch) -> None:
        del loaded  # an emulated evaluation has its own length
        self._kernel("eval", 1000 * self._config.eval_us)

    def state(self) -> bytes:
        return bytes(_STATE_BYTES)

    def close(self) -> None:
        """Nothing to end: the emulated stream has no thread."""

    def _forward(self, forward_ns: float) -> None:
        for _ in range(self._config.layers):
            self._span("launch", 1000 * self._config.launch_gap_us)
            self._kernel("forward", forward_ns)

    def _backward(self, forward_ns: float, *, reduce: bool) -> None:
        passes = 3 if self._config.recompute else 2
        for layer in reversed(range(self._config.layers)):
            self._span("launch", 1000 * self._config.launch_gap_us)
            self._kernel("backward", passes * forward_ns)
            if reduce and self._config.overlap:
                for bucket in self._completes[layer]:
                    self._issue(self._order.mark(bucket))

    def _issue(self, buckets: range) -> None:
        """This rank arrives at the all-reduces of these buckets when its last kernel has ended."""
        if self._fabric is not None:
            for bucket in buckets:
                self._fabric.issue("all_reduce", self._payloads[bucket], self._stream.end_ns)

    def _wait_for_buckets(self) -> None:
        self._issue(self._order.rest())
        if self._fabric is None:
            return
        begin, end = self._stream.end_ns, self._fabric.finish()
        if end > begin:
            self._recorder.add_span("wait", begin, end)
        self._stream.resume(end)

    def _kernel(self, name: str, length_ns: float) -> None:
        torch.mm(self._operand, self._operand)
        jitter = self._config.jitter
        noise = 1 + jitter * self._jitter.expovariate(1) if jitter else 1
        self._span(name, length_ns * self._slowdown * noise)

    def _span(self, name: str, length_ns: float) -> None:
        if length_ns:
            self._recorder.add_span(name, *self._stream.run(length_ns))


def gradient_buckets(config: StepConfig) -> tuple[dict[int, list[int]], list[int]]:
    """For each layer the buckets that its backward completes, and the bytes of every bucket on the wire."""
    element_bytes = 2 if config.grad_dtype == "bfloat16" else 4
    owners = [layer for layer in reversed(range(config.layers)) for _ in _GRADIENTS]
    elements = [units * config.hidden**2 for _ in range(config.layers) for units in _GRADIENTS]
    buckets = plan_buckets([4 * count for count in elements], config.bucket_bytes)
    completes: dict[int, list[int]] = {layer: [] for layer in range(config.layers)}
    for bucket, members in enumerate(buckets):
        completes[owners[members[-1]]].append(bucket)
    return completes, [element_bytes * sum(elements[index] for index in members) for members in buckets]
