"""Synthetic run directories: written record by record, or by a small model of a data-parallel step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

Span = tuple[str, int, int]


@dataclass
class RunBuilder:
    """Records of a run in memory, with absolute times in ns, written in the contract's format."""

    hosts: dict[int, str]
    groups: dict[str, list[int]] = field(default_factory=dict)
    boot_ids: dict[str, str] | None = None
    manifest: dict[str, Any] = field(default_factory=dict)
    steps: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    calls: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    clock: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    @classmethod
    def of(cls, num_ranks: int, **fields: Any) -> RunBuilder:
        """Ranks 0.. on one host, all in group ``dp``."""
        hosts = dict.fromkeys(range(num_ranks), "n0")
        return cls(**{"hosts": hosts, "groups": {"dp": list(range(num_ranks))}} | fields)

    def step(self, rank: int, step: int, start: int, end: int, spans: Iterable[Span] = (), **fields: Any) -> None:
        offsets = [[name, since - start, until - start] for name, since, until in spans]
        line = {"step": step, "start_ns": start, "end_ns": end, "step_us": (end - start) / 1e3, "spans_ns": offsets}
        self.steps.setdefault(rank, []).append(line | fields)

    def call(self, rank: int, seq: int, enter: int, end: int | None, **fields: Any) -> None:
        line = {"group": "dp", "seq": seq, "op": "all_reduce", "payload_bytes": 1024, "enter_ns": enter}
        ended = {} if end is None else {"end_ns": end}
        self.calls.setdefault(rank, []).append(line | ended | fields)

    def blocking(self, seq: int, enters: dict[int, int], ends: dict[int, int], **fields: Any) -> list[Span]:
        """A collective that blocks its callers; returns the wait span of each rank, in the order of ``enters``."""
        for rank, enter in enters.items():
            self.call(rank, seq, enter, ends[rank], **fields)
        return [("wait", enter, ends[rank]) for rank, enter in enters.items()]

    def write(self, path: Path) -> Path:
        boots = self.boot_ids or dict.fromkeys(self.hosts.values(), "boot-a")
        manifest = {
            "schema": 1,
            "kind": "manifest",
            "run": path.name,
            "arm": "healthy",
            "launch": "launch-1",
            "hosts": {host: {"boot_id": boot} for host, boot in boots.items()},
            "placement": [{"rank": rank, "local_rank": rank, "host": host} for rank, host in self.hosts.items()],
            "groups": self.groups,
        }
        path.mkdir(parents=True, exist_ok=True)
        (path / "manifest.json").write_text(json.dumps(manifest | self.manifest))
        for rank, host in self.hosts.items():
            self._write_rank(path / "ranks" / f"{rank:05d}", rank, host)
        return path

    def _write_rank(self, folder: Path, rank: int, host: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rank.json").write_text(json.dumps({"schema": 1, "kind": "rank", "rank": rank, "host": host}))
        groups = [{"group": name, "ranks": ranks} for name, ranks in self.groups.items() if rank in ranks]
        pairs = [{"monotonic_ns": monotonic, "unix_ns": unix} for monotonic, unix in self.clock.get(rank, [])]
        for kind, lines in {
            "steps": self.steps.get(rank, []),
            "collectives": groups + self.calls.get(rank, []),
            "clock": pairs,
        }.items():
            header = {"schema": 1, "kind": kind, "rank": rank, "host": host}
            text = "".join(json.dumps(line) + "\n" for line in [header, *lines])
            (folder / f"{kind}.jsonl").write_text(text)


@dataclass(kw_only=True)
class DataParallel:
    """A data-parallel step: input, forward, backward in buckets whose all-reduces overlap with it, optimizer.

    Times in ns; callables take (rank, step). Buckets of a rank queue behind each other, as on one stream.
    """

    num_ranks: int = 4
    num_steps: int = 12
    num_buckets: int = 3
    compute: Callable[[int, int], int] = lambda _rank, _step: 6_000_000
    service: Callable[[int, int], int] = lambda _bucket, _step: 1_000_000
    read: Callable[[int, int], int] = lambda _rank, _step: 500_000
    segments: int = 1
    washout: int = 0

    def build(self) -> RunBuilder:
        run = RunBuilder.of(self.num_ranks)
        now = dict.fromkeys(range(self.num_ranks), 1_000_000_000)
        seq = 0
        for step in range(self.num_steps * self.segments):
            segment, place = divmod(step, self.num_steps)
            labels = {"segment": segment, "pair": segment // 2, "batch": place, "warmup": place < self.washout}
            if not place and step:
                now = dict.fromkeys(now, max(now.values()) + 5_000_000)
            self._step(run, now, step, seq, labels)
            seq += self.num_buckets
        return run

    def _step(self, run: RunBuilder, now: dict[int, int], step: int, seq: int, labels: dict[str, Any]) -> None:
        ranks = range(self.num_ranks)
        spans: dict[int, list[Span]] = {}
        enters: dict[int, list[int]] = {}
        finished: dict[int, int] = {}
        for rank in ranks:
            at = now[rank] + self.read(rank, step)
            part = self.compute(rank, step) // (self.num_buckets + 1)
            ready = [at + part * (bucket + 2) for bucket in range(self.num_buckets)]
            done = at + part * (self.num_buckets + 1)
            spans[rank] = [("input", now[rank], at), ("forward", at, at + part), ("backward", at + part, done)]
            enters[rank], finished[rank] = ready, done
        end = 0
        for bucket in range(self.num_buckets):
            started = max([end, *(enters[rank][bucket] for rank in ranks)])
            end = started + self.service(bucket, step)
            for rank in ranks:
                labelled = {"step": step, "segment": labels["segment"]}
                run.call(rank, seq + bucket, enters[rank][bucket], end, **labelled)
        for rank in ranks:
            blocked = finished[rank]
            until = max(blocked, end) + 400_000
            spans[rank] += [("wait", blocked, max(blocked, end)), ("optimizer", max(blocked, end), until)]
            useful = {"valid_tokens": 100 + rank, "model_flops": 7.0}
            run.step(rank, step, now[rank], until + 30_000, spans[rank], useful=useful, **labels)
            now[rank] = until + 30_000


@pytest.fixture(scope="session")
def blank_run() -> type[RunBuilder]:
    return RunBuilder


@pytest.fixture(scope="session")
def data_parallel() -> type[DataParallel]:
    return DataParallel
