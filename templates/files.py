"""The files behind a postmortem, by paths relative to the case's directory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from narrows.inquiry.docket import Docket
from narrows.templates.evidence import Record
from narrows.templates.parts import FileLink

DIGEST_SHOWN = 12


def files(docket: Docket, known: Mapping[str, Record], directory: Path) -> tuple[FileLink, ...]:
    """The docket, every evidence file, and the manifest of every run behind it."""
    name = docket.path.name if docket.path else "docket.jsonl"
    found = [FileLink(label="docket", path=name, note="every decision in order, each line with the digest of the last")]
    for record in known.values():
        found.append(
            FileLink(label=f"evidence {record.name}", path=record.source, note="step times and their reduction")
        )
        for arm, path, digest in record.runs():
            note = f"sha256 {digest[:DIGEST_SHOWN]}" if digest else "no digest was recorded"
            shown = relative(path, directory)
            label = f"manifest {record.name}, {arm}"
            found.append(FileLink(label=label, path=f"{shown}/manifest.json" if shown else "", note=note))
    return tuple(found)


def relative(path: str, directory: Path) -> str:
    """``path`` from the case's directory; empty where that would spell out a place on this machine."""
    if not PurePosixPath(path).is_absolute():
        return path
    if not directory.is_absolute():
        return ""
    if os.path.commonpath([path, directory]) == "/":
        return ""
    return os.path.relpath(path, directory)
