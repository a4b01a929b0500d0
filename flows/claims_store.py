"""The folder of claims: those in force, those proposed, and what revalidations found of each.

::

    claims/NAME.yaml             in force; a person put it there
    claims/NAME.yaml.proposed    proposed by a closed case
    claims/history/NAME.jsonl    one line a revalidation, oldest first
    claims/settings.yaml         whom to tell
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from narrows.flows.claims_file import load_claim
from narrows.inquiry.claim import Claim, Outcome
from narrows.inquiry.codec import SCHEMA, canonical
from narrows.inquiry.errors import CaseError

SETTINGS = "settings"
_CONFIRMED = re.compile(r"^confirmed:[ \t]*[^\s#]+", re.MULTILINE)  # a comment behind it keeps its blank


@dataclass(frozen=True, slots=True)
class ClaimStore:
    """The claims in ``folder``, a workspace's ``claims``."""

    folder: Path

    @property
    def workspace(self) -> Path:
        return self.folder.resolve().parent

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.yaml"

    def proposal(self, name: str) -> Path:
        return self.folder / f"{name}.yaml.proposed"

    def names(self) -> tuple[str, ...]:
        """The claims in force, by name."""
        return tuple(sorted(path.stem for path in self.folder.glob("*.yaml") if path.stem != SETTINGS))

    def proposed(self) -> tuple[str, ...]:
        return tuple(sorted(path.name.removesuffix(".yaml.proposed") for path in self.folder.glob("*.yaml.proposed")))

    def load(self, name: str) -> Claim:
        """The claim in force. Raises ``CaseError`` for an unknown name, or a file with problems."""
        if name not in self.names():
            waiting = "; it is proposed: `narrows claims accept` puts it in force" if name in self.proposed() else ""
            known = ", ".join(self.names()) or "none"
            raise CaseError(f"{name}: no claim of this name is in force in {self.folder}{waiting} (in force: {known})")
        return load_claim(self.path(name))

    def accept(self, name: str) -> Claim:
        """Puts a proposal in force, in place of an earlier claim of its name. Raises ``CaseError``."""
        if name not in self.proposed():
            waiting = ", ".join(self.proposed()) or "nothing"
            raise CaseError(f"{name}: nothing of this name is proposed in {self.folder}; proposed: {waiting}")
        if name == SETTINGS:
            raise CaseError(f"{name}: is the name of the settings' file; give the claim, and its file, another one")
        claim = load_claim(self.proposal(name))
        self.proposal(name).replace(self.path(name))
        return claim

    def histories(self) -> tuple[Path, ...]:
        """The files of the claims that were ever run again, by name."""
        return tuple(sorted((self.folder / "history").glob("*.jsonl")))

    def history(self, name: str) -> list[dict[str, Any]]:
        """What revalidations found of the claim, oldest first; a torn last line is left out.

        Raises ``CaseError`` for a line that is no record.
        """
        path = self.folder / "history" / f"{name}.jsonl"
        if not path.is_file():
            return []
        whole, _, _ = path.read_text(encoding="utf-8", errors="replace").rpartition("\n")
        return [_entry(path, number, line) for number, line in enumerate(whole.splitlines(), start=1)]

    def record(self, name: str, entry: dict[str, Any]) -> None:
        """Appends one revalidation to the history, on disk before this returns."""
        path = self.folder / "history" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():  # a writer that was killed may have left half a line
            whole = path.read_bytes().rpartition(b"\n")
            os.truncate(path, len(whole[0]) + len(whole[1]))
        with path.open("ab") as file:
            file.write(canonical({"schema": SCHEMA, **entry}) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def confirm(self, name: str, day: str) -> None:
        """Writes the day of the last confirmation into the claim's file; nothing else of it changes."""
        path = self.path(name)
        text = path.read_text(encoding="utf-8")
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text(_CONFIRMED.sub(f"confirmed: {day}", text, count=1), encoding="utf-8")
        partial.replace(path)

    def confirmed_values(self, claim: Claim) -> dict[str, tuple[str, ...]]:
        """The values of each field under which the claim was confirmed: its file's, and those of runs that held."""
        found = {one.field: list(one.confirmed) for one in claim.depends_on}
        for entry in self.history(claim.name):
            if entry["outcome"] == Outcome.HOLDS.value and entry.get("claim") == claim.digest():
                for field, values in entry["fields"].items():
                    known = found.setdefault(field, [])
                    known += [value for value in values if value not in known]
        return {field: tuple(values) for field, values in found.items()}

    @contextmanager
    def held(self) -> Iterator[None]:
        """Only one process at a time may run claims again. Raises ``CaseError`` when another one does."""
        import fcntl

        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CaseError(f"{self.folder}: another process is revalidating these claims; wait for it") from None
            yield


def _entry(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not {"outcome", "day", "claim"} <= value.keys():
        raise CaseError(f"{path}, line {number}: is no record of a revalidation; restore the file, or delete the line")
    return value


def store_at(folder: Path | None) -> ClaimStore:
    """The claims of ``folder``: given, else NARROWS_CLAIMS, else ./claims. Raises ``CaseError`` where it is missing."""
    chosen = folder or Path(os.environ.get("NARROWS_CLAIMS") or "claims")
    if not chosen.is_dir():
        raise CaseError(
            f"{chosen}: there is no such folder of claims; an investigation that explains a loss proposes one in "
            "claims/ beside its case file (or give --claims)"
        )
    return ClaimStore(chosen)
