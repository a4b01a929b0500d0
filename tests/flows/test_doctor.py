"""`narrows doctor` says what is well and what to fix, and each thing that it calls broken is broken."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from narrows.flows import cli, doctor_checks
from narrows.flows.doctor import examine
from narrows.flows.doctor_checks import State, limits, storage
from narrows.flows.doctor_server import server
from narrows.flows.server import ServerHandle


def test_every_area_is_looked_at_and_torchrun_really_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("NARROWS_HOME", str(tmp_path / "home"))
    checks = list(examine(tmp_path))
    assert {"versions", "server", "storage", "devices", "limits", "launcher"} <= {check.area for check in checks}
    started = [check for check in checks if check.area == "launcher"]
    assert [check.state for check in started] == [State.OK], started
    assert "2 ranks" in started[0].text
    assert not (tmp_path / "home").exists(), "it starts no server"


def test_whatever_is_not_well_comes_with_what_to_do(tmp_path: Path) -> None:
    for check in examine(tmp_path, launch=False):
        assert check.state is State.OK or check.fix, check


def test_a_folder_that_cannot_be_written_is_broken(tmp_path: Path) -> None:
    (check,) = storage(tmp_path / "nowhere")
    assert check.state is State.FAIL
    assert "cannot be written" in check.text


def test_a_full_disk_and_few_open_files_are_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "LEAST_FREE_GB", 10**9)
    assert next(storage(tmp_path)).state is State.WARN
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, soft), hard))
    try:
        assert next(limits(tmp_path)).state is State.WARN
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_server_that_does_not_answer_is_broken_and_the_exit_code_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    with pytest.raises(SystemExit) as stopped:
        cli.main(["doctor", "--no-launch", "--json", "--folder", str(tmp_path)])
    assert stopped.value.code == 4
    value = json.loads(capsys.readouterr().out)
    assert value["broken"] == 1
    assert any("does not answer" in check["text"] for check in value["checks"])


def test_narrows_own_server_is_well(narrows_server: ServerHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    assert narrows_server.folder is not None
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("NARROWS_HOME", str(narrows_server.folder.parent))
    checks = list(server(Path()))
    assert not [check for check in checks if check.state is State.FAIL]
    words = " | ".join(check.text for check in checks)
    assert "loopback alone" in words
    assert "SQLite" in words
