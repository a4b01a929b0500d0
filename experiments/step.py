"""The data-parallel training step: `torchrun ... -m narrows.experiments.step --plan plan.json`.

Plays the segments of a plan and writes one run directory for each arm. docs/experiments.md describes the plan.
"""

from __future__ import annotations

import argparse
import os
import sys

from narrows.experiments.batches import rank_batches
from narrows.experiments.places import Place, Team, joined
from narrows.experiments.plan import Plan, PlanError, Segment, load_plan
from narrows.experiments.switchback import open_arms, plan_teams, walk
from narrows.experiments.training import ArmRun, Trainer, make_trainer, run_steps
from narrows.experiments.workload import StepConfig, step_config

PROGRAM = "step"


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 played, 2 the plan was refused (one line on standard error, from rank 0)."""
    parser = argparse.ArgumentParser(prog="step", description="Play the segments of a plan.")
    parser.add_argument("--plan", required=True, help="segment plan, a JSON file")
    arguments = parser.parse_args(argv)
    try:
        plan = load_plan(arguments.plan, PROGRAM)
        configs = plan.configs(step_config)
        with joined(plan.device) as place:
            plan.check_world(place.world_size)
            play_plan(plan, place, configs)
    except PlanError as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"error: {error}", file=sys.stderr, flush=True)
        return 2
    return 0


def play_plan(plan: Plan, place: Place, configs: dict[str, StepConfig]) -> None:
    """Every segment is played and every arm's run directory is complete."""
    teams = plan_teams(plan, place)
    recorders = open_arms(plan, place, configs, teams)
    arms = {
        name: ArmRun(
            name=name,
            config=configs[name],
            recorder=recorder,
            checkpoints=plan.out / "checkpoints" / name / f"{place.rank:05d}.bin",
        )
        for name, recorder in recorders.items()
    }
    trainers: dict[tuple[str, str], Trainer] = {}

    def play(segment: Segment, team: Team) -> int:
        arm = arms[segment.arm]
        if (key := (arm.name, team.name)) not in trainers:
            trainers[key] = make_trainer(arm, place, team, seed=plan.seed, emulated=plan.emulated(place.device.type))
        play_segment(plan, place, segment, team, arm, trainers[key])
        return segment.steps

    try:
        walk(plan, place, teams, play)
    finally:
        for trainer in trainers.values():
            trainer.close()
    # Not in `finally`: after an error the recorders stay open until they have written what happened.
    for recorder in recorders.values():
        recorder.close()


def play_segment(plan: Plan, place: Place, segment: Segment, team: Team, arm: ArmRun, trainer: Trainer) -> None:
    """One segment of one arm, from a common start of its team."""
    batches = rank_batches(
        arm.config,
        segment,
        rank=place.rank,
        ranks=team.ranks,
        num_shards=plan.num_shards or place.world_size,
        seed=plan.seed,
    )
    trainer.reset()
    team.barrier()
    trainer.begin()
    arm.recorder.activate()
    arm.recorder.begin(segment=segment.segment, pair=segment.pair)
    run_steps(arm, trainer, batches, segment.washout)
    arm.recorder.deactivate()


if __name__ == "__main__":
    sys.exit(main())
