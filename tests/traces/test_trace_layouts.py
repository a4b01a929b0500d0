from __future__ import annotations

from pathlib import Path

import brute_force
import msgspec
import pytest
import trace_makers as make

from narrows.reducers.traces.errors import TraceError
from narrows.reducers.traces.reader import read_trace
from narrows.reducers.traces.reduce import reduce_file


def assert_equals_brute_force(path: Path, chunk_bytes: int) -> None:
    reduced = reduce_file(path, chunk_bytes=chunk_bytes)
    wanted, clipped_ns = brute_force.accounts(brute_force.events_of(path))
    assert {name: msgspec.structs.asdict(entry) for name, entry in reduced.devices.items()} == wanted
    assert reduced.quality.clipped_ns == clipped_ns
    assert not reduced.quality.truncated
    assert reduced.quality.repaired == reduced.quality.dropped == reduced.quality.unlinked == 0
    assert all(reduced.gaps[name].total_ns == entry.idle_ns for name, entry in reduced.devices.items())


@pytest.mark.parametrize("chunk_bytes", [1 << 12, 1 << 15, 1 << 22])
@pytest.mark.parametrize("layout", make.LAYOUTS)
def test_every_layout_gives_the_same_exact_accounts_in_any_chunk_size(
    layout: str, chunk_bytes: int, tmp_path: Path
) -> None:
    path = make.write(tmp_path / "trace.json.gz", make.training(), layout)
    assert_equals_brute_force(path, chunk_bytes)
    trace = read_trace(path, chunk_bytes=chunk_bytes)
    assert trace.quality.layout == layout
    assert trace.metadata["distributedInfo"]["rank"] == 0
    assert trace.base_ns == make.BASE_NS
    assert len(trace.launches) == 60
    assert sorted(trace.table.steps) == [4, 5, 6]


@pytest.mark.parametrize("layout", make.LAYOUTS)
def test_a_bare_array_of_events_is_a_trace(layout: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(make.render(make.training(steps=1), layout))
    assert_equals_brute_force(path, 1 << 13)


@pytest.mark.parametrize("layout", make.LAYOUTS)
def test_metadata_behind_the_events_is_kept(layout: str, tmp_path: Path) -> None:
    events = make.training(steps=1)
    doc = make.document([])
    later = {"traceEvents": events, "distributedInfo": doc.pop("distributedInfo"), "deviceProperties": [{"id": 0}] * 40}
    path = tmp_path / "trace.json"
    path.write_text(make.render(later, layout if layout != "kineto-lines" else "indented"))
    for chunk_bytes in (1 << 12, 1 << 20):
        trace = read_trace(path, chunk_bytes=chunk_bytes)
        assert not trace.quality.truncated
        if layout.startswith("kineto"):
            continue  # that writer puts its metadata first
        assert len(trace.metadata["deviceProperties"]) == 40


def test_categories_of_2021_are_understood(tmp_path: Path) -> None:
    old = {"kernel": "Kernel", "gpu_memcpy": "Memcpy", "cuda_runtime": "Runtime", "user_annotation": "Operator"}
    new = make.training(steps=2)
    events = [event | {"cat": old.get(event.get("cat", ""), event.get("cat", ""))} for event in new]
    path = make.write(tmp_path / "old.json", events)
    kept = reduce_file(make.write(tmp_path / "new.json", new))
    reduced = reduce_file(path)
    assert reduced.devices == kept.devices
    assert [step.step for step in reduced.steps] == [4, 5]
    assert reduced.steps == kept.steps


@pytest.mark.parametrize("layout", make.LAYOUTS)
def test_a_trace_without_events_is_empty_and_not_damaged(layout: str, tmp_path: Path) -> None:
    reduced = reduce_file(make.write(tmp_path / "trace.json", [], layout))
    assert reduced.devices == {}
    assert reduced.label is None
    assert not reduced.quality.truncated


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b'{"schema": "1.0.1", "nodes": [{"name": "x"}]}', "execution trace"),
        (b"[[-1, 1, 37888, 7], [-1, 1, 512, 7]]", "memory timeline"),
        (b'{"a": 1}', "without a"),
        (b'[{"a": 1}]', "no profiler trace"),
        (b"step 1 loss 2.0\n", "not JSON"),
        (b"\x80\x04\x95pickled", "another kind"),
        (b"name/" + b"\0" * 252 + b"ustar\x0000" + b"\0" * 300, "tar archive"),
    ],
)
def test_other_files_are_refused_by_what_they_are(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=says):
        read_trace(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"gone\.json"):
        read_trace(tmp_path / "gone.json")
