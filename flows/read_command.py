"""``narrows read FILE...``: say what kind of evidence each file is, what is in it, and what was not understood."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from narrows.reducers.readers import reading as readings
from narrows.reducers.readers.detect import looked_for
from narrows.reducers.readers.glance import dumps_glance, glance, pairs_glance
from narrows.reducers.readers.reading import Evidence, Reading, read_evidence

_UNREAD_SHOWN = 3
_FILES_SHOWN = 20  # of a set that is read as one, more files than this are counted


def read_files(paths: Sequence[Path | str], as_json: bool = False, pattern: str | None = None) -> int:
    """Print every file's reading; 0 when all were read, 1 otherwise. ``pattern`` reads each as a training log.

    Raises:
        ValueError: no path is given, or ``pattern`` is no regular expression with a group ``step``.
    """
    if not paths:
        raise ValueError("nothing to read: give files, or folders of files")
    evidence = read_evidence([Path(path) for path in paths], pattern)
    if as_json:
        print(_json(evidence))
    else:
        _print(evidence)
    for one in evidence.refusals:
        _say(f"narrows: {one.why}", sys.stderr)
    if any(one.unknown for one in evidence.refusals):
        print("looked for:", *looked_for(), sep="\n  ", file=sys.stderr)
    return 1 if evidence.refusals or not evidence.readings else 0


def _json(evidence: Evidence) -> str:
    return json.dumps(readings.as_json(evidence), allow_nan=False)


def _print(evidence: Evidence) -> None:
    for one in evidence.readings[:_FILES_SHOWN]:
        _print_one(one)
    if len(evidence.readings) > _FILES_SHOWN:
        print(f"... and {len(evidence.readings) - _FILES_SHOWN} more files; --json has them all")
    if evidence.dumps is not None:
        _block("all flight-recorder dumps together", dumps_glance(evidence.dumps))
    if evidence.pairs is not None:
        _block("all pairwise tests together", pairs_glance(evidence.pairs))
    for why in evidence.why_not:
        _say(f"not read together: {why}")


def _print_one(one: Reading) -> None:
    _block(f"{one.path}: {one.kind.value}", glance(one))
    if one.torn:
        print("  its gzip is torn: what came before the cut was read")
    unread = one.not_understood
    if unread.count:
        print(f"  not understood: {unread.count}")
    for item in unread.first[:_UNREAD_SHOWN]:
        place = f"line {item.line}: " if item.line else ""
        _say(f"    {place}{item.text} ({item.why})")


def _block(head: str, lines: Sequence[str]) -> None:
    _say(head)
    for line in lines:
        _say(f"  {line}")


def _say(text: str, file: TextIO | None = None) -> None:
    """Print text that came out of foreign files: no control codes, and whatever the terminal's encoding is."""
    file = file or sys.stdout
    safe = "".join(char if char.isprintable() else "?" for char in text)
    encoding = file.encoding or "utf-8"
    print(safe.encode(encoding, "backslashreplace").decode(encoding), file=file)
