"""The smallest experiment that still shows the loss, as commands that can be pasted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from narrows.inquiry import plans
from narrows.inquiry.case import Case
from narrows.inquiry.hypotheses import Hypothesis
from narrows.inquiry.scopes import Placement
from narrows.inquiry.state import State
from narrows.templates.evidence import Record

MASTER_PORT = 29500
DIAGNOSED = "The loss was not reproduced in an experiment, so there is no smaller one than the job itself."


BESIDE = "The record stays as it is: what is run goes into `reproductions/`, and the effect is compared with it."


def smallest(state: State) -> Hypothesis | None:
    """The hypothesis whose experiment showed the loss at the smallest scope."""
    first = state.first_scope
    return state.hypothesis(f"scope:{first.value}") if first else None


def reproducer(
    case: Case, state: State, known: Mapping[str, Record], given: tuple[str, ...]
) -> tuple[tuple[str, ...], str]:
    """The commands, one a host, and a sentence about them. ``given`` (from the caller) is taken as it is."""
    one = smallest(state)
    if one is None or one.experiment is None or one.scope is None:
        return (), DIAGNOSED
    if given:
        return given, f"It plays both arms in turn at {one.scope.words}, and is run from this folder. {BESIDE}"
    if not case.workload.builtin:
        return (), (
            f"It is experiment {one.experiment}: the case's own program on {', '.join(one.hosts)}; "
            "its arguments and environment stand in the manifests listed under Files."
        )
    experiment = plans.at_scope(case, state, one.scope)
    commands = tuple(
        command
        for plan in _plans(one.experiment, known.get(one.experiment))
        for command in _commands(case, experiment.placement, experiment.program, plan)
    )
    return commands, _note(one, len(commands))


def _plans(experiment: str, record: Record | None) -> tuple[str, ...]:
    """The plan of the first launch; with an own launch for each arm, the first plan of each."""
    first = {arm: path for arm, path, _ in reversed(record.runs() if record else ())}
    found = dict.fromkeys(str(PurePosixPath(path).parent / "plan.json") for path in first.values())
    relative = [path for path in found if not PurePosixPath(path).is_absolute()]
    return tuple(sorted(relative)) or (f"experiments/{experiment}/launch-1/plan.json",)


def _note(one: Hypothesis | None, commands: int) -> str:
    where = f" at {one.scope.words}" if one and one.scope else ""
    several = ", one command a host, started together" if commands > 1 else ""
    return (
        f"It plays both arms in turn{where}{several}, and is run from this folder. It writes where the plan's `out` "
        "points: copy the plan and change `out` to keep the recorded runs."
    )


def _commands(case: Case, where: Placement, program: str, plan: str) -> tuple[str, ...]:
    module = program if program.startswith("narrows.") else f"narrows.experiments.{program}"
    threads = "" if case.cluster.device == "cuda" else " OMP_NUM_THREADS=1"
    # The local launchers put every host on this machine; elsewhere the nodes meet at the first host.
    master = "127.0.0.1" if case.cluster.launcher in ("local", "netns") else where.names[0]
    nodes, found = len(where.hosts), []
    for index, (host, ranks) in enumerate(where.hosts):
        meet = f"--nnodes {nodes} --node-rank {index} --master-addr {master} --master-port {MASTER_PORT} "
        found.append(
            f"NARROWS_HOST={host}{threads} python -m torch.distributed.run {meet if nodes > 1 else ''}"
            f"--nproc-per-node {len(ranks)} -m {module} --plan {plan}"
        )
    return tuple(found)
