"""Starting, sharing and stopping the local Prefect server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from narrows.flows.client_settings import await_records, client_environment, client_settings, server_needed
from narrows.flows.processes import MARK, is_alive
from narrows.flows.server import (
    ServerHandle,
    ensure_server,
    health,
    narrows_home,
    running_server,
    server_environment,
    server_folder,
    stop_server,
)
from narrows.inquiry.errors import ServerError


def test_the_home_is_the_users_choice_then_the_state_folder() -> None:
    assert narrows_home({"NARROWS_HOME": "/a", "XDG_STATE_HOME": "/b"}) == Path("/a")
    assert narrows_home({"XDG_STATE_HOME": "/b"}) == Path("/b/narrows")
    assert narrows_home({}) == Path.home() / ".local/state/narrows"


def test_a_given_server_that_does_not_answer_is_an_error_with_the_next_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    with pytest.raises(ServerError, match=r"PREFECT_API_URL is http://127.0.0.1:9/api.*refused.*--no-ui"):
        ensure_server()


def test_a_home_that_cannot_be_written_is_an_error_with_the_next_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    (tmp_path / "file").touch()
    with pytest.raises(ServerError, match="set NARROWS_HOME"):
        ensure_server(tmp_path / "file")


def test_the_servers_environment_has_none_of_the_users_prefect_settings() -> None:
    inherited = {"PREFECT_API_KEY": "x", "PREFECT_PROFILE": "cloud", MARK: "job", "PATH": "/bin"}
    env = server_environment(Path("/home/server"), "http://127.0.0.1:1/api", inherited)
    assert not {"PREFECT_API_KEY", "PREFECT_PROFILE", MARK} & set(env)
    assert env["PATH"] == "/bin"
    assert env["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert env["PREFECT_UI_API_URL"] == "http://127.0.0.1:1/api"
    assert "flow_runs" in env["PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED"], "pages must not be kept for ever"


def test_a_client_never_falls_back_to_the_ephemeral_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_CLIENT_MAX_RETRIES", raising=False)
    monkeypatch.setenv("NO_PROXY", "corp.example")
    theirs = client_environment("https://prefect.example/api")
    assert theirs["PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"] == "false"
    assert theirs["PREFECT_CLIENT_MAX_RETRIES"] == "12"
    assert "PREFECT_HOME" not in theirs, "the user's server may need the user's profile"
    ours = client_environment("http://127.0.0.1:1/api", Path("/h"))
    assert ours["PREFECT_HOME"] == "/h/prefect"
    assert ours["NO_PROXY"] == "corp.example,127.0.0.1,localhost"


def _without_a_slot() -> None:
    try:
        httpx.get("http://127.0.0.1:1/api/health")
    except httpx.HTTPError as error:
        raise RuntimeError("no slot") from error


def test_a_server_that_went_away_is_one_sentence_however_deep_the_refused_connection_lies() -> None:
    url = "http://127.0.0.1:1/api"
    with pytest.raises(ServerError, match=rf"at {url} stopped answering; do this"), server_needed(url, "do this"):
        _without_a_slot()
    with pytest.raises(RuntimeError, match="another matter"), server_needed(url, "do this"):
        raise RuntimeError("another matter")


def test_settings_are_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DO_NOT_TRACK", "0")
    monkeypatch.delenv("NARROWS_TEST_SETTING", raising=False)
    with client_settings({"DO_NOT_TRACK": "1", "NARROWS_TEST_SETTING": "x"}):
        assert (os.environ["DO_NOT_TRACK"], os.environ["NARROWS_TEST_SETTING"]) == ("1", "x")
    assert os.environ["DO_NOT_TRACK"] == "0"
    assert "NARROWS_TEST_SETTING" not in os.environ


def test_settings_reach_a_prefect_that_was_imported_before() -> None:
    import prefect.settings

    before = prefect.settings.PREFECT_API_URL.value()
    with client_settings(client_environment("http://127.0.0.1:1/api", Path("/h"))):
        assert prefect.settings.PREFECT_API_URL.value() == "http://127.0.0.1:1/api"
        assert str(prefect.settings.PREFECT_HOME.value()) == "/h/prefect"
        assert prefect.settings.PREFECT_CLIENT_MAX_RETRIES.value() == 12
        assert not prefect.settings.PREFECT_SERVER_ALLOW_EPHEMERAL_MODE.value()
    assert prefect.settings.PREFECT_API_URL.value() == before


def test_a_state_file_of_a_process_that_is_gone_or_another_is_no_server(tmp_path: Path) -> None:
    folder = server_folder(tmp_path)
    folder.mkdir()
    for text in ('{"pid": 1, "start": 77, "url": "http://127.0.0.1:9/api"}', "{torn", '{"pid": null}', "[]"):
        (folder / "server.json").write_text(text)
        assert running_server(tmp_path) is None
        assert not stop_server(tmp_path)


USER = """
import sys
from pathlib import Path
from narrows.flows.server import ensure_server
handle = ensure_server(Path(sys.argv[1]))
print(handle.url, handle.started, flush=True)
sys.stdin.readline()
print(handle.release(), flush=True)
"""


def user_of(home: Path) -> subprocess.Popen[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    return subprocess.Popen(
        [sys.executable, "-c", USER, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )


@pytest.fixture
def users(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    with ExitStack() as stack:
        yield [stack.enter_context(user_of(tmp_path)) for _ in range(3)]


def said(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


def done(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    answer = said(process)
    assert process.wait(60) == 0
    return answer


def listening_addresses(pid: int) -> set[str]:
    """The local addresses, in the kernel's hexadecimal, that process ``pid`` listens on."""
    fds = Path(f"/proc/{pid}/fd").iterdir()
    inodes = {str(fd.readlink())[8:-1] for fd in fds if fd.is_symlink() and str(fd.readlink()).startswith("socket:")}
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}


@pytest.mark.prefect
def test_commands_share_one_server_and_the_last_one_stops_it(
    tmp_path: Path, users: list[subprocess.Popen[str]]
) -> None:
    first, second, killed = users
    answers = [said(process) for process in users]
    assert len({url for url, _ in answers}) == 1
    assert sorted(started for _, started in answers) == ["False", "False", "True"]
    state = json.loads((server_folder(tmp_path) / "server.json").read_text())
    assert listening_addresses(state["pid"]) == {"0100007F"}, "not on loopback only"
    killed.kill()
    killed.wait()
    assert done(first) == ["False"]
    assert health(state["url"]) is None, "the server went while it was in use"
    assert done(second) == ["True"], "a user that was killed must not keep the server"
    assert not is_alive(state["pid"])
    assert running_server(tmp_path) is None


HOLD = """
import sys
from pathlib import Path
from narrows.flows.server import hold_server
hold_server(Path(sys.argv[1]), note=lambda line: print(line, flush=True))
"""


@pytest.mark.prefect
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_holding_a_server_that_others_use_ends_without_stopping_it(
    narrows_server: ServerHandle, signum: signal.Signals
) -> None:
    assert narrows_server.folder is not None
    env = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    argv = [sys.executable, "-c", HOLD, str(narrows_server.folder.parent)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env) as holder:
        assert holder.stdout is not None
        first = holder.stdout.readline()
        users = [path.name for path in (narrows_server.folder / "users").iterdir()]
        for _ in range(2):  # `timeout` sends its signal twice
            holder.send_signal(signum)
            time.sleep(0.05)
        rest = holder.stdout.read()
    assert narrows_server.ui_url in first
    assert any(name.startswith(f"{holder.pid}-") for name in users)
    assert "left running" in rest
    assert holder.returncode == 0
    assert health(narrows_server.url) is None


@pytest.mark.prefect
def test_every_task_run_is_on_record_before_the_server_may_be_stopped(narrows_server: ServerHandle) -> None:
    from prefect import flow, task
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    @task
    def nothing(number: int) -> int:
        return number

    @flow
    def many() -> None:
        for number in range(60):
            nothing(number)

    state = many(return_state=True)
    assert await_records(narrows_server.url)
    run = FlowRunFilter(id=FlowRunFilterId(any_=[state.state_details.flow_run_id]))
    with get_client(sync_client=True) as client:
        runs = client.read_task_runs(flow_run_filter=run)
    assert [run.state.is_completed() for run in runs if run.state] == [True] * 60


def test_a_transaction_that_reads_before_it_writes_is_never_refused_because_another_was_quicker(tmp_path: Path) -> None:
    """Prefect's own way is refused in this order, and its client then waits 2 s."""
    code = """
import asyncio, sys
import sqlalchemy as sa
from prefect.server.database.configurations import AioSqliteConfiguration
from narrows.flows.server_process import begin_as_writers

async def refused():
    config = AioSqliteConfiguration(connection_url=f"sqlite+aiosqlite:///{sys.argv[1]}")
    engine = await config.engine()
    first, second = await config.session(engine), await config.session(engine)
    async with first, config.begin_transaction(first):
        await first.execute(sa.text("CREATE TABLE IF NOT EXISTS numbers (number INTEGER)"))

    async def other():
        async with second, config.begin_transaction(second):
            await second.execute(sa.text("INSERT INTO numbers VALUES (1)"))

    third = await config.session(engine)
    try:
        async with third, config.begin_transaction(third):
            await third.execute(sa.text("SELECT * FROM numbers"))
            racing = asyncio.create_task(other())
            await asyncio.sleep(0.2)
            await third.execute(sa.text("INSERT INTO numbers VALUES (2)"))
        await racing
    except sa.exc.OperationalError:
        await racing
        return True
    finally:
        await engine.dispose()
    return False

as_prefect_does = asyncio.run(refused())
begin_as_writers()
print(as_prefect_does, asyncio.run(refused()))
"""
    words = [sys.executable, "-c", code, str(tmp_path / "numbers.db")]
    environment = {"PATH": os.environ["PATH"], "PREFECT_HOME": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.stdout.split() == ["True", "False"], done.stderr
