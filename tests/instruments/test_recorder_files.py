"""What a recorder leaves on disk, with and without a violent end."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import narrows.instruments as narrows
from narrows.inquiry.errors import RunDirectoryError
from narrows.instruments.files import LineFile
from narrows.instruments.files import replace as replace_file
from narrows.instruments.records import StepRecord, step_line

ReadLines = Callable[[Path, int, str], list[dict[str, Any]]]


def record(spans: list[tuple[str, int, int]], start_ns: int = 1000, end_ns: int = 2000) -> StepRecord:
    return StepRecord(0, None, None, start_ns, end_ns, spans, None, None, None, None, None, False)


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, text=True, capture_output=True, check=False
    )


def test_windows_tile_inside_a_segment(tmp_path: Path, read_lines: ReadLines) -> None:
    recorder = narrows.start(tmp_path / "run")
    for segment in (0, 1):
        recorder.begin(segment=segment, pair=segment // 2)
        for _ in range(5):
            with recorder.span("forward"):
                time.sleep(0.001)
            recorder.step()
    recorder.close()
    steps = read_lines(tmp_path / "run", 0, "steps")
    assert [step["step"] for step in steps] == list(range(10))
    for before, after in itertools.pairwise(steps):
        if before["segment"] == after["segment"]:
            assert before["end_ns"] == after["start_ns"]
        else:
            assert before["end_ns"] <= after["start_ns"]
    assert all(step["parts_us"]["forward"] <= step["step_us"] for step in steps)


def test_an_injected_delay_ends_every_step_as_a_span_of_its_own(
    tmp_path: Path, read_lines: ReadLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NARROWS_INJECTED_DELAY_MS", "5")
    recorder = narrows.start(tmp_path / "run")
    recorder.begin()
    recorder.step()
    recorder.step(end_ns=time.monotonic_ns())  # a time of its own is not moved
    recorder.close()
    delayed, plain = read_lines(tmp_path / "run", 0, "steps")
    [(name, begin, end)] = delayed["spans_ns"]
    assert (name, end - begin >= 5_000_000) == ("delay", True)
    assert plain["spans_ns"] == []


def test_a_span_that_crosses_a_step_is_split_at_the_boundary(tmp_path: Path, read_lines: ReadLines) -> None:
    recorder = narrows.start(tmp_path / "run")
    recorder.begin()
    with recorder.span("input"):
        recorder.step()
    recorder.step()
    recorder.close()
    first, second = read_lines(tmp_path / "run", 0, "steps")
    assert first["spans_ns"][0][2] == first["end_ns"] - first["start_ns"]
    assert second["spans_ns"][0][:2] == ["input", 0]


def test_without_a_beginning_the_first_window_opens_at_the_first_span(tmp_path: Path, read_lines: ReadLines) -> None:
    recorder = narrows.start(tmp_path / "run")
    with narrows.collective("dp", "broadcast", 8):
        time.sleep(0.01)
    begun_ns = time.monotonic_ns()
    with recorder.span("forward"):
        pass
    recorder.step()
    recorder.close()
    assert read_lines(tmp_path / "run", 0, "steps")[0]["start_ns"] >= begun_ns


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3000), st.integers(0, 3000)), max_size=8),
)
def test_parts_are_the_union_of_the_spans_inside_the_window(spans: list[tuple[str, int, int]]) -> None:
    line = step_line(record(spans))
    for name in ("a", "b"):
        covered = {t for n, begin, end in spans if n == name for t in range(max(begin, 1000), min(end, 2000))}
        assert line["parts_us"].get(name, 0.0) == len(covered) / 1000
    assert all(0 <= begin < end <= 1000 for _, begin, end in line["spans_ns"])


def test_what_was_not_measured_is_absent() -> None:
    line = step_line(record([]))
    assert set(line) == {"step", "start_ns", "end_ns", "step_us", "parts_us", "spans_ns"}


def test_a_loss_that_json_cannot_hold_is_kept_as_text() -> None:
    line = step_line(record([])._replace(loss=float("nan"), grad_norm=2.0))
    assert "loss" not in line
    assert line["loss_nonfinite"] == "nan"
    assert line["grad_norm"] == 2.0


def test_two_recorders_of_one_process_write_two_runs(tmp_path: Path, read_lines: ReadLines) -> None:
    healthy = narrows.start(tmp_path / "healthy", arm="healthy")
    regressed = narrows.start(tmp_path / "regressed", arm="regressed")
    for number, recorder in enumerate([healthy, regressed, healthy]):
        recorder.activate()
        assert narrows.current() is recorder
        recorder.begin(segment=number)
        with narrows.collective("dp", "all_reduce", 64):
            pass
        recorder.step()
    healthy.close()
    regressed.close()
    assert narrows.current() is None
    assert [step["segment"] for step in read_lines(tmp_path / "healthy", 0, "steps")] == [0, 2]
    assert [step["segment"] for step in read_lines(tmp_path / "regressed", 0, "steps")] == [1]
    sequences = [line["seq"] for line in read_lines(tmp_path / "healthy", 0, "collectives") if "op" in line]
    (between,) = [line["seq"] for line in read_lines(tmp_path / "regressed", 0, "collectives") if "op" in line]
    assert sequences[0] < between < sequences[1]
    assert json.loads((tmp_path / "regressed" / "manifest.json").read_text())["arm"] == "regressed"


def test_a_collective_that_never_completes_is_written_without_an_end(tmp_path: Path, read_lines: ReadLines) -> None:
    recorder = narrows.start(tmp_path / "run")
    recorder.enter("all_reduce", group="hung", payload_bytes=8)
    recorder.flush()
    recorder.close()
    group, line = read_lines(tmp_path / "run", 0, "collectives")
    assert group == {"group": "hung", "ranks": [0]}
    assert "end_ns" not in line
    beat = json.loads((tmp_path / "run" / "ranks" / "00000" / "heartbeat.json").read_text())
    assert beat["open_collectives"][0]["op"] == "all_reduce"


def test_a_token_ends_once_whoever_ends_it(tmp_path: Path, read_lines: ReadLines) -> None:
    recorder = narrows.start(tmp_path / "run")
    tokens = [recorder.enter("all_reduce", group="ends") for _ in range(200)]
    enders = [threading.Thread(target=lambda: [token.end() for token in tokens]) for _ in range(4)]
    for ender in enders:
        ender.start()
    for ender in enders:
        ender.join()
    recorder.close()
    lines = [line for line in read_lines(tmp_path / "run", 0, "collectives") if "op" in line]
    assert sorted(line["seq"] for line in lines) == list(range(200))


def test_a_killed_writer_leaves_whole_lines(tmp_path: Path) -> None:
    code = f"""
import os, signal
import narrows.instruments as narrows
recorder = narrows.start({str(tmp_path / "run")!r})
recorder.begin()
while True:
    for _ in range(500):
        with recorder.span("forward"):
            pass
        recorder.step()
    recorder.flush()
    if recorder.steps_seen >= 3000:
        recorder.step()
        os.kill(os.getpid(), signal.SIGKILL)
"""
    assert python(code).returncode == -9
    folder = tmp_path / "run" / "ranks" / "00000"
    lines = (folder / "steps.jsonl").read_bytes().split(b"\n")
    steps = [json.loads(line) for line in lines[:-1]]
    assert [step["step"] for step in steps[1:3001]] == list(range(3000))
    assert json.loads((folder / "heartbeat.json").read_text())["kind"] == "heartbeat"
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["kind"] == "manifest"


@given(cut=st.integers(0, 400))
def test_a_cut_at_any_byte_tears_only_the_last_line(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "steps.jsonl"
    file = LineFile(path, {"kind": "steps"})
    file.append([{"step": step, "text": "x" * step} for step in range(12)])
    file.close()
    *whole, _torn = path.read_bytes()[:cut].split(b"\n")
    objects = [json.loads(line) for line in whole]
    assert [value.get("step") for value in objects[1:]] == list(range(max(len(objects) - 1, 0)))


def test_a_replaced_file_is_never_seen_in_part(tmp_path: Path) -> None:
    path = tmp_path / "heartbeat.json"
    replace_file(path, {"step": 0, "body": ""})
    stop = threading.Event()

    def write() -> None:
        step = 0
        while not stop.is_set():
            step += 1
            replace_file(path, {"step": step, "body": "y" * (step % 7) * 5000})

    writer = threading.Thread(target=write)
    writer.start()
    seen: set[int] = set()
    while len(seen) < 20:
        seen.add(json.loads(path.read_text())["step"])
    stop.set()
    writer.join()
    assert [entry.name for entry in tmp_path.iterdir()] == ["heartbeat.json"]


def test_an_uncaught_exception_leaves_its_chain_and_all_stacks(tmp_path: Path) -> None:
    code = f"""
import threading
import narrows.instruments as narrows
recorder = narrows.start({str(tmp_path / "run")!r})
recorder.begin()
recorder.enter("all_gather", group="tp", payload_bytes=4)
recorder.step()
threading.Thread(target=threading.Event().wait, name="loader", daemon=True).start()
try:
    {{}}["missing"]
except KeyError as error:
    raise RuntimeError("batch 17 is broken") from error
"""
    done = python(code)
    assert done.returncode == 1
    assert "batch 17 is broken" in done.stderr
    folder = tmp_path / "run" / "ranks" / "00000"
    failure = json.loads((folder / "failure.json").read_text())
    assert [link["type"] for link in failure["exceptions"]] == ["builtins.RuntimeError", "builtins.KeyError"]
    assert failure["exceptions"][1]["relation"] == "caused by"
    assert {"MainThread", "loader"} <= {thread["name"] for thread in failure["threads"]}
    assert failure["open_collectives"][0]["group"] == "tp"
    assert len((folder / "steps.jsonl").read_text().splitlines()) == 2


def test_records_of_an_earlier_start_are_moved_aside(tmp_path: Path, read_lines: ReadLines) -> None:
    for steps in (3, 1):
        recorder = narrows.start(tmp_path / "run")
        for _ in range(steps):
            recorder.step()
        recorder.close()
    assert len(read_lines(tmp_path / "run", 0, "steps")) == 1
    assert len((tmp_path / "run" / "attempts" / "0" / "00000" / "steps.jsonl").read_text().splitlines()) == 4
    event = json.loads((tmp_path / "run" / "events.jsonl").read_text())
    assert (event["schema"], event["kind"], event["event"]) == (1, "event", "restarted")


def test_a_forked_child_does_not_write_into_the_ranks_files(tmp_path: Path, read_lines: ReadLines) -> None:
    code = f"""
import os
import narrows.instruments as narrows
recorder = narrows.start({str(tmp_path / "run")!r})
child = os.fork()
if child == 0:
    assert narrows.current() is None
    recorder.step()
    recorder.close()
    os._exit(0)
os.waitpid(child, 0)
recorder.step()
"""
    assert python(code).returncode == 0
    assert len(read_lines(tmp_path / "run", 0, "steps")) == 1


def test_one_directory_is_recorded_into_once(tmp_path: Path) -> None:
    recorder = narrows.start(tmp_path / "run")
    with pytest.raises(ValueError, match="already records"):
        narrows.start(tmp_path / "run")
    recorder.close()
    recorder.close()


def test_without_a_directory_start_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NARROWS_RUN_DIR", raising=False)
    with pytest.raises(ValueError, match="NARROWS_RUN_DIR"):
        narrows.start()


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(RunDirectoryError, match="cannot be written"):
        narrows.start(tmp_path / "file" / "run")


def test_importing_the_instruments_imports_nothing_heavy() -> None:
    code = """
import sys
import narrows.instruments
heavy = {"torch", "numpy", "pandas", "scipy", "prefect", "matplotlib", "jinja2", "pynvml", "rich"}
print(sorted(heavy & set(sys.modules)))
"""
    assert python(code).stdout.strip() == "[]"
