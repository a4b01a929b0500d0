"""A simulated regression as a user would bring it: a case file beside the recorded runs of both configurations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from narrows.flows.casefile import load_case
from narrows.flows.launching import launch
from narrows.flows.plan_files import jobs
from narrows.inquiry import plans
from narrows.inquiry.ladder import REFERENCE_PAIRS
from narrows.inquiry.state import State
from simulation.fitting import arms_of, fitted
from simulation.kinds import BAD, BASE, GOOD, HOSTS, KINDS, NEW, NODES, RACKS, Kind, Planted, shape_of
from simulation.launcher import SimulatedCluster, digest_seed
from simulation.noise import Noise

STEPS, WASHOUT = 20, 4
NOTHING = "nothing"
_MODES = ("restart", "switchback")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCase:
    """A case file and the cluster that its launches go to. ``kind`` is None where nothing is wrong."""

    kind: Kind | None
    planted: Planted
    moved: bool
    effect: float
    seed: int
    case_file: Path
    cluster: SimulatedCluster
    healthy_runs: tuple[Path, ...]
    regressed_runs: tuple[Path, ...]
    full_scale_device_seconds: float
    """What the recording of the runs took: eight pairs at full scale."""


def make_case(name: str, effect: float, seed: int, folder: Path, *, mode: str = "restart") -> SimulatedCase:
    """The case laid out in ``folder``, its runs recorded. The same arguments give the same case."""
    kind = KINDS[name] if name != NOTHING else None
    planted = fitted(name, effect) if kind is not None else Planted()
    moved = kind.placement if kind is not None else seed % 2 == 1
    case_seed = digest_seed(name, effect, seed)
    cluster = SimulatedCluster(
        seed=case_seed, shape=shape_of(kind), faults=planted.faults, noise=Noise(), racks=RACKS,
        host_facts=_host_facts(), facts_of_arm=_facts,
    )  # fmt: skip
    case_file = folder / "case.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    text = _case_text(name, kind, planted, case_seed, moved=moved, mode=mode, rolled_back=seed % 2 == 0)
    case_file.write_text(yaml.safe_dump(text, sort_keys=False), encoding="utf-8")
    runs = _record(case_file, cluster)
    text["runs"] = {arm: [str(path.relative_to(folder)) for path in paths] for arm, paths in runs.items()}
    case_file.write_text(yaml.safe_dump(text, sort_keys=False), encoding="utf-8")
    spent, cluster.device_seconds = cluster.device_seconds, 0.0
    return SimulatedCase(
        kind=kind, planted=planted, moved=moved, effect=effect, seed=seed, case_file=case_file, cluster=cluster,
        healthy_runs=tuple(runs["healthy"]), regressed_runs=tuple(runs["regressed"]),
        full_scale_device_seconds=_full_scale(cluster, spent, moved=moved),
    )  # fmt: skip


def _full_scale(cluster: SimulatedCluster, spent: float, *, moved: bool) -> float:
    """Eight pairs by restarts. Arms on two sets of hosts took turns inside one launch, which costs other starts."""
    if cluster.launches > 1 or not moved:
        return spent
    launches, world = 2 * REFERENCE_PAIRS, cluster.shape.world_size
    step_s = (cluster.now_ns / 1e9 - 1.0 - cluster.start_s) / (launches * STEPS)
    return launches * (cluster.start_s + STEPS * step_s) * world


def _record(case_file: Path, cluster: SimulatedCluster) -> dict[str, list[Path]]:
    case = load_case(case_file, recorded=False)
    experiment = plans.at_scope(case, State(), case.full_scope)
    found: dict[str, list[Path]] = {"healthy": [], "regressed": []}
    for job in jobs(experiment, case_file.parent / "runs", first_pair=0, pairs=REFERENCE_PAIRS):
        launch(cluster, job.plan)
        for arm, path in job.runs.items():
            found[arm].append(path)
    return found


def _case_text(name: str, kind: Kind | None, planted: Planted, seed: int, *, moved: bool, mode: str,
               rolled_back: bool) -> dict[str, Any]:  # fmt: skip
    healthy, regressed = arms_of(kind, planted)
    workload: dict[str, Any] = {
        "program": "step", "config": {**BASE, **planted.base},
        "healthy": {"hosts": list(GOOD)} if moved else healthy,
        "regressed": {"hosts": list(BAD)} if moved else regressed,
    }  # fmt: skip
    if rolled_back and not moved:
        # Somebody knows how to put everything back at once; which of the changes it was, nobody does.
        workload["perturbed"] = healthy | {"label": "roll-back" if regressed["label"] != NEW else healthy["label"]}
    return {
        "case": name, "question": "The step got slower after an upgrade of several things at once.",
        "runs": {"healthy": "runs/healthy", "regressed": "runs/regressed"}, "workload": workload,
        "cluster": {"nodes": NODES, "ranks_per_node": 2, "hosts": list(HOSTS), "device": "emulated"},
        "budget": {"device_hours": 1e6, "ask_above_device_hours": 0},
        "judge": {"mode": mode, "pairs": 4, "steps": STEPS, "washout": WASHOUT, "seed": seed % 100_000},
    }  # fmt: skip


def _host_facts() -> dict[str, dict[str, Any]]:
    """Hosts of one boot clock, of which some have another kernel and another network driver than the rest."""
    return {
        host: {
            "kernel": "6.8.0-45" if at % 5 else "6.8.0-51", "cpus": 64, "boot_id": "one",
            "memory_bytes": 1 << 40, "nics": [{"name": "ib0", "speed_mbit": 400000, "driver": f"mlx5 24.{at % 3}"}],
        }
        for at, host in enumerate(HOSTS)
    }  # fmt: skip


def _facts(_config: Any) -> dict[str, Any]:
    return {"packages": {"python": "3.12.4", "torch": "2.13.0"}, "environment": {"OMP_NUM_THREADS": "8"}}
