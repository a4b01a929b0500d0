"""The training step with faults planted in it: what torchrun starts in place of ``narrows.experiments.step``.

The faults come by an environment variable that no manifest keeps, so that the runs tell of them by their times alone.
"""

from __future__ import annotations

import math
import mmap
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from narrows.experiments import emulated, step, training
from narrows.experiments.batches import RankBatch
from narrows.experiments.places import Place, Team
from narrows.experiments.plan import Segment
from narrows.experiments.timing import wait_until
from narrows.experiments.training import ArmRun, Outcome
from processes.faults import VARIABLE, RankFault, unpacked

_CHURN_BYTES = 1 << 18
FAULTS = unpacked(os.environ.get(VARIABLE, "[]"))


class FaultyTrainer(emulated.EmulatedTrainer):
    """One rank of the emulated step that meets the faults which reach its arm, host and shard."""

    def __init__(self, arm: ArmRun, place: Place, team: Team, *, seed: int) -> None:
        super().__init__(arm, place, team, seed=seed)
        self._reached = [one for one in FAULTS if one.reaches({"label": arm.config.label})]
        self._place, self._seed, self._steady = place, seed, self._slowdown
        self._faults: list[RankFault] = []
        self._loaded = self._trained = self._steps = 0

    def sit(self, segment: Segment) -> None:
        """A segment begins, in which this rank plays the shard that the segment gives it."""
        place, shard = self._place, segment.shard(self._place.rank)
        self._faults = [one for one in self._reached if one.ranks([place.host], [place.local_rank], [shard])[0]]
        self._loaded, self._trained, self._steps = 0, 0, segment.steps

    def load(self, batch: RankBatch) -> RankBatch:
        """A slow storage keeps the loader thread for longer than a batch usually needs."""
        slow = sum(one.input_us for one in self._faults if self._loaded % one.every == 0)
        self._loaded += 1
        if slow and self._config.input == "loader":
            wait_until(time.monotonic_ns() + round(1000 * (self._config.loader_us + slow)))
        return batch

    def train(self, loaded: RankBatch) -> Outcome:
        chance = random.Random(f"{self._noise_key}:{self._segments}:{loaded.batch}:faults")
        together = random.Random(f"{self._seed}:{self._segments}:{loaded.batch}:faults")
        done = self._trained / self._steps
        self._trained += 1
        self._slowdown = self._steady * (1 + self._sum("drift") * (1 - math.exp(-3 * done)))
        self._spread = 1 + self._sum("spread") * chance.expovariate(1)
        self._stall_us = sum(one.stall_us * (chance.random() < one.chance) for one in self._faults)
        for one in self._faults:
            if one.retry_us and together.random() < one.chance:
                self._span("retry", 1000 * one.retry_us)
            if one.pause_us and chance.random() < one.chance:
                self._span("gc", 1000 * one.pause_us)
        self._span("alloc", 1000 * self._sum("growth_us") * 2 * (done + 1 / self._steps))
        self._churn(self._sum("churn_us"))
        return super().train(loaded)

    def _sum(self, name: str) -> float:
        return float(sum(getattr(one, name) for one in self._faults))

    def _churn(self, least_us: float) -> None:
        if not least_us:
            return
        begin_ns = time.monotonic_ns()
        while time.monotonic_ns() - begin_ns < 1000 * least_us:
            with mmap.mmap(-1, _CHURN_BYTES) as memory:
                memory.write(bytes(_CHURN_BYTES))
        self._span("alloc", time.monotonic_ns() - begin_ns)

    def _forward(self, forward_ns: float) -> None:
        super()._forward(self._spread * forward_ns)
        self._span("forward", 1000 * self._stall_us)

    def _backward(self, forward_ns: float, *, reduce: bool) -> None:
        super()._backward(self._spread * forward_ns, reduce=reduce)

    def _span(self, name: str, length_ns: float) -> None:
        if name == "launch":
            length_ns += 1000 * self._sum("launch_us") / (2 * self._config.layers)
        super()._span(name, length_ns)


def plant() -> None:
    """The built-in step meets ``FAULTS`` from now on."""
    play_segment, write_checkpoint = step.play_segment, training.write_checkpoint

    def seated(plan: Any, place: Place, segment: Segment, team: Team, arm: ArmRun, trainer: Any) -> None:
        trainer.sit(segment)
        play_segment(plan, place, segment, team, arm, trainer)

    def late(path: Path, state: bytes, no_earlier_than_ns: int) -> int:
        written_ns = write_checkpoint(path, state, no_earlier_than_ns)
        host = os.environ["NARROWS_HOST"]
        slow_us = sum(one.fsync_us for one in FAULTS if not one.hosts or host in one.hosts)
        return wait_until(written_ns + round(1000 * slow_us)) if slow_us else written_ns

    emulated.EmulatedTrainer = FaultyTrainer  # type: ignore[misc]
    step.play_segment = seated
    training.write_checkpoint = late


if __name__ == "__main__":
    plant()
    sys.exit(step.main())
