"""The fingerprint of this host, and those that were kept of others: one small JSON file a host."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from narrows.inquiry.codec import SCHEMA
from narrows.inquiry.errors import NarrowsError
from narrows.inquiry.fingerprint import Fields, host_fields, package_fields

LIMIT_S = 60.0
"""Reading the facts takes a second; a driver that hangs must not hold a node for ever."""


class FingerprintError(NarrowsError):
    """What this host runs on could not be read."""


def host_name() -> str:
    """The name under which jobs know this host: NARROWS_HOST where it is set, else the machine's own."""
    return os.environ.get("NARROWS_HOST") or platform.node().partition(".")[0] or "localhost"


def take_fingerprint() -> Fields:
    """The fields of this host now. Raises ``FingerprintError``."""
    command = [sys.executable, "-m", "narrows.instruments.fingerprint"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
        facts = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise FingerprintError(f"the fingerprint of this host cannot be taken: {error}") from None
    return {**host_fields(facts["host"]), **package_fields(facts["packages"])}


def state_folder(given: Path | None) -> Path:
    """Where fingerprints are kept: given, else NARROWS_HOSTS, else ``hosts`` in narrows' home."""
    from narrows.flows.server import narrows_home

    if given is not None:
        return given
    own = os.environ.get("NARROWS_HOSTS")
    return Path(own) if own else narrows_home() / "hosts"


def kept(folder: Path, host: str) -> Fields | None:
    """The fingerprint that was kept of ``host``; None where there is none, or none that can be read."""
    try:
        value: Any = json.loads((folder / f"{host}.json").read_text(encoding="utf-8"))
        return {str(name): str(text) for name, text in value["fields"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def keep(folder: Path, host: str, fields: Fields, cluster: str) -> None:
    """Keeps the fingerprint of ``host``, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    value = {"schema": SCHEMA, "kind": "fingerprint", "host": host, "cluster": cluster, "taken_unix_ns": time.time_ns(),
             "fields": fields}  # fmt: skip
    partial = folder / f".{host}.{os.getpid()}.partial"
    partial.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    partial.replace(folder / f"{host}.json")
