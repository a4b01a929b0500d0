"""Runs that were stopped as they started: read with their losses listed, or refused by one sentence and a next move."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from narrows.flows.cli import main

Stop = Callable[[Path], None]
CASE = """\
case: stopped
question: Did it get slower?
runs: {healthy: runs/healthy, regressed: runs/regressed}
workload: {program: step, healthy: {packing: snake}, regressed: {packing: greedy}}
cluster: {launcher: local, nodes: 2, ranks_per_node: 2}
budget: {device_hours: 1}
"""


def files_of(run: Path, kind: str) -> list[Path]:
    return sorted(run.glob(f"ranks/*/{kind}"))


def headers_only(run: Path) -> None:
    for path in files_of(run, "*.jsonl"):
        path.write_text(path.read_text().splitlines()[0] + "\n")


def no_host_facts(run: Path) -> None:
    manifest = run / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"hosts": {}}))


def killed_before_any_clock(run: Path) -> None:
    """Two hosts, no boot and no pair known, nothing recorded."""
    headers_only(run)
    no_host_facts(run)


def killed_with_calls_and_no_clock(run: Path) -> None:
    calls = {path: path.read_text() for path in files_of(run, "collectives.jsonl")}
    killed_before_any_clock(run)
    for path, text in calls.items():
        path.write_text("\n".join(text.splitlines()[:4]) + "\n")


def a_host_without_clock(run: Path) -> None:
    no_host_facts(run)
    for path in files_of(run, "clock.jsonl")[2:]:
        path.write_text("")


def empty_files(run: Path) -> None:
    for path in files_of(run, "*.json*"):
        path.write_bytes(b"")


def manifest_only(run: Path) -> None:
    for path in files_of(run, "*"):
        path.unlink()
    for folder in [*run.glob("ranks/*"), run / "ranks"]:
        folder.rmdir()


def rank_folders_only(run: Path) -> None:
    for path in files_of(run, "*"):
        path.unlink()


def empty_manifest(run: Path) -> None:
    (run / "manifest.json").write_bytes(b"")


def manifest_with_other_shapes(run: Path) -> None:
    manifest = run / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"placement": [{"host": "n0"}]}))


def one_rank_missing(run: Path) -> None:
    for path in (run / "ranks" / "00003").iterdir():
        path.unlink()
    (run / "ranks" / "00003").rmdir()


def one_rank_without_steps(run: Path) -> None:
    path = run / "ranks" / "00003" / "steps.jsonl"
    path.write_text(path.read_text().splitlines()[0] + "\n")


def one_rank_with_empty_files(run: Path) -> None:
    for path in (run / "ranks" / "00003").iterdir():
        path.write_bytes(b"")


def last_host_stopped_first(run: Path) -> None:
    """The other host trained on; the one that wrote no step needs no clock."""
    no_host_facts(run)
    for rank in ("00002", "00003"):
        for kind in ("steps", "collectives", "clock"):
            path = run / "ranks" / rank / f"{kind}.jsonl"
            path.write_text(path.read_text().splitlines()[0] + "\n")


REFUSED = {
    killed_before_any_clock: "no rank finished a step; run it for longer, or leave it out",
    killed_with_calls_and_no_clock: "no rank finished a step; run it for longer, or leave it out",
    a_host_without_clock: "no pair of clock readings .* start the run again",
    headers_only: "no rank finished a step; run it for longer, or leave it out",
    empty_files: "no rank finished a step; run it for longer, or leave it out",
    manifest_only: "no rank has written anything.* start it again, or leave it out",
    rank_folders_only: "no rank finished a step; run it for longer, or leave it out",
    empty_manifest: "manifest.json: empty: .*start it again, or leave it out",
    manifest_with_other_shapes: "manifest.json: damaged: .*rank.*; restore the file or leave the run out",
}
READ = (one_rank_missing, one_rank_without_steps, one_rank_with_empty_files, last_host_stopped_first)
COMMANDS = (("compare", "runs/healthy", "runs/regressed"), ("check", "case.yaml"))


@pytest.fixture
def folder(tmp_path: Path, record_pair: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    record_pair(tmp_path)
    (tmp_path / "case.yaml").write_text(CASE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize("stop", REFUSED, ids=lambda stop: stop.__name__)
def test_it_is_refused_by_one_sentence_with_a_next_move(
    stop: Stop, words: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stop(folder / "runs" / "regressed")
    code, _, err = said(words, capsys)
    assert (code, len(err.strip().splitlines())) in {(1, 1), (2, 1)}, err
    assert "Traceback" not in err
    assert re.search(REFUSED[stop], err), err


@pytest.mark.parametrize("stop", READ, ids=lambda stop: stop.__name__)
def test_it_is_read_as_far_as_it_goes(stop: Stop, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A case that counts on the lost ranks says so."""
    for run in ("healthy", "regressed"):
        stop(folder / "runs" / run)
    code, out, err = said(COMMANDS[0], capsys)
    assert (code, err) == (0, "")
    assert "slower" in out
    code, _, err = said(COMMANDS[1], capsys)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "ranks, and the cluster 2 nodes of 2; give cluster.nodes" in err
