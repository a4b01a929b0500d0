"""Logs as they lie about: compressed, cut while they were copied, and files that are no logs at all."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from narrows.flows.compare_inputs import compare_inputs
from narrows.inquiry.errors import NarrowsError, RunDirectoryError


def log(step_ms: float, steps: int = 60) -> bytes:
    return "".join(f"iter {n}: loss 3.{n}, time {step_ms + n % 3:.2f}ms, mfu 20.0%\n" for n in range(steps)).encode()


def written(path: Path, data: bytes) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def test_compressed_logs_of_folders_are_compared(tmp_path):
    for arm, step_ms in (("healthy", 100.0), ("regressed", 110.0)):
        written(tmp_path / arm / "train.log.gz", gzip.compress(log(step_ms)))
    found = compare_inputs([tmp_path / "healthy"], [tmp_path / "regressed"], "mean")
    assert found.status == "slower"
    assert found.step.delta == pytest.approx(10.0)
    assert found.losses == ()


def test_a_torn_log_is_compared_as_far_as_it_goes_and_said_to_be_torn(tmp_path):
    whole = written(tmp_path / "whole", log(100.0))
    stored = gzip.compress(log(110.0), compresslevel=0)
    torn = written(tmp_path / "torn", stored[: len(stored) // 2])
    found = compare_inputs([whole], [torn], "mean")
    assert found.status == "slower"
    assert found.losses == (f"{torn}: its gzip is torn; what came before the cut was compared",)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"hello\n", "no training log of a known format"),
        (b"JobId=3 JobName=x\n   JobState=RUNNING\n", "is slurm, which holds no steps to compare; narrows read"),
        (b"SQLite format 3\x00 and pages", "is nsys, which holds no steps to compare"),
        (gzip.compress(b"iter 1: loss 3.2, time 120.00ms, mfu 20%\n")[:11], "other: is empty, or cut before"),
        (b"\n", "other: is empty, or cut before"),
    ],
)
def test_what_holds_no_steps_is_refused_by_what_it_is(tmp_path, data, said):
    good, other = written(tmp_path / "good", log(100.0)), written(tmp_path / "other", data)
    with pytest.raises(RunDirectoryError, match=said):
        compare_inputs([good], [other], "mean")


def test_a_log_that_broke_before_its_first_step_has_no_step_time(tmp_path):
    good = written(tmp_path / "good", log(100.0))
    other = written(tmp_path / "other", b"[rank1]: Traceback (most recent call last):\n[rank1]: RuntimeError: x\n")
    with pytest.raises((NarrowsError, ValueError), match=r"other.* no step time|none of .* lines is a step"):
        compare_inputs([good], [other], "mean")
