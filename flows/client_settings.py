"""How this process talks to a Prefect server: its settings, and what must be sent before it goes."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from narrows.inquiry.errors import ServerError

_QUIET_S = 3.0  # the server writes 20 records a second and more: this long without one, it has none left
_FINAL = ["COMPLETED", "FAILED", "CANCELLED", "CRASHED"]


def client_environment(url: str, folder: Path | None = None) -> dict[str, str]:
    """The variables for a client of the server at ``url``; with ``folder``, narrows' own server lives there."""
    environment = {
        "PREFECT_API_URL": url,
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        # 5 retries do not outlast a server that is away for half a minute; 12 do
        "PREFECT_CLIENT_MAX_RETRIES": os.environ.get("PREFECT_CLIENT_MAX_RETRIES", "12"),
        "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
        # what narrows says is on the terminal already; Prefect's copy goes to its page alone
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": os.environ.get("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL"),
        # a server that is away is said in one sentence; Prefect's threads would print their tracebacks before it
        "PREFECT_INTERNAL_LOGGING_LEVEL": os.environ.get("PREFECT_INTERNAL_LOGGING_LEVEL", "CRITICAL"),
        "DO_NOT_TRACK": "1",
    }
    if folder:
        environment["PREFECT_HOME"] = str(folder / "prefect")
        direct = [*filter(None, os.environ.get("NO_PROXY", "").split(",")), "127.0.0.1", "localhost"]
        environment["NO_PROXY"] = ",".join(dict.fromkeys(direct))  # a proxy cannot see our loopback
    return environment


def opener_of(url: str) -> urllib.request.OpenerDirector:
    """What opens ``url``: without a proxy where it is our own loopback, which no proxy can see."""
    own = urlsplit(url).hostname == "127.0.0.1"
    return urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if own else []))


def password_header() -> dict[str, str]:
    """The header that carries the password of the user's server; nothing where none is set."""
    secret = os.environ.get("PREFECT_API_AUTH_STRING")
    return {"Authorization": "Basic " + base64.b64encode(secret.encode()).decode()} if secret else {}


@contextlib.contextmanager
def server_needed(url: str, next_move: str) -> Iterator[None]:
    """Raises ``ServerError`` where the server stops answering for longer than Prefect's client waits.

    Some of its calls do not wait at all: a slot for a task is asked for once.
    """
    import httpx

    try:
        yield
    except Exception as error:
        if not any(isinstance(one, httpx.TransportError) for one in _causes(error)):
            raise
        raise ServerError(f"the Prefect server at {url} stopped answering; {next_move}") from error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


@contextlib.contextmanager
def client_settings(environment: Mapping[str, str]) -> Iterator[None]:
    """Applies ``environment`` to this process, and to Prefect where it was imported already; undone at the end."""
    before = {key: os.environ.get(key) for key in environment}
    os.environ.update(environment)
    try:
        with _imported_settings(environment):
            yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


@contextlib.contextmanager
def _imported_settings(environment: Mapping[str, str]) -> Iterator[None]:
    if "prefect" not in sys.modules:
        yield
        return
    import prefect.settings

    # The levels of the log handlers are read from the environment alone, when Prefect sets its logging up.
    known = {key: getattr(prefect.settings, key, None) for key in environment if key.startswith("PREFECT_")}
    updates = {setting: environment[key] for key, setting in known.items() if setting is not None}
    with prefect.settings.temporary_settings(updates):
        yield


@contextlib.contextmanager
def without_heartbeat() -> Iterator[None]:
    """Flow runs that begin in here send no heartbeat, whose thread would sleep for a second at the end of each."""
    import prefect.settings

    setting = getattr(prefect.settings, "PREFECT_FLOWS_HEARTBEAT_FREQUENCY", None)  # of a later Prefect than the oldest
    if setting is None or setting.value() is None:  # it is off already, and changing settings reads files again
        yield
        return
    with prefect.settings.temporary_settings({setting: None}):
        yield


def drain_workers() -> None:
    """Sends what Prefect still holds of logs and events; nothing where Prefect was never imported.

    Without it the exit waits for a server that is gone: 73 s were measured.
    """
    if "prefect" not in sys.modules:
        return
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for worker in (APILogWorker, EventsWorker):
        worker.drain_all(timeout=10)


def await_records(url: str, timeout_s: float = 60.0) -> bool:
    """Whether the server's task-run records came to rest within ``timeout_s``.

    The server notes them behind the client's back: stopped right after a flow of 200 quick tasks, it had 15 of them
    (Prefect 3.9).
    """
    end = time.monotonic() + timeout_s
    counts, since = _counts(url), time.monotonic()
    while time.monotonic() - since < _QUIET_S:
        if time.monotonic() > end:
            return False
        time.sleep(0.25)
        if (now := _counts(url)) != counts:
            counts, since = now, time.monotonic()
    return True


def _counts(url: str) -> tuple[int, int] | None:
    final = {"task_runs": {"state": {"type": {"any_": _FINAL}}}}
    try:
        return _count(url, {}), _count(url, final)
    except (OSError, ValueError):  # it is away, or too busy: nothing can be said
        return None


def _count(url: str, query: Mapping[str, object]) -> int:
    request = urllib.request.Request(  # noqa: S310  # our own server's address
        f"{url}/task_runs/count", json.dumps(query).encode(), {"Content-Type": "application/json"}
    )
    with opener_of(url).open(request, timeout=10) as answer:
        return int(answer.read())
