"""The investigation as Prefect flow runs: real launches of a small case, seen through the server's API."""

from __future__ import annotations

import ast
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from narrows.flows import commands, demo
from narrows.flows.cancelling import CancelledRunError
from narrows.flows.launching import LaunchCancelledError
from narrows.flows.local_launcher import LocalLauncher
from narrows.flows.postmortem import for_page
from narrows.flows.processes import wait_until
from narrows.flows.server import ServerHandle
from narrows.flows.session import Session, open_session
from narrows.inquiry.docket import Docket, Kind
from narrows.inquiry.scopes import Rung
from narrows.inquiry.steps import StopReason
from narrows.inquiry.verdict import Verdict

ROOT = Path(__file__).resolve().parents[2]
LABELS = [rung.label for rung in Rung]
PATIENCE_S = 90.0

pytestmark = [pytest.mark.prefect, pytest.mark.dist, pytest.mark.timeout(300)]
Background = Callable[[Callable[[], None]], object]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small case and both of its runs, recorded by a real launch."""
    folder = tmp_path_factory.mktemp("recorded") / "case"
    case_file = demo.lay_out("more-padding", folder)
    case = yaml.safe_load(case_file.read_text())
    case["judge"] |= {"steps": 8, "pairs": 4}
    case_file.write_text(yaml.safe_dump(case))
    demo.record(case_file, LocalLauncher())
    return folder


@pytest.fixture
def case_file(
    recorded: Path, tmp_path: Path, narrows_server: ServerHandle, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A copy of the recorded case under a name of its own, in a folder of its own."""
    folder = tmp_path / "work"
    shutil.copytree(recorded, folder)
    assert narrows_server.folder is not None
    monkeypatch.setenv("NARROWS_HOME", str(narrows_server.folder.parent))
    path = folder / "case.yaml"
    change(path, case=f"case-{abs(hash(tmp_path)) % 10**8}")
    yield path
    assert processes_about(folder) == []


def change(case_file: Path, **keys: Any) -> None:
    case_file.write_text(yaml.safe_dump(yaml.safe_load(case_file.read_text()) | keys))


def opened(case_file: Path, **given: Any) -> Session:
    session = open_session(case_file, LocalLauncher(), **given)
    session.say = lambda _text: None
    return session


def climb(session: Session, case_file: Path, server: ServerHandle) -> StopReason:
    from narrows.flows.followed import run_on_board

    return run_on_board(session, case_file, None, server).reason


def processes_about(folder: Path) -> list[str]:
    """The command lines of the other processes that were told of ``folder``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it ended meanwhile
            continue
        if str(folder) in line and int(path.parent.name) != os.getpid():
            found.append(line)
    return found


def runs_of(session: Session) -> tuple[list[Any], list[Any]]:
    """The root runs and the rungs of a case, oldest first."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter

    mine = FlowRunFilter.model_validate({"tags": {"all_": [f"case:{session.case.name}"]}})
    with get_client(sync_client=True) as client:
        found = sorted(client.read_flow_runs(flow_run_filter=mine), key=lambda run: run.created)
    roots = [run for run in found if run.parent_task_run_id is None]
    return roots, [run for run in found if run.parent_task_run_id is not None]


def task_states(runs: list[Any]) -> dict[str, str]:
    """The state's name of each task of these flow runs by the task's name."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter

    mine = FlowRunFilter.model_validate({"id": {"any_": [str(run.id) for run in runs]}})
    with get_client(sync_client=True) as client:
        found = client.read_task_runs(flow_run_filter=mine)
    assert [run.tags for run in found if run.tags] == []  # a tag costs each of them a request before it begins
    return {run.name: run.state.name for run in found if run.state is not None}


def artifacts_of(run: Any) -> dict[str, str]:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter

    mine = ArtifactFilter.model_validate({"flow_run_id": {"any_": [str(run.id)]}})
    with get_client(sync_client=True) as client:
        return {str(one.key): str(one.data) for one in client.read_artifacts(artifact_filter=mine)}


def board_of(session: Session) -> str:
    """The board as it is now; nothing before the run has one."""
    roots, _ = runs_of(session)
    return artifacts_of(roots[0]).get(f"board-{session.case.name}", "") if roots else ""


def docket_of(case_file: Path) -> Docket:
    (folder,) = (case_file.parent / "cases").glob("*/docket.jsonl")
    return Docket.open(folder)


def has_launched(case_file: Path) -> bool:
    """Whether the docket on disk says so; it may be in the middle of a line."""
    return any('"launched"' in path.read_text() for path in (case_file.parent / "cases").glob("*/docket.jsonl"))


def test_a_run_shows_ten_rungs_every_hypothesis_the_board_and_the_report(
    case_file: Path, narrows_server: ServerHandle
) -> None:
    session = opened(case_file)
    assert climb(session, case_file, narrows_server) is StopReason.EXPLAINED
    name = session.case.name

    (root,), rungs = runs_of(session)
    assert (root.state.name, root.state.type.value) == ("Explained", "COMPLETED")
    assert root.name == f"investigate {name}: EXPLAINED"
    assert {f"case:{name}", "verdict:explained"} <= set(root.tags)
    assert root.parameters == {"case": str(case_file), "approve_all": False, "until": None}

    assert [run.name.rpartition(": ")[0] for run in rungs] == LABELS
    words = {run.name.partition(".")[0]: run.state.name for run in rungs}
    assert words == dict.fromkeys(words, "Skipped") | dict.fromkeys(("1", "2", "7", "10"), "Supported")
    for run in rungs:
        assert run.name.endswith(f": {run.state.name.upper()}")
        assert f"verdict:{run.state.name.lower()}" in run.tags
        assert run.state.type.value == "COMPLETED"

    state = session.state
    wanted = {
        f"{number} {found.verdict.value.upper()}: {state.registrations[number].hypothesis.claim}": (
            found.verdict.value.capitalize()
        )
        for number, found in state.judgements.items()
    }
    assert {"Supported", "Rejected"} <= set(wanted.values())
    # The server notes task runs behind the client's back.
    assert wait_until(lambda: wanted.items() <= task_states(rungs).items(), PATIENCE_S), task_states(rungs)
    assert {name: state for name, state in task_states(rungs).items() if name not in wanted} == {
        "one_rank-regressed launch 1": "Completed"
    }

    pages = artifacts_of(root)
    assert set(pages) == {f"board-{name}", f"postmortem-{name}"}
    for number, found in state.judgements.items():
        assert f"**{found.verdict.value}** | {number} " in pages[f"board-{name}"]
    assert "](data:image/png;base64," in pages[f"postmortem-{name}"]
    (first, *_) = rungs
    declared = artifacts_of(first)[f"registered-{name}-1"]
    assert all(f"`{one.sha256[:12]}`" in declared for one in list(state.registrations.values())[:5])


def test_a_launch_above_the_ask_line_waits_and_goes_on_once_it_is_approved(
    case_file: Path, narrows_server: ServerHandle, in_background: Background, capsys: pytest.CaptureFixture[str]
) -> None:
    change(case_file, budget={"device_hours": 1, "ask_above_device_hours": 0})
    session = opened(case_file)
    seen: list[str] = []

    def approve() -> None:
        assert wait_until(lambda: waits(session), PATIENCE_S)
        seen.append(runs_of(session)[0][0].state.name)
        commands.approve(
            session.case.name, decision="approve", reason="the queue is empty", by="the operator", as_json=False
        )

    in_background(approve)
    assert climb(session, case_file, narrows_server) is StopReason.EXPLAINED
    assert seen == ["Paused"]
    (answered,) = docket_of(case_file).of(Kind.ANSWERED)
    said = {key: answered.body[key] for key in ("decision", "by", "reason")}
    assert said == {"decision": "approve", "by": "the operator", "reason": "the queue is empty"}
    assert "the queue is empty" in session.postmortem.read_text()
    rungs = [run.name for run in runs_of(session)[1]]
    assert rungs[:2] == ["1. manifest diff: SUPPORTED"] * 2  # before the question, and after it


def waits(session: Session) -> bool:
    from narrows.flows.approval import waiting_runs

    return any(one.name == f"investigate {session.case.name}" for one in waiting_runs())


def test_a_declined_launch_leaves_its_hypothesis_inconclusive_and_the_ladder_goes_on(
    case_file: Path, narrows_server: ServerHandle, in_background: Background
) -> None:
    change(case_file, budget={"device_hours": 1, "ask_above_device_hours": 0})
    session = opened(case_file)

    over = threading.Event()

    def decline() -> None:  # the larger scopes ask as well
        while wait_until(lambda: over.is_set() or waits(session), PATIENCE_S) and not over.is_set():
            commands.approve(session.case.name, decision="skip", reason="not tonight", by="the operator", as_json=False)

    in_background(decline)
    try:
        assert climb(session, case_file, narrows_server) is StopReason.NOT_REPRODUCED
    finally:
        over.set()
    state = session.state
    proof = state.judgement("scope:one_rank")
    assert proof is not None
    assert proof.verdict is Verdict.INCONCLUSIVE
    assert state.launches == {}
    (root,), rungs = runs_of(session)
    assert root.state.type.value == "COMPLETED"
    assert rungs[-1].name.startswith(LABELS[-1])


def test_a_cancelled_run_leaves_no_process_and_the_case_can_be_resumed(
    case_file: Path, narrows_server: ServerHandle, in_background: Background
) -> None:
    from prefect.client.orchestration import get_client
    from prefect.states import Cancelling

    session = opened(case_file)

    def cancel() -> None:
        assert wait_until(lambda: bool(processes_about(case_file.parent)), PATIENCE_S)
        assert wait_until(lambda: "**running**" in board_of(session), PATIENCE_S)
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(runs_of(session)[0][0].id, Cancelling())

    in_background(cancel)
    with pytest.raises((LaunchCancelledError, CancelledRunError), match="cancelled"):
        climb(session, case_file, narrows_server)
    assert processes_about(case_file.parent) == []
    (root,), rungs = runs_of(session)
    assert root.state.name == "Cancelled"
    assert {run.state.name for run in rungs} <= {"Cancelled", "Supported"}

    again = opened(case_file, resume=True)
    assert climb(again, case_file, narrows_server) is StopReason.EXPLAINED
    (_, second), rungs = runs_of(again)
    assert second.state.name == "Explained"
    assert [run.name.rpartition(": ")[0] for run in rungs][-10:] == LABELS


@pytest.mark.parametrize("asked", [False, True], ids=["while a launch runs", "while a person is asked"])
def test_ctrl_c_ends_the_command_and_its_run_at_once(case_file: Path, tmp_path: Path, asked: bool) -> None:
    if asked:
        change(case_file, budget={"device_hours": 1, "ask_above_device_hours": 0})
    said = tmp_path / "said.txt"
    with said.open("w") as stream:
        command = subprocess.Popen(
            [sys.executable, "-c", "from narrows.flows.cli import main; main()", "investigate", case_file.name],
            cwd=case_file.parent, stdout=stream, stderr=stream, start_new_session=True,
        )  # fmt: skip
    try:
        word = "waiting for approval" if asked else "follow it at"
        assert wait_until(lambda: word in said.read_text(), PATIENCE_S), said.read_text()
        command.send_signal(signal.SIGINT)
        assert command.wait(PATIENCE_S) == 130
    finally:
        command.kill()
        command.wait()
    last = said.read_text().splitlines()[-1]
    assert last == f"narrows: interrupted; `narrows investigate {case_file.name} --resume` goes on from here"
    assert processes_about(case_file.parent) == []
    roots, rungs = runs_of(opened(case_file, resume=True))
    assert [run.state.name for run in roots] == ["Crashed"]
    assert "Running" not in {run.state.name for run in rungs}


def test_runs_that_a_killed_process_left_are_marked_as_crashed_when_the_case_is_resumed(
    case_file: Path, narrows_server: ServerHandle, tmp_path: Path
) -> None:
    with (tmp_path / "said.txt").open("w") as said:
        first = subprocess.Popen(
            [sys.executable, "-c", "from narrows.flows.cli import main; main()", "investigate", case_file.name],
            cwd=case_file.parent, stdout=said, stderr=said, start_new_session=True,
        )  # fmt: skip
    try:
        assert wait_until(lambda: "follow it at" in (tmp_path / "said.txt").read_text(), PATIENCE_S)
        assert has_launched(case_file)  # only then has the page its turn
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert wait_until(lambda: processes_about(case_file.parent) == [], PATIENCE_S)

    session = opened(case_file, resume=True)
    dead = [run for runs in runs_of(session) for run in runs]
    assert "Running" in {run.state.name for run in dead}
    said_now: list[str] = []
    session.say = said_now.append
    assert climb(session, case_file, narrows_server) is StopReason.EXPLAINED
    (old, new), _ = runs_of(session)
    assert (old.state.name, new.state.name) == ("Crashed", "Explained")
    assert any("marked as crashed" in line for line in said_now)
    assert "Running" not in {run.state.name for runs in runs_of(session) for run in runs}


def test_another_case_of_the_same_name_on_the_same_server_is_left_alone(
    case_file: Path, narrows_server: ServerHandle
) -> None:
    from prefect import flow, tags
    from prefect.client.orchestration import get_client
    from prefect.runtime import flow_run

    from narrows.flows.dead_runs import crash_dead_runs, docket_tag

    session = opened(case_file)
    mine = docket_tag(session.directory)
    assert mine is not None

    @flow
    def found_dead() -> tuple[int, str]:
        dead = crash_dead_runs(session.directory, lambda _text: None)
        with get_client(sync_client=True) as client:
            state = client.read_flow_run(flow_run.id).state
        return dead, state.name if state else ""

    with tags(f"case:{session.case.name}", "docket:0123456789ab"):
        assert found_dead() == (0, "Running")
    with tags(f"case:{session.case.name}", mine):
        assert found_dead() == (1, "Crashed")  # here a run finds itself, for want of a second process


def test_without_a_page_prefect_is_never_imported(case_file: Path, tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import sys
        from narrows.flows.cli import main
        try:
            main(["investigate", "case.yaml", "--no-ui", "--until", "2"])
        except SystemExit as end:
            print("ended with", end.code)
        print("prefect imported:", any(name.split(".")[0] == "prefect" for name in sys.modules))
        """
    )
    own_home = os.environ | {"NARROWS_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=case_file.parent, env=own_home,
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-2:] == ["ended with 0", "prefect imported: False"], done.stdout + done.stderr
    assert not (tmp_path / "home").exists()


def test_a_deployment_can_be_made_and_its_flow_opens_the_case_itself(
    case_file: Path, narrows_server: ServerHandle
) -> None:
    from prefect.client.orchestration import get_client
    from prefect.flows import load_flow_from_entrypoint

    command = [sys.executable, "-m", "prefect", "--no-prompt"]
    for words in (["work-pool", "create", "narrows", "--type", "process"], ["deploy", "--all"]):
        done = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name("investigate/investigate")
    assert deployment.entrypoint == "flows/investigate.py:investigate"
    assert deployment.work_pool_name == "narrows"
    assert deployment.global_concurrency_limit is not None
    assert deployment.global_concurrency_limit.limit == 1

    claim = (ROOT / "tests" / "claims" / "padding.yaml").read_text().replace("claim: padding", "claim: kept")
    (case_file.parent / "claims").mkdir()
    name = yaml.safe_load(case_file.read_text())["case"]
    (case_file.parent / "claims" / "kept.yaml").write_text(claim.replace("case: more-padding", f"case: {name}"))

    for entrypoint in (f"{ROOT}/{deployment.entrypoint}", "narrows.flows.investigate.investigate"):
        flow = load_flow_from_entrypoint(entrypoint)
        assert set(deployment.parameters) <= set(flow.parameters.properties)
        state = flow(case=str(case_file), until=2, approve_all=True, return_state=True)
        assert state.name == "Stopped"
    (first, second), _ = runs_of(opened(case_file, resume=True))
    assert first.name == second.name
    assert first.name.endswith(": STOPPED")
    assert "claim:kept" in first.tags
    assert "claim:kept" in second.tags


def test_no_class_is_defined_where_prefect_loads_a_second_time() -> None:
    tree = ast.parse((ROOT / "flows" / "investigate.py").read_text())
    assert [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)] == []


def test_the_report_on_the_page_has_no_link_to_a_file_and_whole_paragraphs() -> None:
    text = for_page(
        "# A\n\nIt took [3 ms](evidence/a.json) [2, 4]\nmore. Every number links to the file that it came from.\n\n"
        "| id | what |\n|---|---|\n| a | " + "word " * 20 + "|\n\n"
        "<details><summary>Other views</summary>\n\n- one\n- two\n\n</details>\n\n"
        "![p](data:image/png;base64,AA) [site](https://example.org)\n\n```console\n$ a [b](c)\nd\n```\n",
        "postmortem.md",
    )
    assert "It took 3 ms [2, 4] more. In `postmortem.md` every number" in text
    assert "**Other views**\n" in text
    assert "- one\n- two\n" in text
    assert "[site](https://example.org)" in text
    assert "![p](data:image/png;base64,AA)" in text
    (row,) = [line for line in text.splitlines() if "word" in line]
    assert max(map(len, row.split("<br>"))) <= 50
