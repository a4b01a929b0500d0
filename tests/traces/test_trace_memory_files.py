"""Memory timelines and allocator snapshots beside a trace become part of its reduced form."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import trace_makers as make

from narrows.flows.reduce_command import reduce_traces
from narrows.reducers.traces.memory_files import SNAPSHOT, TIMELINE, UNKNOWN_DEVICE, memory_kind
from narrows.reducers.traces.reduced import read_reduced

T = make.BASE_NS
MIB = 1 << 20
PARAMETER, ACTIVATION = 0, 4
# Held before 100; up to 180 at T + 1000, of which 30 are freed: 50 stay.
ROWS = [
    [-1, 1, 100, PARAMETER],
    [T, 2, 50, ACTIVATION],
    [T + 1000, 2, 30, ACTIVATION],
    [T + 2000, 4, -30, ACTIVATION],
]
SEGMENTS = [
    {"device": 0, "total_size": 10 * MIB, "blocks": [{"size": 6 * MIB, "state": "active_allocated"},
                                                     {"size": 4 * MIB, "state": "inactive"}]},
    {"device": 0, "total_size": 20 * MIB, "blocks": [{"size": 20 * MIB, "state": "inactive"}]},
]  # fmt: skip
SNAPSHOT_FILE = {"segments": SEGMENTS, "device_traces": [[{"action": "oom", "size": MIB}]]}


def trace(folder: Path, name: str = "trace.json", rank: int | None = 0) -> Path:
    return make.write(folder / name, make.training(), rank=rank)


def timeline(folder: Path, name: str = "memory.raw.json.gz") -> Path:
    path = folder / name
    text = json.dumps(ROWS).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


def snapshot(folder: Path, name: str = "snapshot.pickle", value: object = None) -> Path:
    path = folder / name
    path.write_bytes(pickle.dumps(SNAPSHOT_FILE if value is None else value))
    return path


def reduced(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert reduce_traces([path], None, True, 1) == 0
    return json.loads(capsys.readouterr().out)


def test_a_timeline_and_a_snapshot_beside_the_trace_are_summarised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trace(tmp_path)
    alone = reduced(path, capsys)
    timeline(tmp_path)
    snapshot(tmp_path)
    found = reduced(path, capsys)
    assert found["memory_files"] == {"memory.raw.json.gz": TIMELINE, "snapshot.pickle": SNAPSHOT}
    memory = found["memory"]["0"]
    assert memory.pop("by_category") == {
        "peak_bytes": 180, "peak_ns": T + 1000, "at_peak_bytes": {"parameter": 100, "activation": 80},
        "growth_bytes": 50, "growth_by_category": {"activation": 50},
    }  # fmt: skip
    assert memory.pop("snapshot") == {
        "reserved_bytes": 30 * MIB, "allocated_bytes": 6 * MIB, "inactive_bytes": 24 * MIB, "fragmented_bytes": 4 * MIB,
        "largest_free_bytes": 20 * MIB, "retries_at_most": 0, "num_out_of_memory": 1,
    }  # fmt: skip
    assert memory == alone["memory"]["0"], "what the trace itself says stays"
    assert {**found, "memory": 0, "memory_files": 0} == {**alone, "memory": 0, "memory_files": 0}


def test_it_is_written_and_read_back(tmp_path: Path) -> None:
    timeline(tmp_path)
    assert reduce_traces([trace(tmp_path)], tmp_path / "out", False, 1) == 0
    found = read_reduced(tmp_path / "out" / "trace.reduced.json")
    assert found.memory["0"].by_category is not None
    assert found.memory["0"].by_category.peak_bytes == 180


def test_a_folder_is_reduced_without_taking_a_timeline_for_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace(tmp_path)
    timeline(tmp_path, "memory.json")
    assert reduce_traces([tmp_path], None, True, 1) == 0
    assert json.loads(capsys.readouterr().out)["memory_files"] == {"memory.json": TIMELINE}


def test_of_several_traces_each_takes_the_files_of_its_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [trace(tmp_path, f"rank{rank}.json", rank) for rank in (0, 1)]
    timeline(tmp_path, "rank1-memory.json.gz")
    timeline(tmp_path, "nobodys-memory.json.gz")
    assert [reduced(path, capsys).get("memory_files", {}) for path in paths] == [
        {},
        {"rank1-memory.json.gz": TIMELINE},
    ]


def test_a_trace_without_a_device_does_not_invent_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make.write(tmp_path / "trace.json", [make.annotation("ProfilerStep#1", T, 1000)])
    timeline(tmp_path)
    memory = reduced(path, capsys)["memory"]
    assert list(memory) == [UNKNOWN_DEVICE]
    assert memory[UNKNOWN_DEVICE]["num_events"] == 0


class Burglar:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


def test_a_snapshot_that_would_act_is_listed_as_not_read_and_nothing_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trace(tmp_path)
    before = reduced(path, capsys)
    target = tmp_path / "broken-in"
    snapshot(tmp_path, value={**SNAPSHOT_FILE, "more": Burglar(target)})
    found = reduced(path, capsys)
    assert found["memory_files"]["snapshot.pickle"].startswith("not read: ")
    assert found["memory"] == before["memory"]
    assert not target.exists()


def test_files_of_other_kinds_are_no_memory_files(tmp_path: Path) -> None:
    other = tmp_path / "other.pickle"
    other.write_bytes(pickle.dumps({"weights": [1, 2]}))
    torn = tmp_path / "torn.gz"
    torn.write_bytes(b"\x1f\x8bnonsense")
    assert [memory_kind(one) for one in (other, torn, trace(tmp_path), tmp_path / "absent")] == [None] * 4
    assert [memory_kind(timeline(tmp_path)), memory_kind(snapshot(tmp_path))] == [TIMELINE, SNAPSHOT]
