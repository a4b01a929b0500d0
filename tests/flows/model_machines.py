"""Machines that are a formula, and a case about them: what the engine does, without a process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml

from narrows.flows.launching import LaunchPlan, LaunchResult

SLOW_INPUT = {
    "case": "slow-input",
    "question": "The step got slower after the storage moved.",
    "runs": {"healthy": "runs/healthy", "regressed": "runs/regressed"},
    "workload": {"program": "step", "healthy": {"slow_input": 0}, "regressed": {"slow_input": 6000}},
    "cluster": {"nodes": 2, "ranks_per_node": 2},
    "budget": {"device_hours": 9, "ask_above_device_hours": 9},
    "judge": {"margin_percent": 2, "steps": 12, "washout": 0},
}
Spoil = Callable[[LaunchPlan], None]


@dataclass
class ModelHandle:
    """A job that is over as soon as it is submitted."""

    name: str

    def poll(self) -> int | None:
        return 0

    def logs(self) -> tuple[Path, ...]:
        return ()

    def cancel(self) -> None:
        return

    def result(self, *_: object, **__: object) -> LaunchResult:
        return LaunchResult(name=self.name, returncode=0, seconds=0.1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return


@dataclass
class ModelLauncher:
    """A launcher whose machines are a formula: it writes the run directories that a plan would have left.

    ``before`` is called with each plan first, to fail it or to watch it.
    """

    arm_type: type[Any]
    before: Spoil = lambda _plan: None
    packages: dict[str, str] = field(default_factory=dict)
    submitted: list[str] = field(default_factory=list)

    def submit(self, plan: LaunchPlan, **_: object) -> ModelHandle:
        self.submitted.append(plan.name)
        self.before(plan)
        text = json.loads(Path(plan.argv[plan.argv.index("--plan") + 1]).read_text())
        hosts = tuple(host for host, ranks in plan.hosts for _ in ranks)
        for arm, overrides in text["arms"].items():
            config = text["base"] | overrides
            segments = {one["segment"]: one["pair"] for one in text["segments"] if one["arm"] == arm}
            run = self.run(hosts, config, steps=text["segments"][0]["steps"])
            run.began_ns = len(self.submitted) * 10**12
            run.manifest = {"launch": f"{plan.name}", "packages": {"torch": "9.8"}}
            if arm != "healthy" and self.packages:
                run.manifest["packages"] = self.packages
            run.write(Path(text["out"]) / arm, arm=arm, segments=segments)
        return ModelHandle(plan.name)

    def run(self, hosts: tuple[str, ...], config: dict[str, Any], steps: int = 12) -> Any:
        waits = config.get("slow_input", 0) / 1000 if config.get("input", "loader") == "loader" else -0.4

        waits += config.get("injected_delay_ms", 0.0)

        def jitter(step: int) -> float:
            return 0.03 * ((step * 7) % 5)

        return self.arm_type(
            hosts=hosts, config=config, steps=steps, pairs=8, read=lambda _rank, step: 0.5 + waits + jitter(step)
        )


def write_case(folder: Path, machines: ModelLauncher, record_pair: Callable[..., Any]) -> Path:
    """The case file beside both of its runs."""
    four = ("n0", "n0", "n1", "n1")
    record_pair(folder, machines.run(four, {"slow_input": 0}), machines.run(four, {"slow_input": 6000}))
    path = folder / "case.yaml"
    path.write_text(yaml.safe_dump(SLOW_INPUT))
    return path
