"""What is kept and told of a revalidation over all claims."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

from narrows.flows.checked_yaml import is_text, is_texts, parse
from narrows.flows.claims_propose import today
from narrows.flows.claims_store import SETTINGS, ClaimStore
from narrows.flows.revalidating import FOLDER, Due, Revalidated
from narrows.inquiry.claim import Metric
from narrows.inquiry.codec import plain
from narrows.inquiry.errors import CaseError
from narrows.templates.revalidation import report_markdown

TELL_LIMIT_S = 30.0
_STDERR = 2


def rows_of(found: Sequence[Due], ended: Mapping[str, Revalidated]) -> list[dict[str, Any]]:
    """One row a claim, in order: how it ended, or that it was not due (``outcome`` None)."""
    return [_row(one, ended.get(one.claim.name)) for one in found]


def damaged_rows(damaged: Mapping[str, str]) -> list[dict[str, Any]]:
    """The rows of claims that could not be read, so that the report over all claims leaves none out."""
    return [
        {"claim": name, "case": None, "outcome": None, "reasons": [], "problem": problem}
        for name, problem in damaged.items()
    ]


def _row(one: Due, ended: Revalidated | None) -> dict[str, Any]:
    accepted = one.claim.range(Metric.EFFECT)
    assert accepted is not None
    bare: dict[str, Any] = {
        "claim": one.claim.name, "case": one.claim.case, "outcome": None, "sentence": "", "found_ms": None,
        "interval_ms": None, "accepted_ms": [accepted.low, accepted.high], "new_case": None, "folder": None,
        "reasons": [reason.words for reason in one.reasons], "unknown": list(one.unknown),
    }  # fmt: skip
    return bare | (dict(plain(ended)) if ended is not None else {})


def keep_report(store: ClaimStore, rows: Sequence[Mapping[str, Any]], reason: str) -> Path:
    """The report as a file in the workspace's ``revalidations``."""
    folder = store.workspace / FOLDER
    folder.mkdir(exist_ok=True)
    path = folder / f"report-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.md"
    path.write_text(report_markdown(rows, today(), reason), encoding="utf-8")
    return path


def load_settings(store: ClaimStore) -> dict[str, Any]:
    """``claims/settings.yaml``: ``notify: {command: [...], url: ...}``; empty where it is not there.

    Raises ``CaseError``.
    """
    path = store.folder / f"{SETTINGS}.yaml"
    if not path.is_file():
        return {}
    root = parse(path)
    notify = root.section("notify")
    command = notify.take("command", lambda v: is_texts(v) and bool(v), "a list: the program and its arguments")
    url = notify.take("url", lambda v: is_text(v) and v.startswith(("http://", "https://")), "an http(s) address")
    notify.done(("command", "url"))
    root.done(("notify",))
    if root.reader.problems:
        raise CaseError(root.reader.problems[0], tuple(root.reader.problems))
    return {"command": command, "url": url}


def tell(store: ClaimStore, rows: Sequence[Mapping[str, Any]], say: Callable[[str], None]) -> None:
    """Tells whom the settings name, of the claims that were run again. A message that is lost fails nothing."""
    ran = [row for row in rows if row["outcome"]]
    try:
        settings = load_settings(store) if ran else {}
    except CaseError as error:
        say(f"nobody was told: {error}")
        return
    body = json.dumps({"schema": 1, "workspace": str(store.workspace), "claims": [dict(row) for row in ran]}).encode()
    if command := settings.get("command"):
        _delivered(lambda: _hand_over(command, body, store.workspace), command[0], say)
    if url := settings.get("url"):
        _delivered(lambda: _post(url, body), url, say)


def _delivered(send: Callable[[], None], to: str, say: Callable[[str], None]) -> None:
    try:
        send()
    except (OSError, ValueError, HTTPException, subprocess.SubprocessError) as error:
        say(f"the notification was not delivered to {to}: {error}")


def _hand_over(command: Sequence[str], body: bytes, folder: Path) -> None:
    # What the program prints is no part of the command's own output, which may be JSON.
    subprocess.run(command, input=body, timeout=TELL_LIMIT_S, check=True, cwd=folder, stdout=_STDERR)


def _post(url: str, body: bytes) -> None:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310  # its kind was checked
    urllib.request.urlopen(request, timeout=TELL_LIMIT_S).close()  # noqa: S310  # the same
