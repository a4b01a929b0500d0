"""What every part of the view is read from, and where each finding came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from narrows.inquiry import pursuit
from narrows.inquiry.case import Case
from narrows.inquiry.conclusion import Conclusion
from narrows.inquiry.docket import Docket, Kind
from narrows.inquiry.state import State
from narrows.templates import ladder_rows
from narrows.templates.evidence import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What every part of the view is read from."""

    case: Case
    docket: Docket
    state: State
    known: Mapping[str, Record]
    directory: Path
    concluded: Conclusion

    @property
    def pursued(self) -> bool:
        """Whether there is a loss to speak of; a docket that was never opened has none."""
        return bool(self.state.opened) and pursuit.pursued(self.state)

    def finding_source(self, topic: str) -> str:
        """The file that a finding came from."""
        bodies = [entry.body for entry in self.docket.of(Kind.FINDING) if entry.body.get("topic") == topic]
        named = {one.source for one in self.known.values()}
        found = str(bodies[-1].get("file") or "") if bodies else ""
        return found if found in named else ladder_rows.given_source(self.known)
