"""The append-only record of a case: JSON lines, each with the digest of the one before.

Registration comes before evidence, and every line can be checked by anyone who holds the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from narrows.inquiry.codec import SCHEMA, canonical, check_schema, digest, plain
from narrows.inquiry.errors import DocketError

GENESIS = "0" * 64


class Kind(StrEnum):
    """What a line of the docket records."""

    OPENED = "opened"
    REGISTERED = "registered"
    FINDING = "finding"
    SKIPPED = "skipped"
    ASKED = "asked"
    ANSWERED = "answered"
    LAUNCHED = "launched"
    FAILED = "failed"
    EVIDENCE = "evidence"
    LOOK = "look"
    VERDICT = "verdict"
    CONCLUDED = "concluded"
    REOPENED = "reopened"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line. ``line`` counts from 1; ``previous`` is the digest of the line before (64 zeros for the first)."""

    line: int
    kind: Kind
    at_ns: int
    body: dict[str, Any]
    previous: str
    sha256: str

    def computed(self) -> str:
        """The digest over everything but the digest itself."""
        return digest(
            {"line": self.line, "kind": self.kind, "at_ns": self.at_ns, "body": self.body, "previous": self.previous}
        )


class Docket:
    """The entries of one case, and the file that they live in (``path`` None: in memory, for replays).

    Opening checks every line: a changed, missing or reordered line is refused with its number. A torn last line
    (the writer was killed while writing it) is dropped from the file and counted in ``torn``.
    """

    def __init__(self, path: Path | None, entries: tuple[Entry, ...] = (), torn: int = 0) -> None:
        self.path = path
        self.torn = torn
        self._entries = list(entries)

    @classmethod
    def open(cls, path: Path, *, repair: bool = True) -> Docket:
        """The docket at ``path``; empty when the file does not exist yet. Raises ``DocketError``.

        ``repair`` false leaves a torn last line in the file: its writer may still be at it.
        """
        if not path.exists():
            return cls(path)
        data = path.read_bytes()
        whole, _, tail = data.rpartition(b"\n")
        if tail and repair:
            keep = len(data) - len(tail)
            with path.open("r+b") as file:
                file.truncate(keep)
        lines = whole.split(b"\n") if whole else []
        docket = cls(path, torn=1 if tail else 0)
        for number, raw in enumerate(lines, start=1):
            docket._accept(_parse(raw, number, path))
        return docket

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(self._entries)

    @property
    def where(self) -> str:
        return str(self.path) if self.path else "the docket"

    def append(self, kind: Kind, body: dict[str, Any], at_ns: int) -> Entry:
        """Adds one entry, on disk before it counts. Raises ``DocketError`` for what the rules forbid."""
        previous = self._entries[-1].sha256 if self._entries else GENESIS
        bare = Entry(line=len(self) + 1, kind=kind, at_ns=at_ns, body=plain(body), previous=previous, sha256="")
        entry = Entry(line=bare.line, kind=kind, at_ns=at_ns, body=bare.body, previous=previous, sha256=bare.computed())
        self._check(entry)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(canonical({"schema": SCHEMA, **plain(entry)}) + b"\n")
                file.flush()
                os.fsync(file.fileno())
        self._entries.append(entry)
        return entry

    def of(self, kind: Kind) -> list[Entry]:
        return [entry for entry in self._entries if entry.kind is kind]

    def _accept(self, entry: Entry) -> None:
        self._check(entry)
        self._entries.append(entry)

    def _check(self, entry: Entry) -> None:
        place = f"{self.where}, line {entry.line}"
        expected = len(self) + 1
        if entry.line != expected:
            raise DocketError(f"{place}: expected line {expected}; a line is missing or was moved. Restore the file")
        previous = self._entries[-1].sha256 if self._entries else GENESIS
        if entry.previous != previous:
            raise DocketError(f"{place}: does not follow the line before it; that line was changed or removed")
        if entry.sha256 != entry.computed():
            raise DocketError(f"{place}: its digest does not match its text; the line was changed after it was written")
        rule = _RULES.get(entry.kind)
        if rule is not None:
            rule(self, entry, place)


def _parse(raw: bytes, number: int, path: Path) -> Entry:
    place = f"{path}, line {number}"
    try:
        fields = json.loads(raw)
        check_schema(fields.pop("schema", None), place)
        entry = Entry(**{**fields, "kind": Kind(fields["kind"])})
        # The digest covers what the text means; "1E-07" for "1e-07" would slip past it.
        if canonical({"schema": SCHEMA, **plain(entry)}) != raw:
            raise ValueError("it is not written as narrows writes it")
        return entry
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DocketError(f"{place}: not a docket line ({error}). Restore the file from a copy") from error


def _registered(docket: Docket) -> dict[str, Entry]:
    return {entry.body["id"]: entry for entry in docket.of(Kind.REGISTERED)}


def _check_registration(docket: Docket, entry: Entry, place: str) -> None:
    body = entry.body
    if body.get("id") in _registered(docket):
        raise DocketError(f"{place}: hypothesis {body.get('id')} is registered already; a registration never changes")
    if body.get("sha256") != digest({**body, "sha256": ""}):
        raise DocketError(f"{place}: the registration of {body.get('id')} does not match its digest")


def _check_evidence(docket: Docket, entry: Entry, place: str) -> None:
    launched = {(e.body["experiment"], e.body["launch"]): e for e in docket.of(Kind.LAUNCHED)}
    key = (entry.body.get("experiment"), entry.body.get("launch"))
    if key not in launched:
        raise DocketError(f"{place}: evidence of {key[0]}, launch {key[1]}, which was never launched")
    began = entry.body.get("started_ns")
    if not isinstance(began, int) or began < launched[key].at_ns:
        raise DocketError(
            f"{place}: the evidence began at {began}, before its launch was recorded ({launched[key].at_ns}); "
            "evidence older than its registration is refused"
        )


def _check_verdict(docket: Docket, entry: Entry, place: str) -> None:
    name = entry.body.get("hypothesis")
    registration = _registered(docket).get(str(name))
    if registration is None:
        raise DocketError(f"{place}: a verdict on {name}, which was never registered")
    if any(e.body["hypothesis"] == name for e in docket.of(Kind.VERDICT)):
        raise DocketError(f"{place}: {name} has its verdict already; a verdict never changes")
    if registration.body["hypothesis"]["basis"] == "given":
        return
    experiments = {(e.body["experiment"], e.body["launch"]): e for e in docket.of(Kind.EVIDENCE)}
    if entry.body.get("verdict") != "inconclusive" and not entry.body.get("evidence"):
        raise DocketError(
            f"{place}: {name} is {entry.body.get('verdict')} on no evidence; only inconclusive needs none"
        )
    for used in entry.body.get("evidence") or ():
        found = experiments.get((used["experiment"], used["launch"]))
        if found is None:
            raise DocketError(f"{place}: the verdict on {name} uses evidence that the docket does not hold: {used}")
        if found.body["started_ns"] < registration.at_ns:
            raise DocketError(
                f"{place}: evidence of {used['experiment']} (line {found.line}) is older than the registration of "
                f"{name} (line {registration.line}); register first, then measure"
            )


_RULES = {
    Kind.REGISTERED: _check_registration,
    Kind.EVIDENCE: _check_evidence,
    Kind.VERDICT: _check_verdict,
}
