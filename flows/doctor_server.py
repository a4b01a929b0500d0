"""What `narrows doctor` looks at on the Prefect server: is it there, whose is it, who may use it, what it lacks."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from narrows.flows.client_settings import opener_of, password_header
from narrows.flows.doctor_checks import Check, State
from narrows.flows.server import health, narrows_home, running_server, server_folder
from narrows.flows.zombies import AUTOMATION

_TIMEOUT_S = 10.0
_FOREIGN = "https://elsewhere.example"
_CLOCK_TOLERANCE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            return None


def server(_folder: Path) -> Iterator[Check]:
    """The server that the next investigation would use. Nothing is started or changed."""
    given = os.environ.get("PREFECT_API_URL", "").rstrip("/")
    own = None if given else running_server()
    if not given and own is None:
        where = server_folder(narrows_home())
        yield _check(State.OK, f"none runs; the next command starts narrows' own on loopback, state in {where}")
        return
    url = given or (own.url if own else "")
    if reason := health(url, timeout_s=_TIMEOUT_S):
        yield _check(State.FAIL, f"{url} does not answer: {reason}",
                     "start that server, or unset PREFECT_API_URL to let narrows start its own")  # fmt: skip
        return
    yield _check(State.OK, f"{url} answers ({'PREFECT_API_URL' if given else 'started by narrows'})")
    yield from _access(url)
    yield from _inside(url, own=own is not None)


def _check(state: State, text: str, fix: str = "") -> Check:
    return Check(area="server", state=state, text=text, fix=fix)


def _access(url: str) -> Iterator[Check]:
    """Who can reach the server, and what they may do without saying who they are."""
    parts = urlsplit(url)
    local = parts.hostname in ("127.0.0.1", "localhost", "::1")
    open_to_all = _ask(f"{url}/admin/version", None).status == 200
    if not open_to_all:
        yield _check(State.OK, "it asks for a password")
    elif local:
        yield _check(State.OK, "it asks for no password; it is reached on loopback alone")
    else:
        yield _check(State.FAIL, f"anybody who reaches {parts.netloc} can read it and start programs on its workers",
                     "set PREFECT_SERVER_API_AUTH_STRING on the server and PREFECT_API_AUTH_STRING here")  # fmt: skip
    if not local and parts.scheme != "https":
        yield _check(State.WARN, "the password and the evidence cross the network in the clear",
                     "put a proxy with TLS before the server, or reach it through an SSH tunnel")  # fmt: skip
    asked = _ask(f"{url}/flow_runs/count", None, method="OPTIONS",
                 headers={"Origin": _FOREIGN, "Access-Control-Request-Method": "POST"})  # fmt: skip
    if asked.headers.get("access-control-allow-origin") in ("*", _FOREIGN) and open_to_all:
        yield _check(State.WARN, "pages of other sites may call it from your browser",
                     "set PREFECT_SERVER_CORS_ALLOWED_ORIGINS to the page's own address, and a password")  # fmt: skip
    if os.environ.get("PREFECT_API_KEY") and os.environ.get("PREFECT_API_AUTH_STRING"):
        yield _check(
            State.WARN, "PREFECT_API_KEY is set and wins over PREFECT_API_AUTH_STRING", "unset PREFECT_API_KEY"
        )


def _inside(url: str, *, own: bool) -> Iterator[Check]:
    """Version, database, clock and automations, as far as we may ask."""
    answer = _ask(f"{url}/admin/version", None, signed=True)
    if answer.status in (401, 403):
        yield _check(State.FAIL, "it refuses us", "set PREFECT_API_AUTH_STRING as the server has it")
        return
    theirs, ours = str(answer.json()), version("prefect")
    same = theirs.split(".")[:2] == ours.split(".")[:2]
    yield _check(State.OK if same else State.WARN, f"Prefect {theirs} there, {ours} here",
                 "" if same else "give both the same minor version; narrows is tested with both alike")  # fmt: skip
    yield from _database(url, own=own)
    yield from _clock(answer)
    named = {"automations": {"name": {"any_": [AUTOMATION]}}}
    found = _ask(f"{url}/automations/filter", named, signed=True).json()
    if isinstance(found, list) and not found:
        yield _check(State.WARN, "it does not notice runs whose process died",
                     "the next investigation on it sets that up")  # fmt: skip


def _database(url: str, *, own: bool) -> Iterator[Check]:
    """The database, as far as it can be known: a server keeps its connection URL secret, and tells a driver alone."""
    settings = _ask(f"{url}/admin/settings", None, signed=True).json()
    try:
        driver = settings["server"]["database"]["driver"]
    except (TypeError, KeyError):
        driver = None
    if own or "sqlite" in str(driver):
        yield _check(State.OK, "its database is SQLite, which does for one person")
    elif "postgresql" in str(driver):
        yield _check(State.OK, "its database is PostgreSQL")
    else:
        yield _check(State.OK, "its database cannot be seen from here; for a team it should be PostgreSQL")


def _clock(answer: _Answer) -> Iterator[Check]:
    try:
        theirs = parsedate_to_datetime(answer.headers["date"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return
    apart = time.time() - theirs - 0.5  # the header is cut to whole seconds
    if abs(apart) > _CLOCK_TOLERANCE_S:
        yield Check(area="clock", state=State.WARN, text=f"this clock is {apart:+.0f} s from the server's",
                    fix="run a time service on both; heartbeats and approvals are timed by the server")  # fmt: skip
    else:
        yield Check(area="clock", state=State.OK, text="within 2 s of the server's")


def _ask(url: str, body: object, *, method: str | None = None, headers: dict[str, str] | None = None,
         signed: bool = False) -> _Answer:  # fmt: skip
    """One request; status 0 where there was no answer. ``signed``: with the user's password."""
    sent = {"Content-Type": "application/json", **(headers or {}), **(password_header() if signed else {})}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, sent, method=method)  # noqa: S310  # the user's own server
    try:
        with opener_of(url).open(request, timeout=_TIMEOUT_S) as answer:
            return _Answer(status=answer.status, headers=_lower(answer.headers), body=answer.read())
    except urllib.error.HTTPError as error:
        return _Answer(status=error.code, headers=_lower(error.headers), body=b"")
    except (OSError, ValueError):
        return _Answer(status=0, headers={}, body=b"")


def _lower(headers: Any) -> dict[str, str]:
    return {str(key).lower(): str(value) for key, value in headers.items()}
