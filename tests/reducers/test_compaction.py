"""A compacted run reads as the lines do, and anything wrong with its file is found."""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrows.inquiry.errors import RunDirectoryError
from narrows.reducers.compaction import NAME, compact_run, decode, encode
from narrows.reducers.ledger import build_ledger
from narrows.reducers.rankfiles import rank_folders, read_lines
from narrows.reducers.records import LossKind
from narrows.reducers.rundir import read_run


def assert_same(one: Any, other: Any, place: str = "") -> None:
    """Equal values, types and dtypes, NaN equal to itself."""
    if dataclasses.is_dataclass(one):
        for part in dataclasses.fields(one):
            assert_same(getattr(one, part.name), getattr(other, part.name), f"{place}.{part.name}")
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype, place
        np.testing.assert_array_equal(one, other, err_msg=place)
    elif isinstance(one, dict):
        assert list(one) == list(other), place
        for key in one:
            assert_same(one[key], other[key], f"{place}[{key!r}]")
    else:
        assert one == other, place


def fuzzed(builder: Any, draw: random.Random) -> Any:
    """A run with spans and collectives of all kinds, sends, absent fields, and calls that never ended."""
    num_ranks = draw.choice([1, 2, 4])
    run = builder.of(num_ranks)
    seq = 0
    for rank in range(num_ranks):
        now = draw.choice([0, 10**15])
        run.clock[rank] = [(at, 10**18 + at + draw.randrange(100)) for at in range(draw.randrange(3))]
        for step in range(draw.randrange(6)):
            start, spans = now, []
            for _ in range(draw.randrange(4)):
                until = now + draw.choice([0, 7, 300, 70_000, 5_000_000_000])
                spans.append((draw.choice(["forward", "wait", "input", "odd name"]), now, until))
                end = until + draw.randrange(9)
                extra = draw.choice([{}, {"step": step}, {"device_us": 1.5}, {"p2p": True, "peer": 0}, {"future": [1]}])
                ended = draw.choice([end, end, end, None])
                run.call(rank, seq, now, ended, op=draw.choice(["barrier", "send"]), **extra)
                seq, now = seq + 1, end
            now += draw.randrange(50)
            more = draw.choice([{}, {"loss": -0.0}, {"useful": {"a.b": 2}}, {"memory": {"x": "text", "y": 3}}])
            run.step(rank, step, start, now, spans, **more)
    return run


def damaged_files(path: Path, draw: random.Random) -> None:
    for file in sorted(path.glob("ranks/*/*.jsonl")):
        choice = draw.random()
        if choice < 0.1:
            file.write_bytes(file.read_bytes()[: draw.randrange(file.stat().st_size)])
        elif choice < 0.15:
            file.unlink()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), pack_lines=st.booleans(), bare=st.booleans())
def test_a_compacted_run_reads_as_its_lines(blank_run: Any, seed: int, pack_lines: bool, bare: bool) -> None:
    """With the lines beside it, packed, or gone; losses, torn ends and the digest included."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = fuzzed(blank_run, draw).write(Path(folder) / "run")
        damaged_files(path, draw)
        before = read_run(path)
        compact_run(path, pack_lines=pack_lines)
        if bare:
            for lines in path.glob("ranks/*/*.jsonl*"):
                lines.unlink()
        assert_same(before, read_run(path))


@given(
    st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 300)), max_size=9),
    st.integers(-(2**62), 2**62),
)
def test_every_column_comes_back(blank_run: Any, values: list[int], step: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = read_lines(blank_run.of(1).write(Path(folder) / "run"), "ranks/00000")
    rising = [(step + place * 1000) % 2**63 for place in range(len(values))]
    steps = dataclasses.replace(files.steps, step_N=np.array(values, np.int64), end_ns_N=np.array(rising, np.int64))
    found = decode(encode(dataclasses.replace(files, steps=steps)), "here")
    assert_same(steps, found.steps)


@pytest.fixture
def compacted(tmp_path: Path, data_parallel: Any) -> Path:
    path: Path = data_parallel(num_steps=4).build().write(tmp_path / "run")
    compact_run(path)
    return path


def test_the_columns_are_what_is_read(compacted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("narrows.reducers.rundir.read_lines", None)
    assert len(build_ledger(read_run(compacted)).steps) == 4


def test_packed_lines_hold_the_same_bytes(compacted: Path, tmp_path: Path) -> None:
    """So fields that no reader knows are kept, and the lines alone read as before."""
    copy = shutil.copytree(compacted, tmp_path / "copy")
    compact_run(copy, pack_lines=True)
    for folder in rank_folders(copy).values():
        (copy / folder / NAME).unlink()
        assert not list((copy / folder).glob("*.jsonl"))
    before, after = read_run(compacted), read_run(copy)
    assert_same(before.ranks, after.ranks)
    assert (before.digest, before.losses) == (after.digest, after.losses)


def test_lines_that_were_changed_since_are_read_and_not_the_columns(compacted: Path) -> None:
    lines = compacted / "ranks" / "00001" / "steps.jsonl"
    text = lines.read_text()
    lines.write_text(text[: text.rindex('{"step"')])
    assert len(read_run(compacted).ranks[1].steps) == 3
    same_size = text.replace('"valid_tokens": 101', '"valid_tokens": 109')
    lines.write_text(same_size)
    assert set(read_run(compacted).ranks[1].steps.readings["useful.valid_tokens"]) == {109.0}


def test_a_copy_with_new_times_of_change_is_read_from_its_columns(
    compacted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for lines in compacted.glob("ranks/*/*.jsonl"):
        os.utime(lines, ns=(1, 1))
    monkeypatch.setattr("narrows.reducers.rundir.read_lines", None)
    assert len(read_run(compacted).ranks) == 4


def test_a_file_that_came_back_is_read(compacted: Path) -> None:
    lines = compacted / "ranks" / "00000" / "clock.jsonl"
    text = lines.read_bytes()
    lines.unlink()
    compact_run(compacted)
    assert LossKind.MISSING_FILE in {loss.kind for loss in read_run(compacted).losses}
    lines.write_bytes(text)
    assert read_run(compacted).losses == ()


def test_any_damaged_byte_is_refused_naming_the_file(compacted: Path) -> None:
    path = compacted / "ranks" / "00002" / NAME
    whole = path.read_bytes()
    for at in range(0, len(whole), len(whole) // 20):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(RunDirectoryError, match=rf"00002/{NAME}: damaged: its checksum does not fit"):
            read_run(compacted)
    for cut in (0, 3, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(RunDirectoryError, match="checksum"):
            read_run(compacted)


def test_a_run_that_is_still_written_is_not_compacted(compacted: Path) -> None:
    beat = compacted / "ranks" / "00000" / "heartbeat.json"
    beat.write_text('{"schema": 1, "kind": "heartbeat", "state": "running"}')
    with pytest.raises(RunDirectoryError, match="still being written"):
        compact_run(compacted)
    os.utime(beat, (1, 1))
    assert compact_run(compacted).num_ranks == 4


def test_damaged_lines_are_not_compacted(compacted: Path) -> None:
    lines = compacted / "ranks" / "00003" / "steps.jsonl"
    lines.write_text(lines.read_text().replace('"end_ns"', '"ends"', 1))
    with pytest.raises(RunDirectoryError, match=r"00003/steps.jsonl:2: damaged"):
        compact_run(compacted)
