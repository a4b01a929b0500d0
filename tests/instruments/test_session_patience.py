"""A process that never steps is told so, once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from narrows.instruments.recorder import current
from narrows.instruments.session import Session


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NARROWS_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("NARROWS_RECORDING", "")
    return tmp_path / "run"


def test_after_its_patience_the_session_says_how_to_mark_a_step(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = Session(patience_s=0.0)
    recorder = session.recorder()
    assert recorder is not None
    for _ in range(3):
        session._look_for_steps()
    recorder.close()
    assert capsys.readouterr().err.count("narrows.instruments.current().step()") == 1
    assert json.loads((run / "events.jsonl").read_text())["event"] == "no_step_boundary"


def test_a_session_whose_loop_steps_says_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = Session(patience_s=0.0)
    recorder = session.recorder()
    assert recorder is not None
    recorder.step()
    session._look_for_steps()
    recorder.close()
    assert capsys.readouterr().err == ""
    assert not (run / "events.jsonl").exists()


def test_a_session_that_cannot_write_says_so_and_lets_training_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NARROWS_RUN_DIR", str(tmp_path / "file" / "run"))
    session = Session()
    assert session.recorder() is None
    assert session.recorder() is None
    assert current() is None
    assert capsys.readouterr().err.count("this process is not recorded") == 1


def test_a_forked_child_never_becomes_the_rank(run: Path) -> None:
    session = Session()
    child = os.fork()
    if child == 0:
        os._exit(0 if session.recorder() is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not run.exists()
