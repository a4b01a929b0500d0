"""Segments in turn inside one launch: every process walks the plan, the active ranks of a segment play it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Protocol

from narrows.experiments.places import Place, Team, make_teams, meet
from narrows.experiments.plan import Plan, Segment
from narrows.experiments.workload import StepConfig
from narrows.instruments import Recorder, start

_PROGRESS_S = 1.0


class Config(Protocol):
    """What a program made of an arm's configuration."""

    @property
    def label(self) -> str: ...


Play = Callable[[Segment, Team], int]
"""Plays one segment on an active rank, and says how many steps that were."""


def open_arms(
    plan: Plan, place: Place, configs: dict[str, Any], teams: dict[tuple[int, ...], Team]
) -> dict[str, Recorder]:
    """A recorder for each arm, writing OUT/<arm>; none of them is active."""
    recorders = {}
    for name, config in configs.items():
        recorders[name] = start(
            plan.out / name,
            config=asdict(config),
            workload=shapes(plan, place, config),
            arm=name,
            program=plan.program,
            launch=plan.launch,
            seed=plan.seed,
            device="emulated" if plan.emulated(place.device.type) else place.device.type,
            groups={team.name: team.ranks for team in teams.values()},
        )
        recorders[name].deactivate()
    return recorders


def shapes(plan: Plan, place: Place, config: Any) -> dict[str, object]:
    """The workload's shape for the manifest: the same in both arms unless the arms differ in it."""
    shape: dict[str, object] = {
        "experiment": plan.experiment,
        "num_shards": plan.num_shards or place.world_size,
        "schedule": plan.schedule(),
    }
    if isinstance(config, StepConfig):
        keys = ("layers", "hidden", "tokens_per_rank", "bucket_bytes", "accumulate", "grad_dtype")
        shape.update({key: getattr(config, key) for key in keys})
    return shape


def plan_teams(plan: Plan, place: Place) -> dict[tuple[int, ...], Team]:
    """The team of every segment, by its ranks."""
    return make_teams(place, (segment.ranks(place.world_size) for segment in plan.segments))


def walk(plan: Plan, place: Place, teams: dict[tuple[int, ...], Team], play: Play) -> None:
    """Plays every segment in order. All processes meet before each and at the end; idle ones wait there.

    Rank 0 prints about one line a second.
    """
    gc.collect()
    gc.freeze()
    printed = time.monotonic()
    for number, segment in enumerate(plan.segments, start=1):
        team = teams[segment.ranks(place.world_size)]
        meet()
        begin = time.monotonic()
        steps = play(segment, team) if place.rank in team.ranks else 0
        now = time.monotonic()
        if place.rank == 0 and (now - printed >= _PROGRESS_S or number == len(plan.segments)):
            printed = now
            print(progress(plan, segment, number, now - begin, steps), flush=True)
    meet()


def progress(plan: Plan, segment: Segment, number: int, wall_s: float, steps: int) -> str:
    """One line on how far the launch is."""
    pace = f"{1e3 * wall_s / steps:.1f} ms/step" if steps else "rank 0 is idle"
    return f"{plan.experiment} segment {number}/{len(plan.segments)} {segment.arm} {pace}".lstrip()
