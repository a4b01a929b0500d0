"""The files behind a postmortem, by paths relative to the case's directory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from narrows.inquiry.docket import Docket
from narrows.templates.evidence import Record
from narrows.templates.parts import FileLink

DIGEST_SHOWN = 12
SHOWN = 6


def files(docket: Docket, known: Mapping[str, Record], directory: Path) -> tuple[FileLink, ...]:
    """The docket, every evidence file, and the manifest of every run behind it."""
    name = docket.path.name if docket.path else "docket.jsonl"
    found = [FileLink(label="docket", path=name, note="every decision in order, each line with the digest of the last")]
    for record in known.values():
        label, note = f"evidence {record.name}", "step times and their reduction"
        found.append(FileLink(label=label, path=record.source, note=note, manifests=_manifests(record, directory)))
    return tuple(found)


def _manifests(record: Record, directory: Path) -> tuple[FileLink, ...]:
    """The manifest of each run, an arm's name with its digest; of very many runs the first ones."""
    found = []
    for arm, path, digest in record.runs()[:SHOWN]:
        place = relative(path, directory)
        note = digest[:DIGEST_SHOWN] or "no digest"
        found.append(FileLink(label=arm, path=f"{place}/manifest.json" if place else "", note=note))
    more = len(record.runs()) - SHOWN
    return (*found, FileLink(label=f"{more} more", path="", note="in the evidence")) if more > 0 else tuple(found)


def relative(path: str, directory: Path) -> str:
    """``path`` from the case's directory; empty where that would spell out a place on this machine."""
    if not PurePosixPath(path).is_absolute():
        return path
    if not directory.is_absolute():
        return ""
    if os.path.commonpath([path, directory]) == "/":
        return ""
    return os.path.relpath(path, directory)
