"""Run directories are refused whole, or read with every loss counted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from narrows.inquiry.errors import RunDirectoryError
from narrows.reducers.records import Alignment, LossKind, Run
from narrows.reducers.rundir import read_run


@pytest.fixture
def small(tmp_path, blank_run) -> Path:
    """Two ranks, two steps, one collective a step."""
    run = blank_run.of(2)
    for step in range(2):
        start = 1000 * step
        waits = run.blocking(step, {0: start + 100, 1: start + 200}, {0: start + 300, 1: start + 300}, step=step)
        for rank, wait in enumerate(waits):
            spans = [("forward", start, start + 900), wait]
            run.step(
                rank, step, start, start + 1000, spans, useful={"valid_tokens": 7 + rank}, memory={"peak_bytes": 5}
            )
    return run.write(tmp_path / "small")


def _losses(run: Run) -> dict[LossKind, int]:
    counts: dict[LossKind, int] = {}
    for loss in run.losses:
        counts[loss.kind] = counts.get(loss.kind, 0) + loss.count
    return counts


def _replace_line(path: Path, number: int, text: str) -> None:
    lines = path.read_text().splitlines()
    lines[number - 1] = text
    path.write_text("\n".join(lines) + "\n")


def test_a_whole_run_is_read_without_loss(small):
    run = read_run(small)

    assert run.losses == ()
    assert (run.name, run.arm, run.launch) == ("small", "healthy", "launch-1")
    assert run.groups == {"dp": (0, 1)}
    assert run.clock.aligned is Alignment.SAME_BOOT
    steps = run.ranks[1].steps
    assert steps.step_N.tolist() == [0, 1]
    assert steps.start_ns_N.tolist() == [0, 1000]
    assert steps.readings["useful.valid_tokens"].tolist() == [8, 8]
    assert steps.readings["memory.peak_bytes"].tolist() == [5, 5]
    assert [steps.span_names[code] for code in steps.span_name_M] == ["forward", "wait"] * 2
    assert run.ranks[1].collectives.enter_ns_N.tolist() == [200, 1200]
    assert "loss" not in steps.readings


@pytest.mark.parametrize("kind", ["steps", "collectives", "clock"])
def test_a_file_cut_at_any_byte_is_read_and_the_torn_line_is_counted(small, kind):
    path = small / "ranks" / "00001" / f"{kind}.jsonl"
    whole = path.read_bytes()
    records = {"steps": lambda run: run.ranks[1].steps, "collectives": lambda run: run.ranks[1].collectives}
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        run = read_run(small)
        complete = whole[:cut].count(b"\n") + (whole[cut : cut + 1] == b"\n")
        torn = cut > 0 and whole[cut - 1 : cut] != b"\n" and whole[cut : cut + 1] != b"\n"
        assert _losses(run).get(LossKind.TORN_LINE, 0) == torn
        if kind in records:
            preamble = 1 if kind == "steps" else 2
            assert len(records[kind](run)) == max(0, complete - preamble)


def test_damage_before_the_last_line_names_the_file_and_the_line(small):
    _replace_line(small / "ranks" / "00000" / "steps.jsonl", 2, '{"step": 0, "start_ns": 12')

    with pytest.raises(RunDirectoryError, match=r"ranks/00000/steps.jsonl:2: damaged"):
        read_run(small)


@pytest.mark.parametrize(
    "place", ["manifest.json", "ranks/00001/steps.jsonl", "ranks/00000/clock.jsonl", "ranks/00001/rank.json"]
)
def test_a_newer_schema_is_refused_naming_the_file(small, place):
    path = small / place
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 2', 1))

    with pytest.raises(RunDirectoryError, match=rf"{place}: written in schema 2.*update narrows"):
        read_run(small)


def test_a_directory_without_manifest_is_refused(small):
    (small / "manifest.json").unlink()

    with pytest.raises(RunDirectoryError, match=r"no manifest.json"):
        read_run(small)


def test_a_run_in_which_no_rank_wrote_is_refused(tmp_path, blank_run):
    path = blank_run.of(1).write(tmp_path / "run")
    for file in (path / "ranks" / "00000").iterdir():
        file.unlink()
    (path / "ranks" / "00000").rmdir()

    with pytest.raises(RunDirectoryError, match=r"no rank has written"):
        read_run(path)


def test_a_placed_rank_without_folder_is_a_listed_loss(tmp_path, blank_run):
    run = blank_run.of(2)
    run.manifest["placement"] = [{"rank": rank, "local_rank": rank, "host": "n0"} for rank in range(4)]

    losses = read_run(run.write(tmp_path / "run")).losses

    assert [(loss.kind, loss.place) for loss in losses] == [
        (LossKind.MISSING_RANK, "ranks/00002"),
        (LossKind.MISSING_RANK, "ranks/00003"),
    ]


def test_an_absent_file_is_a_listed_loss(small):
    (small / "ranks" / "00001" / "collectives.jsonl").unlink()
    run = read_run(small)

    assert _losses(run) == {LossKind.MISSING_FILE: 1}
    assert len(run.ranks[1].collectives) == 0


def test_unknown_fields_are_ignored(small):
    path = small / "ranks" / "00000" / "steps.jsonl"
    line = json.loads(path.read_text().splitlines()[1])
    _replace_line(path, 2, json.dumps(line | {"loss_nonfinite": "nan", "future": {"nested": [1, None]}}))

    assert len(read_run(small).ranks[0].steps) == 2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"end_ns": 900}, "ends 100 ns before it starts"),
        ({"step": 0}, "step 0 of segment 0 is there twice"),
        ({"start_ns": 999}, "starts before the step written before it ends"),
        ({"spans_ns": [["forward", 7, 3]]}, "ends before it starts"),
        ({"start_ns": "soon"}, "Expected `int`"),
    ],
)
def test_a_step_that_cannot_be_is_refused_naming_its_line(small, change, why):
    path = small / "ranks" / "00000" / "steps.jsonl"
    _replace_line(path, 3, json.dumps(json.loads(path.read_text().splitlines()[2]) | change))

    with pytest.raises(RunDirectoryError, match=rf"ranks/00000/steps.jsonl:3: damaged: .*{why}"):
        read_run(small)


def test_a_collective_that_ends_before_it_was_entered_is_refused(tmp_path, blank_run):
    run = blank_run.of(1)
    run.call(0, 4, 100, 99)

    with pytest.raises(RunDirectoryError, match=r"collective dp 4 ends at 99"):
        read_run(run.write(tmp_path / "run"))


def test_spans_outside_their_window_are_clipped_and_counted(tmp_path, blank_run):
    run = blank_run.of(1)
    run.step(0, 0, 100, 200, [("input", 90, 150), ("forward", 150, 260), ("h2d", 120, 130)])
    read = read_run(run.write(tmp_path / "run"))

    assert _losses(read) == {LossKind.CLIPPED_SPAN: 2}
    assert read.ranks[0].steps.span_start_ns_M.tolist() == [100, 150, 120]
    assert read.ranks[0].steps.span_end_ns_M.tolist() == [150, 200, 130]


def test_a_span_of_an_unknown_name_a_gap_and_an_unfinished_collective_are_counted(tmp_path, blank_run):
    run = blank_run.of(1)
    run.step(0, 0, 0, 100, [("tokenise", 10, 20), ("tokenise", 30, 40)])
    run.step(0, 1, 150, 200)
    run.call(0, 0, 160, None)
    losses = _losses(read_run(run.write(tmp_path / "run")))

    assert losses == {LossKind.UNKNOWN_SPAN: 2, LossKind.GAP: 1, LossKind.UNFINISHED_CALL: 1}


def test_groups_that_share_a_role_are_told_apart_by_their_members(tmp_path, blank_run):
    path = blank_run.of(4, groups={}).write(tmp_path / "run")
    for rank in range(4):
        members = [rank % 2, rank % 2 + 2]
        call = {"group": "dp", "seq": 0, "op": "all_reduce", "enter_ns": 1, "end_ns": 2}
        with (path / "ranks" / f"{rank:05d}" / "collectives.jsonl").open("a") as file:
            file.write(json.dumps({"group": "dp", "ranks": members}) + "\n" + json.dumps(call) + "\n")
    run = read_run(path)

    assert run.groups == {"dp[0,2]": (0, 2), "dp[1,3]": (1, 3)}
    assert run.ranks[3].collectives.groups == ("dp[1,3]",)


def test_one_boot_shared_by_two_host_names_needs_no_alignment(tmp_path, blank_run):
    run = blank_run.of(2, hosts={0: "n0", 1: "n1"}, boot_ids={"n0": "b", "n1": "b"})

    assert read_run(run.write(tmp_path / "run")).clock.aligned is Alignment.SAME_BOOT


def test_hosts_of_different_boots_are_put_on_the_wall_clock(tmp_path, blank_run):
    run = blank_run.of(2, hosts={0: "n0", 1: "n1"}, boot_ids={"n0": "a", "n1": "b"})
    run.clock = {0: [(0, 1_000_000)], 1: [(0, 5_000_000), (10, 5_000_010), (20, 5_009_020)]}
    for rank in range(2):
        run.step(rank, 0, 0, 100, [("forward", 10, 20)])
        run.call(rank, 0, 30, 40)
    read = read_run(run.write(tmp_path / "run"))

    assert (read.clock.aligned, read.clock.epsilon_ns) == (Alignment.UNIX, 9000)
    for rank, offset in ((0, 1_000_000), (1, 5_000_000)):
        assert read.ranks[rank].steps.start_ns_N.tolist() == [offset]
        assert read.ranks[rank].steps.span_end_ns_M.tolist() == [offset + 20]
        assert read.ranks[rank].collectives.enter_ns_N.tolist() == [offset + 30]


def test_hosts_whose_clocks_nothing_relates_are_refused(tmp_path, blank_run):
    run = blank_run.of(2, hosts={0: "n0", 1: "n1"}, boot_ids={"n0": "a", "n1": "b"}, clock={0: [(0, 1)]})
    read_run(run.write(tmp_path / "stopped before its first step"))
    for rank in range(2):
        run.step(rank, 0, 0, 100)

    with pytest.raises(RunDirectoryError, match=r"host 'n1' has no pair of clock readings"):
        read_run(run.write(tmp_path / "run"))


def test_the_digest_is_stable_and_changes_with_any_evidence_file(small):
    before = read_run(small).digest
    (small / "ranks" / "00000" / "heartbeat.json").write_text("{}")

    assert read_run(small).digest == before

    seen = {before}
    for place in ("manifest.json", "ranks/00000/steps.jsonl", "ranks/00001/collectives.jsonl"):
        path = small / place
        path.write_text(path.read_text() + " ")
        seen.add(read_run(small).digest)
    assert len(seen) == 4


def test_columns_are_compact_integers(small):
    steps = read_run(small).ranks[0].steps

    assert {column.dtype for column in (steps.start_ns_N, steps.end_ns_N, steps.span_start_ns_M)} == {
        np.dtype(np.int64)
    }
