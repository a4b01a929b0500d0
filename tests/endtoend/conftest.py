"""The command line as a user runs it, and the audit that every investigation must pass whatever it found."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from narrows.flows.processes import MARK, marked_pids, send, wait_until
from narrows.inquiry.docket import Docket, Kind
from narrows.inquiry.errors import RunDirectoryError
from narrows.inquiry.state import State
from narrows.inquiry.verdict import Verdict
from narrows.reducers.ledger import build_ledger
from narrows.reducers.rundir import read_run

PROGRAM = Path(sys.executable).with_name("narrows")
GONE_WITHIN_S = 60.0
"""Ranks of a killed torchrun end when they notice; on a loaded machine that takes a while."""
_LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A command that is over."""

    code: int
    out: str
    err: str
    seconds: float


@dataclass(kw_only=True)
class Cli:
    """The installed ``narrows``, in a folder of its own. All that it starts bears ``mark``."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        return {**kept, MARK: self.mark, "PYTHONUNBUFFERED": "1"}

    def start(self, *words: str | Path, out: Path | None = None) -> subprocess.Popen[str]:
        """The command, running; ``out`` takes its standard output."""
        stream = out.open("w", encoding="utf-8") if out else subprocess.PIPE
        try:
            return subprocess.Popen(
                [str(PROGRAM), *map(str, words)], cwd=self.folder, env=self.environment(), stdin=subprocess.DEVNULL,
                stdout=stream, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        finally:
            if not isinstance(stream, int):
                stream.close()

    def __call__(self, *words: str | Path, timeout_s: float = 540) -> Finished:
        """The command, run to its end."""
        began = time.monotonic()
        process = self.start(*words)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"narrows {' '.join(map(str, words))} did not end in {timeout_s:.0f} s:\n{out}\n{err}")
        return Finished(code=process.returncode, out=out, err=err, seconds=time.monotonic() - began)

    def left(self) -> list[int]:
        """The processes of this test that still run."""
        return marked_pids(self.mark)

    def leaves_nothing(self) -> None:
        assert wait_until(lambda: not self.left(), GONE_WITHIN_S), _described(self.left())
        assert not _naming(self.folder), _naming(self.folder)


def _described(pids: list[int]) -> list[str]:
    return [f"{pid}: {_command(pid)}" for pid in pids]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:  # ended meanwhile
        return ""


def _naming(folder: Path) -> list[str]:
    """Processes whose command names a path of the test; its own are those that run the test."""
    found = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    ours = {os.getpid(), os.getppid()}
    return [f"{pid}: {_command(pid)}" for pid in found if pid not in ours and f"{folder}/" in _command(pid)]


@dataclass(frozen=True, kw_only=True)
class Investigated:
    """An investigation that is over: what it printed, what ``narrows show --json`` says, its docket."""

    finished: Finished
    report: dict[str, Any]
    docket: Docket
    state: State
    directory: Path

    @property
    def conclusion(self) -> dict[str, Any]:
        found: dict[str, Any] = self.report["conclusion"]
        return found

    def verdict(self, key: str) -> str | None:
        found = self.state.verdict(key)
        return found.value if found else None

    def verdicts(self) -> dict[str, str | None]:
        """All of them, by the hypothesis' key."""
        return {key: self.verdict(key) for key in self.state.ids}

    @property
    def launched(self) -> list[str]:
        """The experiments that were launched, in order."""
        return [str(entry.body["experiment"]) for entry in self.docket.of(Kind.LAUNCHED)]

    def told(self) -> str:
        """What a failing test should show: the whole investigation in words."""
        rows = []
        for one in self.state.registrations.values():
            found = self.state.judgements.get(one.id)
            said = f"{found.verdict.value}: {found.reason}" if found else "open"
            rows.append(f"{one.id} {one.hypothesis.key}: {said}")
        reading = self.state.reconciliation.get("sentence", "")
        return "\n".join([json.dumps(self.conclusion, indent=1), reading, *rows, *self._failures()])

    def _failures(self) -> list[str]:
        return [f"could not run: {entry.body}" for entry in self.docket.of(Kind.FAILED)]


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    """The command line in ``tmp_path``; what a failing test leaves running is ended."""
    command = Cli(folder=tmp_path)
    yield command
    send(command.left(), 9)  # type: ignore[arg-type]


@pytest.fixture
def investigated(cli: Cli) -> Callable[[Path, Finished], Investigated]:
    """``investigated(case_file, finished)``: the outcome, audited (see :func:`audit`)."""

    def read(case_file: Path, finished: Finished) -> Investigated:
        shown = cli("show", case_file, "--json")
        assert shown.code == 0, shown.err
        report = json.loads(shown.out)
        directory = case_file.parent / "cases" / report["case"]
        docket = Docket.open(directory / "docket.jsonl", repair=False)
        found = Investigated(
            finished=finished, report=report, docket=docket, state=State.of(docket), directory=directory
        )
        audit(found, case_file, cli.folder)
        cli.leaves_nothing()
        return found

    return read


def audit(one: Investigated, case_file: Path, cwd: Path) -> None:
    """What must hold for every investigation, whatever it found. ``cwd`` is where its command ran."""
    assert one.docket.torn == 0
    assert one.report["status"] == "concluded", one.told()
    assert {row["id"]: row["verdict"] for row in one.report["hypotheses"]} == {
        number: found.verdict.value for number, found in one.state.judgements.items()
    }, one.told()
    _check_registered_first(one.docket)
    assert _check_ledgers(case_file.parent, _unfinished(one)) >= 2
    _check_postmortem(one, cwd)


def _check_registered_first(docket: Docket) -> None:
    registered = {entry.body["id"]: entry for entry in docket.of(Kind.REGISTERED)}
    evidence = {(entry.body["experiment"], entry.body["launch"]): entry for entry in docket.of(Kind.EVIDENCE)}
    launched = {(entry.body["experiment"], entry.body["launch"]): entry for entry in docket.of(Kind.LAUNCHED)}
    used = 0
    for verdict in docket.of(Kind.VERDICT):
        registration = registered[verdict.body["hypothesis"]]
        assert registration.line < verdict.line
        for place in verdict.body.get("evidence") or ():
            key = (place["experiment"], place["launch"])
            assert evidence[key].line > launched[key].line > registration.line
            assert evidence[key].body["started_ns"] >= launched[key].at_ns > registration.at_ns
            used += 1
    assert used >= len(evidence)  # nothing was measured for nothing


def _unfinished(one: Investigated) -> list[Path]:
    """The folders of launches that were killed before their evidence was taken."""
    kept = {(entry.body["experiment"], entry.body["launch"]) for entry in one.docket.of(Kind.EVIDENCE)}
    return [
        one.directory / entry.body["folder"]
        for entry in one.docket.of(Kind.LAUNCHED)
        if (entry.body["experiment"], entry.body["launch"]) not in kept
    ]


def _check_ledgers(folder: Path, unfinished: list[Path]) -> int:
    """How many run directories below ``folder`` hold steps; in each, every step's accounts add up exactly.

    What a killed launch wrote adds up as well, or is refused.
    """
    count = 0
    for path in sorted(manifest.parent for manifest in folder.rglob("manifest.json")):
        try:
            count += _adds_up(path)
        except RunDirectoryError:
            if not any(path.is_relative_to(killed) for killed in unfinished):
                raise
    return count


def _adds_up(path: Path) -> bool:
    """Whether the run has steps; those that it has add up."""
    run = read_run(path)
    if not any(len(records.steps) for records in run.ranks.values()):
        return False  # a message-size sweep has no steps
    ledger = build_ledger(run)
    sums = ledger.account_ns_RSA.sum(axis=2)
    length = ledger.end_ns_RS - ledger.start_ns_RS
    assert (sums[ledger.present_RS] == length[ledger.present_RS]).all(), path
    assert (ledger.account_ns_RSA >= 0).all(), path
    assert ledger.present_RS.any(axis=0).all(), path
    return True


def _check_postmortem(one: Investigated, cwd: Path) -> None:
    path = one.directory / "postmortem.md"
    text = path.read_text(encoding="utf-8")
    for found in _LINK.finditer(text):
        link = (found.group(1) or found.group(2)).partition("#")[0]
        if link and not link.startswith(("http:", "https:", "data:", "mailto:")):
            assert (path.parent / link).exists(), f"{path}: {link} leads nowhere"
    named = re.search(r"^postmortem +(\S+)$", one.finished.out, re.MULTILINE)
    assert named, one.finished.out[-2000:]
    assert (cwd / named.group(1)).resolve() == path.resolve()


@pytest.fixture
def write_case(tmp_path: Path) -> Callable[..., Path]:
    """``write_case(name, workload, **sections)``: a case file of one's own on the emulated accelerator."""

    def write(name: str, workload: dict[str, Any], **sections: dict[str, Any]) -> Path:
        case = {
            "case": name,
            "question": "The step got slower; what became of it?",
            "runs": {"healthy": "runs/healthy", "regressed": "runs/regressed"},
            "workload": {"program": "step", **workload},
            "cluster": {"nodes": 2, "ranks_per_node": 2, **sections.get("cluster", {})},
            "budget": {"device_hours": 9, "ask_above_device_hours": 9},
            "judge": {"margin_percent": 3, "statistic": "low50", **sections.get("judge", {})},
        }
        path = tmp_path / "case.yaml"
        path.write_text(yaml.safe_dump(case, sort_keys=False), encoding="utf-8")
        return path

    return write


@pytest.fixture
def recorded() -> Callable[[Path], Path]:
    """Records both arms of a case at full scale, in turns, as ``narrows demo`` does; returns the case file."""

    def record(case_file: Path) -> Path:
        from narrows.flows import demo
        from narrows.flows.local_launcher import LocalLauncher

        demo.record(case_file, LocalLauncher())
        return case_file

    return record


@pytest.fixture
def decided() -> Callable[[Investigated], dict[str, str | None]]:
    """The verdicts that are not inconclusive, by key."""

    def select(one: Investigated) -> dict[str, str | None]:
        return {key: value for key, value in one.verdicts().items() if value != Verdict.INCONCLUSIVE.value}

    return select
