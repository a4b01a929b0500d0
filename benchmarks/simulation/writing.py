"""Segments of one arm as a run directory, in the format that docs/run-directory.md describes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulation.recording import Call, Recording

EPOCH_UNIX_NS = 1_700_000_000_000_000_000
"""What the simulated hosts' wall clocks read when their monotonic clocks read 0."""


@dataclass(slots=True, kw_only=True)
class ArmFiles:
    """What is written of one arm: its segments in the order in which they ran, and the manifest's facts."""

    path: Path
    arm: str
    launch: str
    config: Mapping[str, Any]
    workload: Mapping[str, Any]
    hosts: Mapping[str, Mapping[str, Any]]
    facts: Mapping[str, Any] = field(default_factory=dict)
    recordings: list[Recording] = field(default_factory=list)

    def write(self) -> None:
        """The run directory, complete."""
        self.path.mkdir(parents=True, exist_ok=True)
        _write_json(self.path / "manifest.json", self._manifest())
        seats = {rank: (host, local) for one in self.recordings
                 for rank, host, local in zip(one.ranks, one.hosts, one.locals, strict=True)}  # fmt: skip
        for rank, (host, local) in sorted(seats.items()):
            _write_rank(self.path / "ranks" / f"{rank:05d}", rank, host, local, self.recordings)

    def _manifest(self) -> dict[str, Any]:
        first = self.recordings[0]
        node = {host: at for at, host in enumerate(dict.fromkeys(first.hosts))}
        return {
            "schema": 1, "kind": "manifest", "run": self.path.name,
            "created_unix_ns": EPOCH_UNIX_NS + int(first.steps[0].start_R.min()), "program": "step",
            "argv": ["step"], "device": "emulated", "emulated": True, "world_size": len(first.ranks),
            "config": dict(self.config), "workload": dict(self.workload),
            "placement": [
                {"rank": rank, "local_rank": local, "host": host, "node_rank": node[host]}
                for rank, host, local in zip(first.ranks, first.hosts, first.locals, strict=True)
            ],
            "hosts": {host: dict(self.hosts.get(host, {})) for host in node},
            "launch": self.launch, "arm": self.arm,
        } | dict(self.facts)  # fmt: skip


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value) + "\n", encoding="utf-8")


def _write_rank(folder: Path, rank: int, host: str, local: int, recordings: Sequence[Recording]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "rank.json", {"schema": 1, "kind": "rank", "rank": rank, "local_rank": local, "host": host,
                                       "device": "emulated"})  # fmt: skip
    head = {"rank": rank, "host": host}
    steps = [json.dumps({"schema": 1, "kind": "steps", **head, "clock": "monotonic_ns"})]
    calls = [json.dumps({"schema": 1, "kind": "collectives", **head})]
    clock = [json.dumps({"schema": 1, "kind": "clock", **head})]
    turns: dict[Any, int] = {}
    for one in recordings:
        if rank not in one.ranks:
            continue
        at = one.ranks.index(rank)
        _step_lines(steps, one, at)
        _call_lines(calls, one, at, turns)
        ends = (int(one.steps[0].start_R[at]), int(one.steps[-1].end_R[at]))
        clock += [json.dumps({"monotonic_ns": when, "unix_ns": when + EPOCH_UNIX_NS}) for when in ends]
    for name, lines in (("steps", steps), ("collectives", calls), ("clock", clock)):
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _step_lines(lines: list[str], one: Recording, at: int) -> None:
    for number, step in enumerate(one.steps):
        start, end = int(step.start_R[at]), int(step.end_R[at])
        spans = ",".join(
            f'["{name}",{int(begin[at]) - start},{int(until[at]) - start}]'
            for name, begin, until in step.spans
            if int(until[at]) > int(begin[at])
        )
        useful = ",".join(f'"{name}":{int(values[at])}' for name, values in step.useful.items())
        warm = ',"warmup":true' if number < one.washout else ""
        lines.append(
            f'{{"step":{number},"segment":{one.segment},"pair":{one.pair},"batch":{step.batch},"start_ns":{start},'
            f'"end_ns":{end},"step_us":{(end - start) / 1000},"spans_ns":[{spans}],"useful":{{{useful}}},'
            f'"loss":{step.loss:.9f}{warm}}}'
        )


def _call_lines(lines: list[str], one: Recording, at: int, turns: dict[Any, int]) -> None:
    for number, step in enumerate(one.steps):
        for call in step.calls:
            if call.group_R[at] < 0:
                continue
            name, members, op, more = _call_facts(one, call, at)
            key = (name, members)
            if key not in turns:
                lines.append(f'{{"group":"{name}","ranks":{list(members)}}}')
            turn = turns[key] = turns.get(key, -1) + 1
            lines.append(
                f'{{"group":"{name}","seq":{turn},"op":"{op}","payload_bytes":{call.payload_bytes},'
                f'"enter_ns":{int(call.enter_R[at])},"end_ns":{int(call.end_R[at])},"step":{number},'
                f'"segment":{one.segment}{more}}}'
            )


def _call_facts(one: Recording, call: Call, at: int) -> tuple[str, tuple[int, ...], str, str]:
    if not call.p2p:
        return call.role, one.groups[call.role][int(call.group_R[at])], call.op, ""
    assert call.peer_R is not None
    op = "send" if _gives(call, at) else "recv"
    return "pp", one.ranks, op, f',"p2p":true,"peer":{int(call.peer_R[at])}'


def _gives(call: Call, at: int) -> bool:
    """The giver of a message leaves as soon as it is buffered."""
    return bool(call.end_R[at] - call.enter_R[at] <= 1000.5)
