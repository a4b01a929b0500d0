"""Message-size curve of one collective: `torchrun ... -m narrows.experiments.collective --plan plan.json`.

For each size the plan's segments run in their order, so that the arms take turns at every size. One run directory for
each arm, and in it `curve.jsonl`: one line for each (size, arm, pair).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from narrows.experiments.places import Place, Team, joined
from narrows.experiments.plan import Plan, PlanError, Segment, load_plan
from narrows.experiments.sweep import call_after_barrier, even_bytes, make_caller, post_barrier_us
from narrows.experiments.switchback import Play, open_arms, plan_teams, walk
from narrows.experiments.workload import CollectiveConfig, collective_config
from narrows.instruments import Recorder

PROGRAM = "collective"


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 swept, 2 the plan was refused (one line on standard error, from rank 0)."""
    parser = argparse.ArgumentParser(prog="collective", description="Sweep message sizes by a plan.")
    parser.add_argument("--plan", required=True, help="segment plan, a JSON file")
    arguments = parser.parse_args(argv)
    try:
        plan = load_plan(arguments.plan, PROGRAM)
        configs = plan.configs(collective_config)
        sizes = common_sizes(plan, configs)
        with joined(plan.device) as place:
            plan.check_world(place.world_size)
            check_groups(plan, place.world_size)
            sweep(plan, place, configs, sizes)
    except PlanError as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"error: {error}", file=sys.stderr, flush=True)
        return 2
    return 0


def common_sizes(plan: Plan, configs: dict[str, CollectiveConfig]) -> tuple[int, ...]:
    """The sizes that every arm sweeps. Raises PlanError: the arms differ in them, or in the number of calls."""
    sizes = {config.sizes_bytes for config in configs.values()}
    if len(sizes) > 1:
        raise PlanError(f"{plan.path}: sizes_bytes differs between the arms: expected one list, in base")
    for index, segment in enumerate(plan.segments):
        if segment.washout >= configs[segment.arm].repeats:
            raise PlanError(
                f"{plan.path}: segments[{index}].washout = {segment.washout}: "
                f"expected less than repeats = {configs[segment.arm].repeats}"
            )
    return sizes.pop()


def check_groups(plan: Plan, world_size: int) -> None:
    """Raises PlanError: a segment has a single rank, with which there is no collective."""
    for index, segment in enumerate(plan.segments):
        if len(segment.ranks(world_size)) < 2:
            raise PlanError(f"{plan.path}: segments[{index}] has a single active rank: expected two or more")


def sweep(plan: Plan, place: Place, configs: dict[str, CollectiveConfig], sizes: tuple[int, ...]) -> None:
    """Every segment is played at every size; every arm's run directory and curve are complete."""
    teams = plan_teams(plan, place)
    recorders = open_arms(plan, place, configs, teams)
    for turn, size_bytes in enumerate(sizes):
        walk(plan, place, teams, _player(plan, place, configs, recorders, turn, size_bytes))
    # Only here: after an error the recorders stay open until they have written what happened.
    for recorder in recorders.values():
        recorder.close()


def _player(
    plan: Plan,
    place: Place,
    configs: dict[str, CollectiveConfig],
    recorders: dict[str, Recorder],
    turn: int,
    size_bytes: int,
) -> Play:
    """Plays a segment at one size. Segments are numbered on from size to size: a segment holds one size."""

    def play(segment: Segment, team: Team) -> int:
        config, recorder = configs[segment.arm], recorders[segment.arm]
        number = turn * (1 + max(s.segment for s in plan.segments)) + segment.segment
        call = make_caller(
            config,
            size_bytes,
            place=place,
            team=team,
            recorder=recorder,
            seed=plan.seed if plan.emulated(place.device.type) else None,
        )
        team.barrier()
        recorder.activate()
        recorder.begin(segment=number, pair=segment.pair)
        took_ns = call_after_barrier(
            call, team=team, recorder=recorder, repeats=config.repeats, washout=segment.washout
        )
        recorder.deactivate()
        service_us = post_barrier_us(team, took_ns)
        if place.rank == team.ranks[0]:
            line = curve_line(segment, number, config, size_bytes, team, len(took_ns), service_us)
            append_line(plan.out / segment.arm / "curve.jsonl", line)
        return config.repeats

    return play


def curve_line(
    segment: Segment,
    number: int,
    config: CollectiveConfig,
    size_bytes: int,
    team: Team,
    calls: int,
    service_us: float,
) -> dict[str, object]:
    """One point of the curve: the median time after the last arrival, in us, of one size in one arm of one pair."""
    return {
        "schema": 1,
        "kind": "curve",
        "op": config.op,
        "payload_bytes": even_bytes(size_bytes, len(team)),
        "arm": segment.arm,
        "pair": segment.pair,
        "segment": number,
        "group": team.name,
        "ranks": list(team.ranks),
        "calls": calls,
        "post_barrier_us": service_us,
    }


def append_line(path: Path, line: dict[str, object]) -> None:
    """The object is the last line of the file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    sys.exit(main())
