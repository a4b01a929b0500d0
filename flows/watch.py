"""``narrows watch``: has this host changed since it was last looked at? If so, the Prefect server is told.

The new fingerprint is kept only once the server has accepted the event, so that an event that was lost is sent again
the next time. Nothing here imports Prefect: it may run at the end of every job.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any

from narrows.flows.checked_yaml import HOST
from narrows.flows.client_settings import opener_of, password_header
from narrows.flows.fingerprint import host_name, keep, kept, state_folder, take_fingerprint
from narrows.inquiry.errors import NarrowsError, ServerError, in_words
from narrows.inquiry.fingerprint import Fields, changes

EVENT = "narrows.host.changed"
SEND_LIMIT_S = 10.0
_ACCEPTED = (200, 201, 202, 204)
FORBIDDEN = 403

Changes = dict[str, dict[str, str | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at a host. ``first``: nothing was kept of it before; ``accepted``: the server took the event."""

    host: str
    changed: Changes
    first: bool = False
    accepted: bool = False
    problem: str = ""


def look(host: str, cluster: str, folder: Path, fields: Fields, url: str | None) -> Look:
    """Compares ``fields`` with what was kept of ``host``, tells the server at ``url``, and keeps them once told."""
    before = kept(folder, host)
    if before is None:
        keep(folder, host, fields, cluster)
        return Look(host=host, changed={}, first=True)
    changed = changes(before, fields)
    if not changed:
        return Look(host=host, changed={})
    try:
        if url is None:
            raise ServerError("no Prefect server is known: set PREFECT_API_URL")
        send(url, host_event(host, cluster, changed))
    except NarrowsError as error:
        return Look(host=host, changed=changed, problem=f"{error}; it is sent again the next time")
    keep(folder, host, fields, cluster)
    return Look(host=host, changed=changed, accepted=True)


def host_event(host: str, cluster: str, changed: Changes) -> dict[str, Any]:
    """The event that a host changed, as Prefect's API takes it."""
    return {
        "id": str(uuid.uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
        "event": EVENT,
        "resource": {
            "prefect.resource.id": f"narrows.host.{host}",
            "prefect.resource.name": host,
            "narrows.cluster": cluster,
        },
        "related": [{"prefect.resource.id": f"narrows.cluster.{cluster}", "prefect.resource.role": "cluster"}],
        "payload": {"host": host, "cluster": cluster, "changed": changed},
    }


def send(url: str, event: dict[str, Any]) -> None:
    """Hands the event to the server at ``url`` and waits for its answer. Raises ``ServerError`` unless it took it."""
    url, body = url.rstrip("/"), json.dumps([event]).encode()
    status, _ = _call(f"{url}/events", body)
    if status == FORBIDDEN:  # a server that guards against forged posts wants a token of its own
        status, _ = _call(f"{url}/events", body, _token(url))
    if status not in _ACCEPTED:
        raise ServerError(f"{url} did not take the event (HTTP {status})")


def _token(url: str) -> dict[str, str]:
    client = str(uuid.uuid4())
    status, answer = _call(f"{url}/csrf-token?client={client}")
    try:
        token = json.loads(answer)["token"] if status in _ACCEPTED else None
    except (ValueError, KeyError, TypeError):  # not what Prefect says: the post stays refused
        token = None
    return {"Prefect-Csrf-Token": str(token), "Prefect-Csrf-Client": client} if token else {}


def _call(url: str, body: bytes | None = None, extra: dict[str, str] | None = None) -> tuple[int, bytes]:
    """The answer's status and text. Raises ``ServerError`` where there is none."""
    headers = {"Content-Type": "application/json", **_authorization(), **(extra or {})}
    request = urllib.request.Request(url, body, headers)  # noqa: S310  # the user's own server
    try:
        with opener_of(url).open(request, timeout=SEND_LIMIT_S) as answer:
            if answer.geturl() != url:  # a proxy's page for signing in says 200, and took no event
                raise ServerError(f"{url} sends us on to {answer.geturl()}; give the address that answers itself")
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, b""
    except (OSError, ValueError, HTTPException) as error:
        raise ServerError(f"{url} does not answer ({getattr(error, 'reason', error)})") from None


def _authorization() -> dict[str, str]:
    if key := os.environ.get("PREFECT_API_KEY"):
        return {"Authorization": f"Bearer {key}"}
    return password_header()


def server_url() -> str | None:
    """The server that is told: PREFECT_API_URL, else narrows' own if it runs here. None is started for this."""
    from narrows.flows.server import running_server

    if url := os.environ.get("PREFECT_API_URL"):
        return url
    server = running_server()
    return server.url if server else None


def watch(
    *, once: bool, interval_s: float, state: Path | None, host: str | None, cluster: str | None, strict: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Looks once, or every ``interval_s`` seconds until it is interrupted.

    0 whatever happened, so that it never fails a job's epilog; with ``strict`` 4 where the host changed, and 1 where
    that could not be read or told. Raises ``ValueError`` for a host or a cluster that is no name.
    """
    name, group = host or host_name(), cluster or os.environ.get("SLURM_CLUSTER_NAME") or "default"
    for option, text in (("--host", name), ("--cluster", group)):
        if not HOST.fullmatch(text):
            raise ValueError(f"{option} {text}: expected a name of letters, digits, dots, dashes and underscores")
    if interval_s <= 0:
        raise ValueError(f"--interval {interval_s:g}: expected seconds, above 0")
    folder = state_folder(state)
    try:
        while True:
            code = _one(name, group, folder, say=_printer(as_json=as_json))
            if once:
                return code if strict else 0
            time.sleep(interval_s)
    except KeyboardInterrupt:
        return 0


def _one(host: str, cluster: str, folder: Path, say: Callable[[Look], None]) -> int:
    try:
        found = look(host, cluster, folder, take_fingerprint(), server_url())
    except OSError as error:
        print(f"narrows: watch: {error.filename or folder}: {in_words(error)}; give another --state", file=sys.stderr)
        return 1
    except NarrowsError as error:
        print(f"narrows: watch: {error}", file=sys.stderr)
        return 1
    say(found)
    if found.problem:
        print(f"narrows: watch: {found.problem}", file=sys.stderr)
        return 1
    return 4 if found.changed else 0


def _printer(*, as_json: bool) -> Callable[[Look], None]:
    def say(found: Look) -> None:
        if as_json:
            print(json.dumps({"schema": 1, "host": found.host, "first": found.first, "changed": found.changed,
                              "accepted": found.accepted}), flush=True)  # fmt: skip
            return
        if found.first:
            print(f"{found.host}: first look; its fingerprint is kept", flush=True)
        elif not found.changed:
            print(f"{found.host}: unchanged", flush=True)
        for name, one in found.changed.items():
            print(f"{found.host}: {name}: {one['was'] or 'not there'} -> {one['now'] or 'not there'}", flush=True)
        if found.accepted:
            print(f"{found.host}: the server was told ({EVENT})", flush=True)

    return say
