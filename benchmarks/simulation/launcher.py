"""The simulated cluster as a place to launch on: it reads the plan of a built-in program and plays it in no time."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from narrows.flows.launching import LaunchPlan, LaunchResult, LineSink
from narrows.inquiry.workloads import defaults
from simulation.faults import Fault
from simulation.job import JobShape, Seats, Segment, Team, team
from simulation.noise import Noise, device_factor
from simulation.step import play, ring_ns
from simulation.writing import ArmFiles

Config = Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class SimulatedCluster:
    """Hosts with their faults, a clock that only launches advance, and what was spent. Submits as a launcher does."""

    seed: int
    shape: JobShape
    faults: Sequence[Fault] = ()
    noise: Noise = field(default_factory=Noise)
    racks: Mapping[str, int] = field(default_factory=dict)
    host_facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    facts_of_arm: Callable[[Config], Mapping[str, Any]] = lambda _config: {}
    start_s: float = 1.8
    now_ns: float = 1e9
    device_seconds: float = 0.0
    launches: int = 0
    level: float = 0.0

    def submit(self, plan: LaunchPlan, *, on_line: LineSink | None = None) -> Finished:
        """A handle to the launch, which is over already."""
        del on_line
        self.launches += 1
        began = self.now_ns
        raw = json.loads(Path(plan.argv[plan.argv.index("--plan") + 1]).read_text(encoding="utf-8"))
        rng = np.random.default_rng((self.seed, self.launches))
        self.now_ns += self.start_s * 1e9
        (self._sweep if raw["program"] == "collective" else self._train)(plan, raw, rng)
        seconds = (self.now_ns - began) / 1e9
        self.device_seconds += seconds * plan.world_size
        return Finished(name=plan.name, seconds=seconds)

    def _train(self, plan: LaunchPlan, raw: dict[str, Any], rng: np.random.Generator) -> None:
        launch = rng.standard_normal() * self.noise.launch
        devices = {
            rank: device_factor(self.noise, self.seed, host, at) * np.exp(self.noise.device * rng.standard_normal())
            for host, ranks in plan.hosts for at, rank in enumerate(ranks)
        }  # fmt: skip
        arms = self._arms(raw)
        for one in raw["segments"]:
            seats = seats_of(plan, one)
            files = arms[one["arm"]]
            segment = Segment(
                config=files.config, shape=self.shape, seats=seats, faults=self.faults, noise=self.noise, rng=rng,
                seed=int(raw["seed"]), factor=float(np.exp(launch + self._drifted(rng))), racks=self.racks,
                device_R=np.array([devices[rank] for rank in seats.ranks]),
            )  # fmt: skip
            recording = play(
                segment, number=one["segment"], pair=one["pair"], steps=one["steps"], washout=one["washout"],
                first_batch=one["first_batch"], now_ns=self.now_ns,
            )  # fmt: skip
            files.recordings.append(recording)
            self.now_ns = recording.end_ns + 1e6
        for files in arms.values():
            files.write()

    def _arms(self, raw: dict[str, Any]) -> dict[str, ArmFiles]:
        known = defaults(raw["program"])
        found = {}
        for name, own in raw["arms"].items():
            config = {**known, **raw["base"], **own}
            found[name] = ArmFiles(
                path=Path(raw["out"]) / name, arm=name, launch=f"{raw['experiment']}-{self.launches}", config=config,
                workload={"experiment": raw["experiment"], "num_shards": raw["num_shards"]},
                hosts=self.host_facts, facts=self.facts_of_arm(config),
            )  # fmt: skip
        return found

    def _drifted(self, rng: np.random.Generator) -> float:
        """The session's level at the next segment."""
        noise = self.noise
        shock = rng.standard_normal() * noise.session * np.sqrt(1 - noise.session_memory**2)
        self.level = noise.session_memory * self.level + shock
        return self.level

    def _sweep(self, plan: LaunchPlan, raw: dict[str, Any], rng: np.random.Generator) -> None:
        """One operation over message sizes, each call after a barrier: the median over its calls."""
        arms = self._arms(raw)
        played: set[str] = set()
        for size in raw["base"]["sizes_bytes"]:
            for one in raw["segments"]:
                files, seats = arms[one["arm"]], seats_of(plan, one)
                alone = team("dp", [0] * len(seats.ranks), seats.hosts, self.racks)
                service = self._call_ns(files.config, alone, seats, size) * np.exp(0.02 * rng.standard_normal())
                line = {
                    "schema": 1, "kind": "curve", "op": "all_reduce", "payload_bytes": size, "arm": one["arm"],
                    "pair": one["pair"], "segment": one["segment"], "group": "dp", "ranks": list(seats.ranks),
                    "calls": 12, "post_barrier_us": service / 1000,
                }  # fmt: skip
                files.path.mkdir(parents=True, exist_ok=True)
                with (files.path / "curve.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                self.now_ns += 12 * service
                if one["arm"] not in played:
                    played.add(one["arm"])
                    self._write_manifest(plan, one, files)

    def _write_manifest(self, plan: LaunchPlan, one: dict[str, Any], files: ArmFiles) -> None:
        seats = seats_of(plan, one)
        placement = [
            {"rank": rank, "local_rank": local, "host": host}
            for rank, host, local in zip(seats.ranks, seats.hosts, seats.locals, strict=True)
        ]
        value = {
            "schema": 1, "kind": "manifest", "run": files.path.name, "program": "collective", "device": "emulated",
            "emulated": True, "world_size": len(seats.ranks), "config": dict(files.config), "placement": placement,
            "hosts": {host: dict(self.host_facts.get(host, {})) for host in dict.fromkeys(seats.hosts)},
            "arm": files.arm,
        }  # fmt: skip
        (files.path / "manifest.json").write_text(json.dumps(value), encoding="utf-8")

    def _call_ns(self, config: Config, group: Team, seats: Seats, size: int) -> float:
        ranks = len(seats.ranks)
        found = ring_ns(ranks, size, config["fabric_delay_us"], config["fabric_mbit"])
        link = config.get("slow_link")
        if group.members and group.crossing[0]:
            if link is not None and (not link.get("host") or link["host"] in seats.hosts):
                found += ring_ns(ranks, size, link.get("delay_us", 200.0), link.get("mbit", 500.0))
            reached = [fault for fault in self.faults if fault.reaches(config)]
            found += sum(1000 * (fault.across_us + fault.episode_us / 2) for fault in reached)
            found += sum(1000 * fault.racks_us for fault in reached) * group.racks[0]
        return found


def seats_of(plan: LaunchPlan, segment: Mapping[str, Any]) -> Seats:
    """Who plays a segment of a plan: by default every rank its own share of the batch."""
    place = {rank: (host, at) for host, ranks in plan.hosts for at, rank in enumerate(ranks)}
    ranks = tuple(segment.get("active") or sorted(place))
    shards = segment.get("shards") or {}
    return Seats(
        ranks=ranks,
        hosts=tuple(place[rank][0] for rank in ranks),
        locals=tuple(place[rank][1] for rank in ranks),
        shards=tuple(int(shards.get(str(rank), rank)) for rank in ranks),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The handle of a launch that is over."""

    name: str
    seconds: float

    def poll(self) -> int | None:
        return 0

    def logs(self) -> tuple[Path, ...]:
        return ()

    def cancel(self) -> None:
        """Nothing is left to end."""

    def result(self, timeout_s: float | None = None, *, cancelled: Callable[[], bool] | None = None) -> LaunchResult:
        del timeout_s, cancelled
        return LaunchResult(name=self.name, returncode=0, seconds=self.seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        """Nothing is left to end."""


def digest_seed(*words: object) -> int:
    """A seed that depends on these words alone."""
    return zlib.crc32(" ".join(map(str, words)).encode())
