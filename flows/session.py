"""An open case: its folder, its docket, and how to talk to whoever runs it."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from narrows.flows.approval import Answer
from narrows.flows.casefile import load_case
from narrows.flows.launching import Launcher
from narrows.inquiry.accounts import ACCOUNTS
from narrows.inquiry.case import Case
from narrows.inquiry.codec import plain
from narrows.inquiry.docket import Docket, Kind
from narrows.inquiry.errors import CaseError, in_words
from narrows.inquiry.hypotheses import ANALYSIS_VERSION
from narrows.inquiry.state import State
from narrows.inquiry.steps import Ask
from narrows.reducers.evidence import ArmRuns, build_evidence
from narrows.reducers.scaling import Link

PRESENT_SHARE = 0.002
"""An account that takes less than this share of the step in both arms is not worth a hypothesis of its own."""

BYTES_PER_US = 125.0
"""Of a link of 1 Gbit/s."""

Say = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class Session:
    """Everything that carrying out a step needs. ``directory`` is the case's folder beside the case file."""

    case: Case
    directory: Path
    docket: Docket
    launcher: Launcher
    say: Say = print
    ask: Callable[[Ask], Answer] | None = None
    cancelled: Callable[[], bool] | None = None
    show_line: Say | None = None
    cache: dict[str, dict[str, Any]] = field(default_factory=dict)
    waits: threading.Event = field(default_factory=threading.Event)
    """Set while an experiment runs, or a person is asked, and this process has nothing else to do."""

    @property
    def state(self) -> State:
        return State.of(self.docket)

    @property
    def base(self) -> Path:
        """The folder of the case file."""
        return self.directory.parent.parent

    @property
    def postmortem(self) -> Path:
        return self.directory / "postmortem.md"

    def note(self, kind: Kind, body: dict[str, Any]) -> None:
        """Appends to the docket, now."""
        self.docket.append(kind, body, time.time_ns())

    def write_json(self, place: str, value: Any) -> Path:
        """Writes ``value`` under the case's folder, whole or not at all, and returns the path."""
        path = self.directory / place
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        text = json.dumps(plain(value), allow_nan=False)  # with indent= it would take ten times as long
        partial.write_text(msgspec.json.format(text, indent=1) + "\n", encoding="utf-8")
        partial.replace(path)
        return path

    def evidence(self, name: str) -> dict[str, Any]:
        """The evidence file of an experiment, or of the ``given`` runs. Raises ``CaseError`` when it is gone."""
        if name not in self.cache:
            path = self.directory / "evidence" / f"{name}.json"
            try:
                self.cache[name] = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise CaseError(
                    f"{path}: the evidence cannot be read ({in_words(error)}); restore it, or start with --fresh"
                ) from None
        return self.cache[name]

    def all_evidence(self) -> dict[str, dict[str, Any]]:
        """Every evidence file of the case by name."""
        folder = self.directory / "evidence"
        return {path.stem: self.evidence(path.stem) for path in sorted(folder.glob("*.json"))}


def case_directory(case_file: Path, name: str) -> Path:
    """Where a case is kept: ``cases/NAME`` beside its file."""
    return case_file.resolve().parent / "cases" / name


def open_session(
    case_file: Path, launcher: Launcher, *, resume: bool = False, fresh: bool = False, exclusive: bool = True
) -> Session:
    """The case opened: its runs read, its docket started or checked. Raises ``NarrowsError``; launches nothing.

    ``resume`` continues a docket that is there; ``fresh`` moves it aside first (nothing is deleted). Only one process
    may hold a case; ``exclusive`` false is for looking at it, and writes nothing.
    """
    case = load_case(case_file)
    directory = case_directory(case_file, case.name)
    begun = (directory / "docket.jsonl").is_file() and not fresh
    if not begun and not exclusive:
        raise CaseError(f"{case.name}: is not begun yet; `narrows investigate {case_file}` begins it")
    evidence = None if begun else read_given(case, case_file.resolve().parent)  # before anything is written
    if exclusive:
        _hold(directory)
    if fresh:
        _set_aside(directory)
    docket = Docket.open(directory / "docket.jsonl", repair=exclusive)
    session = Session(case=case, directory=directory, docket=docket, launcher=launcher)
    if len(docket) == 0:
        begin(session, evidence or read_given(case, case_file.resolve().parent))
        return session
    _check_same(session, resume=resume)
    return session


_HELD: dict[Path, int] = {}
"""Locks of this process by case folder. The kernel lets go of them when the process ends, however it ends."""


def _hold(directory: Path) -> None:
    """Raises ``CaseError`` when another process is investigating the case."""
    if directory in _HELD:
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory.with_name(f".{directory.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise CaseError(
            f"{directory.name}: another process is investigating it; wait for that, or cancel it on its Prefect page"
        ) from None
    _HELD[directory] = descriptor


def _set_aside(directory: Path) -> None:
    if not directory.exists():
        return
    number = 1
    while (aside := directory.with_name(f"{directory.name}.{number}")).exists():
        number += 1
    directory.rename(aside)


def _check_same(session: Session, *, resume: bool) -> None:
    docket, case = session.docket, session.case
    opened = docket.entries[0]
    if opened.kind is not Kind.OPENED:
        raise CaseError(f"{docket.where}, line 1: is {opened.kind.value!r}; expected 'opened'. Restore the file")
    if opened.body["case_digest"] != case.digest():
        raise CaseError(
            f"{case.name}: the case file changed since {session.directory} was begun; its registrations hold for the "
            "earlier text. Put it back, or start over with --fresh (the earlier investigation is kept beside it)"
        )
    done = State.of(docket).concluded is not None
    if not resume:
        what = "is concluded already" if done else "was begun already"
        more = "`narrows show` prints it" if done else "continue it with --resume"
        raise CaseError(f"{case.name}: {session.directory} {what}; {more}, or start over with --fresh")


def arm_runs(case: Case, base: Path) -> tuple[ArmRuns, ArmRuns]:
    """The given runs; paths in a case file are relative to ``base``, the file's folder."""
    return tuple(  # type: ignore[return-value]  # exactly two
        ArmRuns(name=arm, paths=tuple(base / one for one in case.runs[arm])) for arm in ("healthy", "regressed")
    )


def read_given(case: Case, base: Path) -> dict[str, Any]:
    """The evidence of the given runs. Raises ``NarrowsError`` for runs that cannot be read, or of another cluster."""
    statistic = case.judging.statistic
    stated = case.cluster.link
    link = None if stated is None else Link(alpha_us=stated.alpha_us, bytes_per_us=stated.gbit * BYTES_PER_US)
    evidence = build_evidence("given", arm_runs(case, base), statistic=statistic, mode="given", replay=True, link=link)
    _check_shape(case, evidence)
    return evidence


def begin(session: Session, evidence: dict[str, Any]) -> None:
    """Opens the docket with what the given runs hold."""
    case = session.case
    path = session.write_json("evidence/given.json", evidence)
    healthy = float(evidence["arms"]["healthy"]["step_ms"])
    session.note(
        Kind.OPENED,
        {
            "case": case.name,
            "question": case.question,
            "case_digest": case.digest(),
            "case_text": plain(case),
            "analysis_version": ANALYSIS_VERSION,
            "runs": {arm: evidence["arms"][arm]["runs"] for arm in ("healthy", "regressed")},
            "file": str(path.relative_to(session.directory)),
            "pairs": evidence["pairs"],
            "healthy_step_ms": healthy,
            "margin_ms": healthy * case.judging.margin_percent / 100,
            "accounts": _present(evidence),
            "emulated": evidence["emulated"],
            "run_s": _run_seconds(evidence),
        },
    )


def _check_shape(case: Case, evidence: dict[str, Any]) -> None:
    """Raises ``CaseError`` when a run was not recorded on what the case calls its full scale."""
    for arm, one in evidence["arms"].items():
        ranks = len(one["ranks"])
        if ranks != case.world_size:
            cluster = case.cluster
            raise CaseError(
                f"{case.name}: the {arm} run has {ranks} ranks, and the cluster {cluster.nodes} nodes of "
                f"{cluster.ranks_per_node}; give cluster.nodes and cluster.ranks_per_node as the runs had them"
            )
    if case.workload.builtin and evidence["device"] not in (None, case.cluster.device):
        raise CaseError(
            f"{case.name}: the runs were made on device {evidence['device']}, and cluster.device is "
            f"{case.cluster.device}; give cluster.device as the runs had it"
        )


def _run_seconds(evidence: dict[str, Any]) -> float:
    """How long one run took on average, from its first step to its last."""
    units = [unit for arm in evidence["arms"].values() for unit in arm["units"]]
    return float(sum(unit["ended_ns"] - unit["started_ns"] for unit in units) / len(units) / 1e9)


def _present(evidence: dict[str, Any]) -> list[str]:
    """Accounts that take time in either arm, in any view, looked up without comparing the arms."""
    found = []
    for account in ACCOUNTS:
        largest = max(
            accounts.get(account.value, 0.0) / max(arm["step_ms"], 1e-9)
            for arm in evidence["arms"].values()
            for accounts in arm["accounts"].values()
        )
        if largest >= PRESENT_SHARE:
            found.append(account.value)
    return found
