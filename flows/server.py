"""The Prefect server that narrows talks to: the user's own, or one that narrows starts on loopback and shares.

A local server belongs to the narrows commands that use it. Each leaves a file with its pid beside the server's state;
the last one to go stops the server. Its history stays in its database. Never the ephemeral server: it is slow and
loses task records at exit.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from narrows.flows.client_settings import (
    await_records,
    client_environment,
    client_settings,
    drain_workers,
    opener_of,
)
from narrows.flows.local_launcher import free_port
from narrows.flows.processes import MARK, POLL_S, is_alive, process_start, send, wait_until
from narrows.inquiry.errors import ServerError

START_TIMEOUT_S = 240.0  # 6 to 30 s were measured, the longer on a busy machine with a new database
_STOP_GRACE_S = 20.0
_BUSY_S = 30.0  # a busy server may take its time to answer
_NOTE_EVERY_S = 5.0

_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}
"""The servers that this process started: only their parent can reap them."""

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerHandle:
    """A server that answers. ``started``: this process started it; ``folder`` is absent when it is not narrows' own."""

    url: str
    ui_url: str
    started: bool
    folder: Path | None = None

    def client_environment(self) -> dict[str, str]:
        """The variables that a process needs, before it imports Prefect, to use this server."""
        return client_environment(self.url, self.folder)

    def run_url(self, flow_run_id: object) -> str:
        """The page of a flow run."""
        return f"{self.ui_url}/runs/flow-run/{flow_run_id}"

    def release(self) -> bool:
        """Whether the server was stopped, which it is when it is narrows' own and nobody else uses it."""
        return release_server(self.folder) if self.folder else False


def narrows_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Where narrows keeps what outlives a command: NARROWS_HOME, else the user's state folder."""
    if own := environ.get("NARROWS_HOME"):
        return Path(own).expanduser().absolute()
    state = environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser().absolute() / "narrows"


def server_folder(home: Path) -> Path:
    """The folder of this machine's server: a home shared by several must not share pids, nor an SQLite file."""
    return home / f"server-{platform.node() or 'localhost'}"


def ensure_server(home: Path | None = None, *, note: Note | None = None, keep: bool = False) -> ServerHandle:
    """A server that answers: that of PREFECT_API_URL, else narrows' own, running already or started now.

    ``keep``: it stays when its last user goes, until ``stop_server``. Raises ``ServerError`` with the next move.
    """
    if url := os.environ.get("PREFECT_API_URL"):
        return _given_server(url.rstrip("/"))
    folder = server_folder(home or narrows_home())
    note = note or (lambda _: None)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder, note):
            state = _running(folder)
            started = state is None
            state = state or _start(folder, note)
            if keep and not state.get("keep"):
                state = _write_state(folder, {**state, "keep": True})
            _user_file(folder).parent.mkdir(exist_ok=True)
            _user_file(folder).touch()
    except OSError as error:
        raise ServerError(
            f"cannot keep a Prefect server in {folder}: {error.strerror}; set NARROWS_HOME to a folder that "
            "you can write, or use --no-ui"
        ) from error
    return ServerHandle(url=state["url"], ui_url=state["url"].removesuffix("/api"), started=started, folder=folder)


def release_server(folder: Path) -> bool:
    """Whether the server in ``folder`` was stopped because this process was its last user.

    It is stopped once its records have come to rest.
    """
    with _undisturbed(), _lock(folder, lambda _: None):
        _user_file(folder).unlink(missing_ok=True)
        state = _running(folder)
        if state is None or state.get("keep") or _live_users(folder):
            return False
        if "prefect" in sys.modules:  # else nothing of this process is on its way
            await_records(state["url"])
        _stop(folder, state)
        return True


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C and SIGTERM do nothing in here: an impatient second one must not leave a server that nobody uses."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {one: signal.signal(one, signal.SIG_IGN) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in previous.items():
            signal.signal(one, handler)


def stop_server(home: Path | None = None) -> bool:
    """Whether there was a local server; there is none now, whoever used it."""
    folder = server_folder(home or narrows_home())
    if not folder.is_dir():
        return False
    with _lock(folder, lambda _: None):
        state = _running(folder)
        if state:
            _stop(folder, state)
        return state is not None


def running_server(home: Path | None = None) -> ServerHandle | None:
    """narrows' own server on this machine, if it runs; this does not make the caller a user of it."""
    folder = server_folder(home or narrows_home())
    state = _running(folder)
    if state is None:
        return None
    return ServerHandle(url=state["url"], ui_url=state["url"].removesuffix("/api"), started=False, folder=folder)


@contextlib.contextmanager
def connected(home: Path | None = None, *, note: Note | None = None) -> Iterator[ServerHandle]:
    """A server, with this process's Prefect settings pointing to it; drained and released at the end."""
    handle = ensure_server(home, note=note)
    try:
        with client_settings(handle.client_environment()):
            try:
                yield handle
            finally:
                drain_workers()
    finally:
        handle.release()


def hold_server(home: Path | None = None, *, note: Note) -> None:
    """Keeps a server up until Ctrl-C or SIGTERM, or until it goes away by itself: then raises ``ServerError``."""
    ends = signal.SIGINT, signal.SIGTERM
    previous = {one: signal.signal(one, _first_of(ends)) for one in ends}
    handle = None
    try:
        handle = ensure_server(home, note=note)
        note(f"Prefect's page: {handle.ui_url} (Ctrl-C to leave)")
        while handle.folder is None or _running(handle.folder):
            time.sleep(1.0)
        raise ServerError(f"the server at {handle.url} ended by itself; see {handle.folder / 'server.log'}")
    except KeyboardInterrupt:
        if handle:
            note("stopped" if handle.release() else "left running: it is in use elsewhere")
    finally:
        for one, handler in previous.items():
            signal.signal(one, handler)


def _first_of(ends: Sequence[signal.Signals]) -> Callable[[int, object], NoReturn]:
    """A handler that interrupts once: ``timeout`` sends its signal twice, and a second would leave the server."""

    def interrupt(_signum: int, _frame: object) -> NoReturn:
        for one in ends:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    return interrupt


def _given_server(url: str) -> ServerHandle:
    reason = health(url, timeout_s=10.0)
    if reason:
        raise ServerError(
            f"PREFECT_API_URL is {url}, which does not answer ({reason}); start that server, or unset the variable "
            "to let narrows start one, or use --no-ui"
        )
    ui_url = os.environ.get("PREFECT_UI_URL") or url.removesuffix("/api")
    return ServerHandle(url=url, ui_url=ui_url.rstrip("/"), started=False)


def health(url: str, timeout_s: float = 2.0) -> str | None:
    """None when the API at ``url`` says that it is well, else why not."""
    try:
        with opener_of(url).open(f"{url}/health", timeout=timeout_s) as answer:
            return None if answer.read().strip() == b"true" else f"{url}/health is not Prefect's"
    except urllib.error.URLError as error:
        return str(error.reason)
    except (OSError, ValueError) as error:
        return str(error)


def server_environment(folder: Path, url: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables of narrows' own server: none of the user's Prefect settings, and nothing sent to anybody."""
    own = {key: value for key, value in inherited.items() if not key.startswith("PREFECT_") and key != MARK}
    return {
        **own,
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_UI_API_URL": url,  # else the page asks port 4200
        # Prefect's second page asks Amplitude's host for its settings even with analytics off, and hides the form
        # that approves in a menu. The first page does neither; the second stays at /v2.
        "PREFECT_SERVER_UI_V2_ENABLED": "false",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        # The page's files are copied at the first start; site-packages may not be writable.
        "PREFECT_UI_STATIC_DIRECTORY": str(folder / "page"),
        # Prefect's client keeps an idle connection for 25 s. A server that hangs up before that costs the next request
        # a retry of about 2 s, and one follows each experiment.
        "PREFECT_SERVER_API_KEEPALIVE_TIMEOUT": "60",
        # Leases in memory leak their slot for good when the server restarts.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        # Pages older than 90 days go, with their logs and artifacts; dockets and reports are files and stay.
        "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
        "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",  # none is used, and the start is shorter by a second
    }


def _start(folder: Path, note: Note) -> dict[str, Any]:
    port = _port(folder)
    url = f"http://127.0.0.1:{port}/api"
    log_path = folder / "server.log"
    prefect = [sys.executable, "-m", "narrows.flows.server_process"]
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [*prefect, "server", "start", "--host", "127.0.0.1", "--port", str(port)],
            env=server_environment(folder, url, os.environ),
            cwd=folder,  # away from the user's prefect.toml
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # it is shared: a Ctrl-C meant for one command must not reach it
        )
    _CHILDREN[process.pid] = process
    try:
        _wait_healthy(process, url, log_path, note)
    except BaseException:
        _stop_pid(process.pid)
        raise
    return _write_state(folder, {"pid": process.pid, "start": process_start(process.pid), "url": url})


def _port(folder: Path) -> int:
    """The port of last time where it is free, so that links to the page stay good; else any."""
    path = folder / "port"
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", int(path.read_text())))
            return int(probe.getsockname()[1])
    except (OSError, ValueError, OverflowError):
        port = free_port()
        path.write_text(str(port))
        return port


def _wait_healthy(process: subprocess.Popen[bytes], url: str, log_path: Path, note: Note) -> None:
    began = noted = time.monotonic()
    note("starting the Prefect server (10 to 30 s the first time)")
    while health(url) is not None:
        now = time.monotonic()
        if process.poll() is not None:
            raise ServerError(f"the Prefect server ended with exit code {process.returncode}; see {log_path}")
        if now - began > START_TIMEOUT_S:
            raise ServerError(f"the Prefect server did not answer within {START_TIMEOUT_S:.0f} s; see {log_path}")
        if now - noted >= _NOTE_EVERY_S:
            noted = now
            note(f"still starting the Prefect server: {now - began:.0f} s")
        time.sleep(POLL_S)


def _stop(folder: Path, state: Mapping[str, Any]) -> None:
    _stop_pid(int(state["pid"]))
    _state_file(folder).unlink(missing_ok=True)


def _stop_pid(pid: int) -> None:
    """Leaves no process ``pid``, which leads a session of its own."""
    for signum, grace_s in ((signal.SIGTERM, _STOP_GRACE_S), (signal.SIGKILL, 5.0)):
        send([pid], signum)
        if wait_until(lambda: _is_over(pid), grace_s):
            return


def _is_over(pid: int) -> bool:
    """Whether ``pid`` has ended; when it is our child it is also reaped."""
    child = _CHILDREN.get(pid)
    return child.poll() is not None if child else not is_alive(pid)


def _state_file(folder: Path) -> Path:
    return folder / "server.json"


def _write_state(folder: Path, state: dict[str, Any]) -> dict[str, Any]:
    new = _state_file(folder).with_suffix(".new")
    new.write_text(json.dumps({"schema": 1, "kind": "server", **state}))
    new.replace(_state_file(folder))
    return state


def _running(folder: Path) -> dict[str, Any] | None:
    """The state of the server in ``folder`` if that very process lives."""
    try:
        state = json.loads(_state_file(folder).read_text())
        alive = process_start(int(state["pid"])) == state["start"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return dict(state) if alive else None


def _answering(folder: Path) -> dict[str, Any] | None:
    """As ``_running``; a server that lives and has not answered for a while is stopped: two must not share a file."""
    state = _running(folder)
    if state and not wait_until(lambda: health(state["url"]) is None, _BUSY_S):
        _stop(folder, state)
        return None
    return state


def _user_file(folder: Path) -> Path:
    return folder / "users" / f"{os.getpid()}-{process_start(os.getpid())}"


def _live_users(folder: Path) -> list[str]:
    """The processes that use the server; the files of those that died without a word are removed."""
    live = []
    for path in (folder / "users").glob("*-*"):
        pid, _, start = path.name.partition("-")
        if pid.isdigit() and str(process_start(int(pid))) == start:
            live.append(path.name)
        else:
            path.unlink(missing_ok=True)
    return live


@contextlib.contextmanager
def _lock(folder: Path, note: Note) -> Iterator[None]:
    """Holds the folder's lock; another command holds it for as long as it starts the server."""
    with (folder / "lock").open("w") as file:
        end, told = time.monotonic() + START_TIMEOUT_S + 60.0, False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise ServerError(f"another narrows command holds {folder / 'lock'} for minutes; end it") from None
                if not told:
                    note("another narrows command is starting or stopping the Prefect server")
                told = True
                time.sleep(POLL_S)
        yield
