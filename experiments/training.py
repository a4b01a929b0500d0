"""The training step that every device shares: input, work, checkpoint, evaluation, and one record of it all."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from narrows.experiments.batches import RankBatch
from narrows.experiments.loader import Loader
from narrows.experiments.places import Place, Team
from narrows.experiments.timing import wait_until
from narrows.experiments.workload import StepConfig
from narrows.instruments import Recorder

Loaded = Any
"""What a trainer's `load` made of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a step yields beside its time. What was not measured is None."""

    loss: float
    grad_norm: float | None = None
    memory: Mapping[str, float] | None = None


class Trainer(Protocol):
    """One arm's model on one rank, with its gradient buckets."""

    def reset(self) -> None:
        """Back to the first step: the arms of a pair start from the same parameters."""

    def begin(self) -> None:
        """The team has just met: a segment's time starts now."""

    def now_ns(self) -> int:
        """How far the device has come, on the monotonic clock."""

    def hold(self, name: str, begin_ns: int, until_ns: int) -> None:
        """The device had nothing to do from then until then: a span of this name, if it has a length."""

    def load(self, batch: RankBatch) -> Loaded:
        """What the loader thread makes of a batch."""

    def train(self, loaded: Loaded) -> Outcome:
        """One optimizer step; records its spans and collectives."""

    def evaluate(self, loaded: Loaded) -> None:
        """One evaluation, on the batch at hand; records its span."""

    def state(self) -> bytes:
        """What a checkpoint of this rank holds."""

    def close(self) -> None:
        """Ends the trainer's threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRun:
    """One arm on one rank: its configuration, recorder and folder for checkpoints."""

    name: str
    config: StepConfig
    recorder: Recorder
    checkpoints: Path


def run_steps(arm: ArmRun, trainer: Trainer, batches: list[RankBatch], washout: int) -> None:
    """Plays the batches in order; the recorder's segment has begun. The first `washout` steps are warm-up."""
    config = arm.config
    loader: Loader[RankBatch, Loaded] = Loader(
        batches,
        trainer.load,
        load_ns=1000 * (config.loader_us + config.slow_input) if config.input == "loader" else 0,
        depth=config.prefetch if config.input == "loader" else len(batches),
    )
    try:
        for done, batch in enumerate(batches, start=1):
            begin_ns = trainer.now_ns()
            loaded, ready_ns = loader.take()
            trainer.hold("input", begin_ns, ready_ns)
            outcome = trainer.train(loaded)
            if config.injected_delay_ms:
                begin_ns = trainer.now_ns()
                end_ns = begin_ns + round(1e6 * config.injected_delay_ms)
                wait_until(end_ns)
                trainer.hold("delay", begin_ns, end_ns)
            if config.checkpoint_every and done % config.checkpoint_every == 0:
                begin_ns = trainer.now_ns()
                end_ns = write_checkpoint(arm.checkpoints, trainer.state(), begin_ns + 1000 * config.checkpoint_us)
                trainer.hold("checkpoint", begin_ns, end_ns)
            if config.eval_every and done % config.eval_every == 0:
                trainer.evaluate(loaded)
            arm.recorder.step(
                useful=batch.useful,
                loss=outcome.loss,
                grad_norm=outcome.grad_norm,
                memory=outcome.memory,
                warmup=done <= washout,
                batch=batch.batch,
                end_ns=trainer.now_ns(),
            )
    finally:
        loader.close()


def write_checkpoint(path: Path, state: bytes, no_earlier_than_ns: int) -> int:
    """When the state was on disk under `path`, in monotonic ns: at the given time or later."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torn = path.with_suffix(".part")
    with torn.open("wb") as file:
        file.write(state)
        file.flush()
        os.fsync(file.fileno())
    torn.replace(path)
    written_ns = max(time.monotonic_ns(), no_earlier_than_ns)
    wait_until(written_ns)
    return written_ns


def make_trainer(arm: ArmRun, place: Place, team: Team, *, seed: int, emulated: bool) -> Trainer:
    """The trainer of one arm for one set of active ranks."""
    # The real model's module is imported where it is used: the emulated device needs none of it.
    if emulated:
        from narrows.experiments.emulated import EmulatedTrainer

        return EmulatedTrainer(arm, place, team, seed=seed)
    from narrows.experiments.transformer import RealTrainer

    return RealTrainer(arm, place, team, seed=seed)
