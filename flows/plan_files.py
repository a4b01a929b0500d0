"""From an experiment to the files and the launch that carry it out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from narrows.flows.instrumented import recording_environment
from narrows.flows.launching import LaunchPlan
from narrows.inquiry.codec import SCHEMA
from narrows.inquiry.design import Arm, Experiment, Mode
from narrows.inquiry.scopes import Placement
from narrows.inquiry.workloads import BUILTIN
from narrows.reducers.crossover import williams
from narrows.reducers.pairs import HEALTHY, abba_order

SILENCE_S = 120.0
START_LIMIT_S = 180.0
"""A launch may take this long on a loaded machine before its first step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One launch of torchrun, and the run directories that it writes by arm, each with its pair numbers."""

    plan: LaunchPlan
    runs: dict[str, Path]
    pairs: tuple[int, ...]


def jobs(
    experiment: Experiment, folder: Path, *, first_pair: int, pairs: int, base: Path | None = None
) -> Iterator[Job]:
    """The launches that pairs ``first_pair`` .. of the experiment need, in order.

    Switchback and node-set experiments of a built-in program need one, with the arms taking turns inside. Restarts
    need two a pair, each on its own arm's hosts alone; so does every experiment with the user's own script, which
    cannot change arms while it runs. ``base`` is the folder that the script's path is relative to.
    """
    folder = folder.absolute()
    if base is not None and experiment.program not in BUILTIN:
        experiment = replace(experiment, program=str(base / experiment.program))
    order = abba_order(first_pair + pairs, experiment.seed)[2 * first_pair :]
    rows = tuple(experiment.arms[at] for at in williams(len(experiment.arms)))
    arms = [arm for first in order[::2] for arm in (rows if first == HEALTHY else rows[::-1])]
    if experiment.mode is not Mode.RESTART and experiment.program in BUILTIN:
        yield _inside(experiment, folder, arms, first_pair)
        return
    for number, arm in enumerate(arms):
        yield _restart(experiment, folder / f"{number:02d}-{arm.name}", arm, first_pair + number // len(rows))


def _inside(experiment: Experiment, folder: Path, arms: list[Arm], first_pair: int) -> Job:
    width = len(experiment.arms)
    segments = [_segment(experiment, index, arm, first_pair + index // width) for index, arm in enumerate(arms)]
    plan = _plan_file(experiment, folder, {arm.name: arm for arm in experiment.arms}, segments)
    seconds = sum(one["steps"] for one in segments) * experiment.expected_step_s
    last = first_pair + len(arms) // width
    return Job(
        plan=_launch_plan(
            experiment,
            folder,
            ("-m", f"narrows.experiments.{experiment.program}", "--plan", str(plan)),
            seconds,
            {},
            experiment.placement,
        ),
        runs={arm.name: folder / arm.name for arm in experiment.arms},
        pairs=tuple(range(first_pair, last)),
    )


def _segment(experiment: Experiment, index: int, arm: Arm, pair: int) -> dict[str, Any]:
    ranks = arm.ranks or tuple(range(experiment.world_size))
    shards = arm.shards or ranks
    found: dict[str, Any] = {
        "segment": index,
        "pair": pair,
        "arm": arm.name,
        "steps": experiment.steps,
        "washout": experiment.washout,
        "first_batch": _first_batch(experiment, pair),
        "active": list(ranks),
        "shards": {str(rank): shard for rank, shard in zip(ranks, shards, strict=True)},
    }
    return found


def _first_batch(experiment: Experiment, pair: int) -> int:
    """Where a pair's batches begin: its steady ones follow those of the pair before, in whole rounds over the shards.

    Over a round every shard gets each of the packer's bins once, so that a reduced scope sees an average share.
    """
    rounds = -(-experiment.washout // experiment.num_shards) * experiment.num_shards
    return pair * (experiment.steps - experiment.washout) + rounds - experiment.washout


def _plan_file(experiment: Experiment, folder: Path, arms: dict[str, Arm], segments: list[dict[str, Any]]) -> Path:
    base = dict(experiment.base)
    if experiment.sizes_bytes:
        known = BUILTIN["collective"]
        base = {key: value for key, value in base.items() if key in known} | {
            "sizes_bytes": list(experiment.sizes_bytes)
        }
        arms = {
            name: Arm(name=name, config={key: value for key, value in arm.config.items() if key in known})
            for name, arm in arms.items()
        }
    value = {
        "schema": SCHEMA,
        "kind": "plan",
        "experiment": experiment.key,
        "launch": int(folder.name.rpartition("-")[2]) if folder.name.rpartition("-")[2].isdigit() else 1,
        "program": experiment.program,
        "out": str(folder),
        "device": experiment.device,
        "seed": experiment.seed,
        "base": base,
        "arms": {name: arm.config for name, arm in arms.items()},
        "num_shards": experiment.num_shards,
        "segments": segments,
    }
    path = folder / "plan.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
    return path


def _restart(experiment: Experiment, folder: Path, arm: Arm, pair: int) -> Job:
    run = folder / arm.name
    if experiment.program in BUILTIN:
        where, active = _own_hosts(experiment.placement, arm.ranks)
        segment = _segment(experiment, 0, replace(arm, ranks=active), pair)
        plan = _plan_file(experiment, folder, {arm.name: arm}, [segment])
        argv: tuple[str, ...] = ("-m", f"narrows.experiments.{experiment.program}", "--plan", str(plan))
        env: dict[str, str] = {}
    else:
        where = _own_ranks(experiment.placement, arm.ranks)
        argv = (experiment.program, *experiment.args, *arm.args)
        env = {**recording_environment(run), **arm.env}
    seconds = experiment.steps * experiment.expected_step_s
    plan_of_launch = _launch_plan(experiment, folder, argv, seconds, env, where)
    return Job(plan=plan_of_launch, runs={arm.name: run}, pairs=(pair,))


def _own_hosts(placement: Placement, ranks: tuple[int, ...]) -> tuple[Placement, tuple[int, ...]]:
    """The hosts that hold some of ``ranks``, whole, so that local ranks stay; and the new numbers of ``ranks``."""
    hosts = [(host, members) for host, members in placement.hosts if not ranks or set(members) & set(ranks)]
    number = {rank: at for at, rank in enumerate(rank for _, members in hosts for rank in members)}
    own = Placement(hosts=tuple((host, tuple(number[rank] for rank in members)) for host, members in hosts))
    return own, tuple(number[rank] for rank in ranks or number)


def _own_ranks(placement: Placement, ranks: tuple[int, ...]) -> Placement:
    """The hosts that hold ``ranks``, with these ranks alone, numbered anew; all of them when ``ranks`` is empty."""
    if not ranks:
        return placement
    counts = {host: len(set(members) & set(ranks)) for host, members in placement.hosts}
    starts = dict(zip(counts, accumulate(counts.values(), initial=0), strict=False))
    return Placement(
        hosts=tuple((host, tuple(range(starts[host], starts[host] + n))) for host, n in counts.items() if n)
    )


def _launch_plan(
    experiment: Experiment, folder: Path, argv: tuple[str, ...], seconds: float, env: dict[str, str], where: Placement
) -> LaunchPlan:
    own = experiment.program not in BUILTIN
    return LaunchPlan(
        name=f"{experiment.key}/{folder.name}",
        hosts=where.hosts,
        argv=argv,
        env=env,
        log_dir=str(folder / "logs"),
        watch=(str(folder),),
        timeout_s=None if own else START_LIMIT_S + 20 * seconds,
        silence_s=SILENCE_S,
    )
