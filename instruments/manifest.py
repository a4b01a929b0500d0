"""The manifest: what really ran. A fact that cannot be had is absent; none is worth failing a training process."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from narrows.instruments.environment import environment, masked, masked_arguments, package_versions
from narrows.instruments.files import SCHEMA, read
from narrows.instruments.hosts import gpu_identity, host_facts
from narrows.instruments.placement import Placement
from narrows.instruments.source import source_facts


@dataclass(slots=True, kw_only=True)
class RunFacts:
    """What a recorder was told, and what it gathers in the background: ``source``, ``packages``, ``host``."""

    placement: Placement
    name: str
    config: dict[str, Any]
    workload: dict[str, Any]
    arm: str | None
    program: str
    launch: str | None
    seed: int | None
    device: str | None
    created_unix_ns: int = field(default_factory=time.time_ns)
    source: dict[str, Any] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    host: dict[str, Any] = field(default_factory=dict)
    gathered: bool = False

    def gather(self) -> None:
        """The slow facts are read: versions and source on rank 0, the host's on every local rank 0."""
        if self.placement.rank == 0:
            self.packages = package_versions()
            self.source = source_facts(Path(self.program))
        if self.placement.local_rank == 0:
            self.host = host_facts()
        self.gathered = True

    def finish(self) -> None:
        """What was not gathered yet, because the run was short, is gathered now."""
        if not self.gathered:
            self.gather()

    def used_device(self) -> str:
        """The device as told, else ``cuda`` once torch has initialised it. Never initialises it."""
        if self.device is not None:
            return self.device
        cuda = sys.modules.get("torch.cuda")
        return "cuda" if cuda is not None and cuda.is_initialized() else "cpu"


def rank_facts(facts: RunFacts, groups: dict[str, list[int]]) -> dict[str, Any]:
    """The object of ``rank.json``: where this rank ran, its groups, and on local rank 0 the facts of its host."""
    place = facts.placement
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": "rank",
        "rank": place.rank,
        "local_rank": place.local_rank,
        "host": place.host,
        "pid": os.getpid(),
        "device": facts.used_device(),
        "groups": groups,
    }
    if place.node_rank is not None:
        record["node_rank"] = place.node_rank
    if record["device"] == "cuda" and (gpu := gpu_identity()):
        record["gpu"] = gpu
    if facts.host:
        record["host_facts"] = facts.host
    return record


def first_manifest(facts: RunFacts) -> dict[str, Any]:
    """The manifest at the start: all that costs nothing to know, with this rank's placement alone."""
    device = facts.used_device()
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": "manifest",
        "run": facts.name,
        "created_unix_ns": facts.created_unix_ns,
        "program": facts.program,
        "argv": masked_arguments(sys.orig_argv),
        "device": device,
        "emulated": device == "emulated",
        "world_size": facts.placement.world_size,
        "config": masked(facts.config),
        "workload": masked(facts.workload),
        "environment": environment(os.environ),
        "placement": [_place(rank_facts(facts, {}))],
        "groups": {},
    }
    told = {"launch": facts.launch, "arm": facts.arm, "seed": facts.seed, "topology": _topology()}
    record.update({name: value for name, value in told.items() if value is not None})
    return record


def _topology() -> dict[str, Any] | None:
    """What the file of NARROWS_TOPOLOGY holds; a file that cannot be read is said once on stderr."""
    path = os.environ.get("NARROWS_TOPOLOGY")
    if not path:
        return None
    topology = read(Path(path))
    if topology is None and path not in _unreadable:
        _unreadable.add(path)
        print(
            f"narrows: NARROWS_TOPOLOGY={path}: no JSON object can be read there; racks and rails are not recorded, "
            "and narrows compare --topology FILE can tell them later",
            file=sys.stderr,
        )
    return topology


_unreadable: set[str] = set()


def complete_manifest(run: Path, facts: RunFacts) -> dict[str, Any]:
    """The manifest with what was gathered, and with the placement, groups and hosts of every rank that wrote them."""
    record = first_manifest(facts)
    for name, value in (("source", facts.source), ("packages", facts.packages)):
        if value:
            record[name] = value
    ranks = [found for path in sorted((run / "ranks").glob("*/rank.json")) if (found := read(path)) is not None]
    record["placement"] = [_place(rank) for rank in ranks]
    record["groups"] = _merged_groups(ranks)
    record["hosts"] = {rank["host"]: rank["host_facts"] for rank in ranks if "host_facts" in rank}
    return record


def _place(rank: dict[str, Any]) -> dict[str, Any]:
    return {name: rank[name] for name in ("rank", "local_rank", "host", "node_rank") if name in rank}


def _merged_groups(ranks: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Groups by name; where ranks give one role to several sets of members, the later ones are ``name@first``."""
    merged: dict[str, list[int]] = {}
    for rank in ranks:
        for name, members in rank.get("groups", {}).items():
            if merged.setdefault(name, members) != members and members:
                merged[f"{name}@{min(members)}"] = members
    return merged
