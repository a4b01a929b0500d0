"""kill -9 of orchestrator, worker and server: no verdict is lost, no run lives on, and all go on where they were."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from narrows.flows import demo
from narrows.flows.client_settings import opener_of
from narrows.flows.local_launcher import LocalLauncher
from narrows.flows.processes import wait_until
from narrows.flows.server import ServerHandle, ensure_server, running_server
from narrows.flows.zombies import SILENCE_VARIABLE
from narrows.inquiry.docket import Docket, Entry, Kind

pytestmark = [pytest.mark.dist, pytest.mark.prefect]

ROOT = Path(__file__).resolve().parents[2]
SILENCE_S = 15.0
GONE_WITHIN_S = SILENCE_S + 45.0
"""The time limit, the server's own interval of looking, and a machine that is busy."""
WAIT_S = 240.0
COMMAND = [sys.executable, "-c", "from narrows.flows.cli import main; main()"]
ALIVE = ["RUNNING", "PENDING", "CANCELLING"]
WHO = ("orchestrator", "server", "worker")


@dataclass(kw_only=True)
class Stage:
    """A small case and a server of its own, whose time limit is short."""

    case_file: Path
    home: Path
    server: ServerHandle
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        return kept | {"NARROWS_HOME": str(self.home), SILENCE_VARIABLE: str(SILENCE_S), "PYTHONUNBUFFERED": "1"}

    def start(self, *words: str, prefect: bool = False) -> subprocess.Popen[bytes]:
        """``narrows WORDS``, or ``prefect WORDS``, running beside the case file."""
        environment = self.environment() | (self.server.client_environment() if prefect else {})
        command = [sys.executable, "-m", "prefect"] if prefect else COMMAND
        with (self.case_file.parent / "said.txt").open("ab") as said:
            process = subprocess.Popen(
                [*command, *words], cwd=ROOT if prefect else self.case_file.parent, env=environment,
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
            )  # fmt: skip
        self.started.append(process)
        return process

    def said(self) -> str:
        return (self.case_file.parent / "said.txt").read_text()

    def entries(self) -> list[Entry]:
        path = self.case_file.parent / "cases" / "killed" / "docket.jsonl"
        return list(Docket.open(path, repair=False).entries) if path.is_file() else []

    def runs(self, types: list[str]) -> list[dict[str, Any]]:
        """The flow runs of narrows on the server that are in one of these states."""
        query = {"flow_runs": {"tags": {"all_": ["narrows"]}, "state": {"type": {"any_": types}}}, "limit": 200}
        request = urllib.request.Request(
            f"{self.server.url}/flow_runs/filter", json.dumps(query).encode(), {"Content-Type": "application/json"}
        )
        with opener_of(self.server.url).open(request, timeout=30) as answer:
            found: list[dict[str, Any]] = json.loads(answer.read())
        return found

    def kill_server(self) -> None:
        """Kills it, and starts it again on its database and its port."""
        assert self.server.folder is not None
        state = json.loads((self.server.folder / "server.json").read_text())
        os.kill(state["pid"], signal.SIGKILL)
        os.waitpid(state["pid"], 0)  # a child of ours: until it is reaped it would count as alive
        self.server = ensure_server(self.home)

    def no_run_lives_on(self) -> None:
        """Every run whose process was killed is marked by the server, without anybody's help, in its time."""
        assert wait_until(lambda: not self.runs(ALIVE), GONE_WITHIN_S), [run["name"] for run in self.runs(ALIVE)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small case with more work in the regressed run, and both of its runs."""
    path = demo.lay_out("more-padding", tmp_path_factory.mktemp("recorded") / "work")
    case = yaml.safe_load(path.read_text())
    case["judge"] |= {"steps": 8, "pairs": 4}
    path.write_text(yaml.safe_dump(case | {"case": "killed"}))
    demo.record(path, LocalLauncher())
    return path


@pytest.fixture
def stage(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    shutil.copytree(recorded.parent, tmp_path / "work")
    home = tmp_path / "home"
    found = Stage(case_file=tmp_path / "work" / recorded.name, home=home, server=ensure_server(home))
    yield found
    for process in found.started:
        if process.poll() is None:
            process.kill()
            process.wait()
    if running_server(home):
        found.server.release()


def _investigate(stage: Stage) -> subprocess.Popen[bytes]:
    return stage.start("investigate", stage.case_file.name, "--yes", *(["--resume"] if stage.entries() else []))


def _reach(stage: Stage, process: subprocess.Popen[bytes], lines: int) -> bool:
    """Waits until the docket has gained ``lines`` lines; whether the process still runs then."""
    before = len(stage.entries())
    wait_until(lambda: len(stage.entries()) >= before + lines or process.poll() is not None, WAIT_S)
    return process.poll() is None


def _kill_once(stage: Stage, who: str, draw: random.Random) -> None:
    """Kills at a moment that is drawn; what the docket held then must be its beginning for ever."""
    if any(entry.kind is Kind.CONCLUDED for entry in stage.entries()):
        _start_over(stage)
    process = _investigate(stage)
    lives = _reach(stage, process, draw.randint(1, 6))
    time.sleep(draw.uniform(0.0, 2.0))
    before = stage.entries()
    if who == "server":
        stage.kill_server()
        # Most calls of Prefect's client wait for the server; one that does not ends the run with a sentence.
        said = f"the Prefect server at {stage.server.url} stopped answering; the docket keeps what was found"
        assert process.wait(WAIT_S) == 0 or (process.returncode == 1 and said in stage.said()), stage.said()
    elif lives:
        process.kill()
        process.wait()
        stage.no_run_lives_on()
    assert [entry.sha256 for entry in stage.entries()][: len(before)] == [entry.sha256 for entry in before]


def _start_over(stage: Stage) -> None:
    folder = stage.case_file.parent / "cases"
    folder.rename(folder.with_name(f"cases-{len(list(folder.parent.glob('cases-*')))}"))


def _finish(stage: Stage) -> None:
    """What is left is done, with each verdict once, and the answer is the one that was planted."""
    if not any(entry.kind is Kind.CONCLUDED for entry in stage.entries()):
        assert _investigate(stage).wait(WAIT_S) == 0, stage.said()
    entries = stage.entries()
    verdicts = [entry.body["hypothesis"] for entry in entries if entry.kind is Kind.VERDICT]
    assert len(verdicts) == len(set(verdicts))
    (concluded,) = [entry for entry in entries if entry.kind is Kind.CONCLUDED]
    assert concluded.body["conclusion"]["mechanism"] == "numerator", concluded.body
    launched = [entry for entry in entries if entry.kind is Kind.LAUNCHED]
    kept = [entry.body["experiment"] for entry in entries if entry.kind is Kind.EVIDENCE]
    assert len(kept) == len(set(kept)) <= len(launched)
    stage.no_run_lives_on()


@pytest.mark.timeout(600)
def test_killed_orchestrator_and_server_lose_no_verdict_and_leave_no_run_behind(stage: Stage) -> None:
    draw = random.Random(3)
    for who in ("orchestrator", "server", "orchestrator"):
        _kill_once(stage, who, draw)
    _finish(stage)


@pytest.mark.timeout(600)
def test_a_work_pool_carries_a_case_out_and_goes_on_with_it_after_its_worker_was_killed(stage: Stage) -> None:
    _deploy(stage)
    worker = _work(stage)
    _kill_worker(stage, worker, random.Random(5))
    _finish_deployed(stage)


@pytest.mark.timeout(600)
def test_a_deployments_run_waits_without_a_process_and_its_cancel_leaves_none(stage: Stage) -> None:
    case = yaml.safe_load(stage.case_file.read_text())
    stage.case_file.write_text(yaml.safe_dump(case | {"budget": {"device_hours": 1, "ask_above_device_hours": 0}}))
    _deploy(stage)
    worker = _work(stage)
    try:
        _run_deployment(stage, approve_all=False)
        assert wait_until(lambda: bool(stage.runs(["PAUSED"])) and not _below(worker.pid), WAIT_S), stage.said()
        assert [one["state"]["name"] for one in stage.runs(["PAUSED"])] == ["Suspended"]
        assert stage.start("approve", "killed", "--reason", "the queue is empty").wait(WAIT_S) == 0, stage.said()

        assert wait_until(lambda: _launched(stage), WAIT_S), stage.said()
        (answered,) = [entry.body for entry in stage.entries() if entry.kind is Kind.ANSWERED]
        assert (answered["decision"], answered["reason"]) == ("approve", "the queue is empty")
        (run,) = [one for one in stage.runs(["RUNNING"]) if one["deployment_id"]]
        assert stage.start("--no-prompt", "flow-run", "cancel", run["id"], prefect=True).wait(WAIT_S) == 0, stage.said()
        assert wait_until(lambda: not stage.runs(ALIVE) and not _below(worker.pid), WAIT_S), stage.said()
    finally:
        worker.terminate()
        worker.wait(60)
    (cancelled,) = [one for one in stage.runs(["CANCELLED"]) if one["deployment_id"]]
    assert cancelled["state"]["name"] == "Cancelled"
    assert stage.runs(["FAILED"]) == []


def _launched(stage: Stage) -> bool:
    entries = stage.entries()
    return bool(entries) and entries[-1].kind is Kind.LAUNCHED


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_twenty_kills_lose_no_verdict_and_leave_no_run_behind(stage: Stage) -> None:
    draw = random.Random(20)
    _deploy(stage)
    for number in range(20):
        who = WHO[draw.randrange(len(WHO))] if number >= len(WHO) else WHO[number]
        if who == "worker":
            if any(entry.kind is Kind.CONCLUDED for entry in stage.entries()):
                _start_over(stage)
            _kill_worker(stage, _work(stage), draw)
        else:
            _kill_once(stage, who, draw)
    _finish(stage)


def _deploy(stage: Stage) -> None:
    for words in (("work-pool", "create", "narrows", "--type", "process"), ("deploy", "--all")):
        assert stage.start("--no-prompt", *words, prefect=True).wait(WAIT_S) == 0, stage.said()


def _work(stage: Stage) -> subprocess.Popen[bytes]:
    return stage.start("worker", "start", "--pool", "narrows", prefect=True)


def _run_deployment(stage: Stage, *, approve_all: bool = True) -> None:
    words = ("deployment", "run", "investigate/investigate", "--param", f"case={stage.case_file}")
    asked = f"approve_all={str(approve_all).lower()}"
    assert stage.start(*words, "--param", asked, prefect=True).wait(WAIT_S) == 0, stage.said()


def _kill_worker(stage: Stage, worker: subprocess.Popen[bytes], draw: random.Random) -> None:
    """Kills the worker and the process of the flow run that it started: as when its machine goes away."""
    before = len(stage.entries())
    _run_deployment(stage)
    lines = before + draw.randint(1, 6)
    assert wait_until(lambda: len(stage.entries()) >= lines or _concluded(stage), WAIT_S), stage.said()
    time.sleep(draw.uniform(0.0, 2.0))
    kept = stage.entries()
    for pid in [worker.pid, *_below(worker.pid)]:
        _kill(pid)
    worker.wait()
    stage.no_run_lives_on()
    assert [entry.sha256 for entry in stage.entries()][: len(kept)] == [entry.sha256 for entry in kept]


def _finish_deployed(stage: Stage) -> None:
    worker = _work(stage)
    if not _concluded(stage):
        _run_deployment(stage)
        assert wait_until(lambda: _concluded(stage), WAIT_S), stage.said()
        assert wait_until(lambda: any(run["state"]["name"] == "Explained" for run in stage.runs(["COMPLETED"])), WAIT_S)
    worker.terminate()
    worker.wait(60)
    _finish(stage)


def _concluded(stage: Stage) -> bool:
    return any(entry.kind is Kind.CONCLUDED for entry in stage.entries())


def _below(pid: int) -> list[int]:
    """All processes that ``pid`` started, and theirs."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it ended meanwhile
            continue
        parents.setdefault(parent, []).append(int(path.parent.name))
    found: list[int] = []
    todo = [pid]
    while todo:
        todo += (below := parents.get(todo.pop(), []))
        found += below
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
