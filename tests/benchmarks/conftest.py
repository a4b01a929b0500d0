"""The benchmarks' modules, importable as the programs there import them, and one launch on the simulated cluster."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from narrows.flows.launching import LaunchPlan

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if str(BENCHMARKS) not in sys.path:
    sys.path.insert(0, str(BENCHMARKS))
os.environ["PROVING_GROUND_HOSTS"] = "8"  # half of the default job, for half of the time

from simulation.faults import Fault  # noqa: E402
from simulation.job import JobShape  # noqa: E402
from simulation.kinds import BASE, GOOD, RACKS  # noqa: E402
from simulation.launcher import SimulatedCluster  # noqa: E402
from simulation.noise import Noise  # noqa: E402


def _record(
    folder: Path,
    *,
    arms: Mapping[str, Any] | None = None,
    seed: int = 1,
    pipeline: int = 1,
    noise: Noise | None = None,
    faults: tuple[Fault, ...] = (),
) -> SimulatedCluster:
    """One launch of two segments an arm at full scale, in ``folder``."""
    folder.mkdir(parents=True)
    given = arms or {"healthy": {}, "regressed": {"compute_scale": 1.2}}
    segments = [
        {"segment": at, "pair": at // 2, "arm": list(given)[at % 2], "steps": 10, "washout": 2, "first_batch": 0}
        for at in range(4)
    ]
    plan = {
        "program": "step", "experiment": "planned", "out": str(folder), "seed": seed, "base": dict(BASE),
        "arms": given, "num_shards": 16, "segments": segments,
    }  # fmt: skip
    (folder / "plan.json").write_text(json.dumps(plan))
    cluster = SimulatedCluster(
        seed=seed, shape=JobShape(pipeline=pipeline), racks=RACKS, faults=faults, noise=noise or Noise(),
        host_facts={host: {"boot_id": "one"} for host in GOOD},
    )  # fmt: skip
    hosts = tuple((host, tuple(range(2 * at, 2 * at + 2))) for at, host in enumerate(GOOD))
    argv = ("-m", "narrows.experiments.step", "--plan", str(folder / "plan.json"))
    cluster.submit(LaunchPlan(name="planned", hosts=hosts, argv=argv, log_dir=str(folder)))
    return cluster


@pytest.fixture(scope="session")
def record() -> Callable[..., SimulatedCluster]:
    return _record
