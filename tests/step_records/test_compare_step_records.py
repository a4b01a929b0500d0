"""`narrows compare` and `narrows read` on step records: what is told by content, printed, written and refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import step_record_makers as make

from narrows.flows.compare_command import compare
from narrows.flows.compare_inputs import Kind, kind_of
from narrows.flows.read_command import read_files
from narrows.inquiry.errors import CaseError, NarrowsError, RunDirectoryError

HOSTS = ("n0", "n0", "n1", "n1")


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    """Four ranks; rank 2 loses 15 ms of a step of 80 in steps 150 to 249."""
    slow = make.job(1, ranks=4, own=[((2,), (15.0, 150, 250))], hosts=HOSTS)
    healthy = make.written(tmp_path / "healthy", make.job(0, ranks=4, hosts=HOSTS))
    return healthy, make.written(tmp_path / "slow", slow)


def test_the_slow_rank_is_printed_with_its_steps(sides: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(*sides) == 0
    out = capsys.readouterr().out
    assert out.startswith("healthy against slow: slower by ")
    assert "culprit:   rank 2" in out
    assert "Steps 150 to 249 of the second run are slower by" in out
    assert "the others wait for it" in out
    assert "Over the whole run the loss is" in out


def test_json_markdown_and_page_are_those_of_every_comparison(
    sides: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(*sides, as_json=True, html=tmp_path / "page.html") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["source"], found["status"], found["tested"]) == ("step records", "slower", False)
    assert found["culprit"] == {"kind": "rank", "members": [2]}
    assert found["slow_steps"] == [150, 249]
    assert found["window_steps"] == {"healthy": 100, "regressed": 100}
    assert found["delta_label"] == "unmeasured"
    assert "<html" in (tmp_path / "page.html").read_text()
    assert compare(*sides, markdown=True) == 0
    assert "rank 2" in capsys.readouterr().out


def test_the_gate_looks_at_the_steps_that_are_compared(sides: tuple[Path, Path]) -> None:
    assert compare(*sides, gate=10.0) == 4
    assert compare(*sides, gate=30.0) == 0


def test_the_kind_is_told_by_content_also_within_gzip(sides: tuple[Path, Path], tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    packed.mkdir()
    for file in sides[1].iterdir():
        (packed / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    assert kind_of([sides[0]]) is Kind.STEP_RECORDS
    assert kind_of([packed]) is Kind.STEP_RECORDS
    assert compare(sides[0], packed, gate=10.0) == 4


def test_a_torn_file_is_read_up_to_the_cut_and_that_is_listed(
    sides: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file = sides[1] / "rank_1.jsonl"
    data = gzip.compress(file.read_bytes())
    file.write_bytes(data[: len(data) * 9 // 10])
    assert compare(*sides, as_json=True) == 0
    losses = json.loads(capsys.readouterr().out)["losses"]
    assert any("its gzip is torn" in loss for loss in losses)
    assert any("are not on every rank" in loss for loss in losses)


def test_what_cannot_be_compared_is_refused_in_one_sentence(sides: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(CaseError, match="a case needs run directories"):
        compare(*sides, case_out=tmp_path / "case.yaml")
    (sides[1] / "rank_3.jsonl").unlink()
    with pytest.raises(ValueError, match=r"4 ranks and .* of 3"):
        compare(*sides)
    (tmp_path / "log.txt").write_text("hello\n")
    with pytest.raises(RunDirectoryError, match="compare two sides of the same kind"):
        compare(sides[0], tmp_path / "log.txt")
    (sides[0] / "rank_3.jsonl").write_text('{"step": 1, "step_ms": 80.0}\n')
    with pytest.raises(NarrowsError, match="no record names its rank"):
        compare(sides[0], sides[0])


def test_read_says_what_is_in_each_file(sides: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    file = sides[0] / "rank_3.jsonl"
    file.write_text(file.read_text() + "no record\n")
    assert read_files([file]) == 0
    out = capsys.readouterr().out
    assert "step-records" in out
    assert "rank 3 on n1: 400 steps, 0 to 399" in out
    assert "every record has step_ms, data_ms, compute_ms, comm_ms, wait_ms" in out
    assert "not understood: 1" in out
