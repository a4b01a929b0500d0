"""A regression of real processes as a user would bring it, and the launcher that plants what no setting shows."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from simulation.fitting import arms_of
from simulation.kinds import NEW, Kind, Planted
from simulation.launcher import digest_seed

from narrows.flows import demo
from narrows.flows.launching import Handle, Launcher, LaunchPlan, LineSink
from narrows.flows.local_launcher import LocalLauncher
from processes.faults import VARIABLE, RankFault, packed
from processes.kinds import BAD, GOOD, HOSTS, KINDS, RANKS_PER_NODE

NOTHING = "nothing"
PROGRAM = Path(__file__).with_name("faulty_step.py")


@dataclass(slots=True, kw_only=True)
class FaultyMachines:
    """This machine as hosts with faults. ``rank_steps`` counts what was played: steps times ranks that took part."""

    faults: Sequence[RankFault] = ()
    rank_steps: int = 0
    local: Launcher = field(default_factory=LocalLauncher)

    def submit(self, plan: LaunchPlan, *, on_line: LineSink | None = None) -> Handle:
        """The plan's launch, its training step under the faults."""
        raw = json.loads(Path(plan.argv[plan.argv.index("--plan") + 1]).read_text(encoding="utf-8"))
        if raw["program"] == "step":
            self.rank_steps += sum(one["steps"] * len(one["active"]) for one in raw["segments"])
            env = {**plan.env, VARIABLE: packed(self.faults)}
            plan = replace(plan, argv=(str(PROGRAM), *plan.argv[2:]), env=env)
        return self.local.submit(plan, on_line=on_line)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessCase:
    """A case file, and the machines that its launches go to. ``kind`` is None where nothing is wrong."""

    kind: Kind | None
    moved: bool
    case_file: Path
    cluster: FaultyMachines
    full_scale_device_seconds: float = 0.0
    full_scale_rank_steps: int = 0

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of each rank of the regressed run."""
        return tuple(host for host in (BAD if self.moved else GOOD) for _ in range(RANKS_PER_NODE))


def lay_out(name: str, effect: float, seed: int, folder: Path) -> ProcessCase:
    """The case file in ``folder``, with no runs yet. The same arguments give the same case."""
    kind = KINDS[name] if name != NOTHING else None
    planted = kind.make(effect) if kind is not None else Planted()
    moved = kind.placement if kind is not None else seed % 2 == 1
    text = _case_text(name, kind, planted, digest_seed(name, effect, seed), moved=moved, rolled_back=seed % 2 == 0)
    folder.mkdir(parents=True, exist_ok=True)
    case_file = folder / "case.yaml"
    case_file.write_text(yaml.safe_dump(text, sort_keys=False), encoding="utf-8")
    faults = [fault for fault in planted.faults if isinstance(fault, RankFault)]
    return ProcessCase(kind=kind, moved=moved, case_file=case_file, cluster=FaultyMachines(faults=faults))


def record(case: ProcessCase) -> ProcessCase:
    """The case with its runs recorded: eight pairs at full scale, in turns inside one launch. Raises LaunchError."""
    began = time.monotonic()
    demo.record(case.case_file, case.cluster)
    spent = (time.monotonic() - began) * len(case.hosts)
    steps, case.cluster.rank_steps = case.cluster.rank_steps, 0
    return replace(case, full_scale_device_seconds=spent, full_scale_rank_steps=steps)


def _case_text(name: str, kind: Kind | None, planted: Planted, seed: int, *, moved: bool, rolled_back: bool
               ) -> dict[str, Any]:  # fmt: skip
    healthy, regressed = arms_of(kind, planted)
    workload: dict[str, Any] = {
        "program": "step", "config": dict(planted.base),
        "healthy": {"hosts": list(GOOD)} if moved else healthy,
        "regressed": {"hosts": list(BAD)} if moved else regressed,
    }  # fmt: skip
    if rolled_back and not moved:
        workload["perturbed"] = healthy | {"label": "roll-back" if regressed["label"] != NEW else healthy["label"]}
    return {
        "case": name, "question": "The step got slower after an upgrade of several things at once.",
        "runs": {"healthy": "runs/healthy", "regressed": "runs/regressed"}, "workload": workload,
        "cluster": {"launcher": "local", "nodes": len(GOOD), "ranks_per_node": RANKS_PER_NODE, "hosts": list(HOSTS),
                    "device": "emulated"},
        "budget": {"device_hours": 1e3, "ask_above_device_hours": 0},
        "judge": {"margin_percent": 3, "seed": seed % 100_000},
    }  # fmt: skip
