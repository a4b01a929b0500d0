"""Which source ran: the git revision, and a digest of what differs from it."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Any

GIT_TIMEOUT_S = 5.0
UNTRACKED_FILES = 200
UNTRACKED_BYTES = 1 << 20


def source_facts(program: Path) -> dict[str, Any]:
    """``path``, and inside a git work tree ``git_revision``, ``dirty`` and, where dirty, ``dirty_digest``.

    The digest (sha256) covers the difference from the revision and the untracked files that git does not ignore.
    """
    folder = program.absolute().parent if program.is_file() else Path.cwd()
    facts: dict[str, Any] = {"path": str(folder)}
    top = _git(folder, "rev-parse", "--show-toplevel")
    if top is None:
        return facts
    root = Path(top.decode(errors="replace").strip())
    facts["path"] = str(root)
    revision = _git(root, "rev-parse", "--verify", "HEAD")
    if revision is not None:
        facts["git_revision"] = revision.decode().strip()
    status = _git(root, "status", "--porcelain", "-z", "--untracked-files=normal")
    if status is None:
        return facts
    facts["dirty"] = bool(status)
    if status:
        facts["dirty_digest"] = _dirty_digest(root, status)
    return facts


def _dirty_digest(root: Path, status: bytes) -> str:
    digest = hashlib.sha256(status)
    digest.update(_git(root, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-color") or b"")
    untracked = [entry[3:] for entry in status.split(b"\0") if entry.startswith(b"?? ")]
    for name in untracked[:UNTRACKED_FILES]:
        path = root / name.decode(errors="surrogateescape")
        if path.is_file() and path.stat().st_size <= UNTRACKED_BYTES:
            digest.update(name + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _git(folder: Path, *arguments: str) -> bytes | None:
    """What git printed, or None where git, the repository or the answer is missing."""
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
