"""Canary roll-outs by real processes: their ends, their case, their board and its questions, and as a deployment."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from narrows.flows.approval import Answer, Decision, answer, waiting_runs
from narrows.flows.cli import main
from narrows.flows.dead_runs import docket_tag
from narrows.flows.processes import wait_until
from narrows.flows.server import ServerHandle
from narrows.inquiry.docket import Docket, Kind
from narrows.inquiry.state import State
from narrows.inquiry.verdict import Verdict

pytestmark = [pytest.mark.dist, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0
Background = Callable[[Callable[[], None]], object]


def case_file(folder: Path, slow: str, **more: Any) -> Path:
    """Four hosts of which one may be slow, and a job of one rank on each of two."""
    value = {
        "case": "canary", "question": "The work that an upgrade is judged by.",
        "runs": {"healthy": "runs/healthy", "regressed": "runs/regressed"},
        "workload": {
            "program": "step", "config": {"slow_host": {"host": slow, "factor": 1.12}},
            "healthy": {"hosts": ["n0", "n1"]}, "regressed": {"hosts": ["n2", "n3"]},
        },
        "cluster": {"nodes": 2, "ranks_per_node": 1, "hosts": ["n0", "n1", "n2", "n3"]},
        "judge": {"steps": 16, "washout": 2, "margin_percent": 3},
    }  # fmt: skip
    path = folder / "case.yaml"
    path.write_text(yaml.safe_dump(value | more))
    return path


def ended(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(words))
    return int(end.value.code or 0)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = ended("canary-rollout", "--upgraded", "n[2-3]", "--control", "n0,n1", "--json", *words)
    return code, json.loads(capsys.readouterr().out)


def test_real_processes_with_a_slower_upgraded_host_end_regressed_and_name_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NARROWS_HOSTS", str(tmp_path / "hosts"))
    code, record = run(capsys, "--case", str(case_file(tmp_path, "n3")), "--no-ui")
    assert (code, record["outcome"]) == (4, "regressed"), record["sentence"]
    assert (record["account"], record["carried_by"]["hosts"]) == ("compute", ["n3"])
    assert any("plays all hosts on this machine" in one for one in record["limits"])
    new_case = tmp_path / record["new_case"]
    assert ended("check", str(new_case)) == 0
    assert "a placement comparison" in capsys.readouterr().out
    assert ended("investigate", str(new_case), "--no-ui", "--yes", "--until", "2") == 0
    state = State.of(Docket.open(tmp_path / "cases" / new_case.stem / "docket.jsonl"))
    assert Verdict.SUPPORTED in (state.verdict("regression"), state.verdict("regression:again"))
    assert (state.reconciliation["account"], state.reconciliation["culprit"]["members"]) == ("compute", ["n3"])


@pytest.fixture
def on_server(narrows_server: ServerHandle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ServerHandle:
    assert narrows_server.folder is not None
    monkeypatch.setenv("NARROWS_HOME", str(narrows_server.folder.parent))
    monkeypatch.setenv("NARROWS_HOSTS", str(tmp_path / "hosts"))
    return narrows_server


def runs_tagged(tag: str) -> list[Any]:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter

    with get_client(sync_client=True) as client:
        return list(client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate({"tags": {"all_": [tag]}})))


def page(key: str) -> str:
    """The newest text under ``key``."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactCollectionFilter

    with get_client(sync_client=True) as client:
        wanted = ArtifactCollectionFilter.model_validate({"key": {"any_": [key]}})
        return str(client.read_latest_artifacts(artifact_filter=wanted)[0].data)


@pytest.mark.prefect
def test_without_a_fault_it_is_admitted_on_the_board_or_honestly_left_open_once_its_questions_are_answered(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    on_server: ServerHandle,  # its home is the command's
    in_background: Background,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from narrows.flows import zombies

    beats: list[tuple[str, str, tuple[str, ...]]] = []
    emit = zombies._emit
    monkeypatch.setattr(zombies, "_emit", lambda *one: (beats.append((str(one[0]), one[1], one[2])), emit(*one))[1])
    boards: list[str] = []

    def approve() -> None:
        for _ in range(2):  # the roll-out, and the delay that has to be seen
            assert wait_until(lambda: _waiting() is not None, PATIENCE_S)
            boards.append(page("board-rollout-n2-n3"))
            answer(str(_waiting()), Answer(decision=Decision.APPROVE, by="Ada", reason="the queue is empty"))
            assert wait_until(lambda: _waiting() is None, PATIENCE_S)

    in_background(approve)
    ask = {"device_hours": 1, "ask_above_device_hours": 0}
    code, record = run(capsys, "--case", str(case_file(tmp_path, "n9", budget=ask)))
    assert (code, record["outcome"]) in ((0, "admit"), (3, "inconclusive")), record["sentence"]

    (flow_run,) = runs_tagged("rollout:rollout-n2-n3")
    assert (flow_run.state.name, flow_run.name) == (
        record["outcome"].capitalize(), f"canary-rollout rollout-n2-n3: {record['outcome'].upper()}",
    )  # fmt: skip
    assert all("### Waits for approval" in one and "device-hours; " in one for one in boards)
    board = page("board-rollout-n2-n3")
    assert "Waits for approval" not in board
    assert "| **approve** | Ada | the queue is empty |" in board
    assert "H01" in board
    assert "[report](/artifacts/key/canary-rollout-n2-n3)" in board
    report = page("canary-rollout-n2-n3")
    assert report.startswith(f"# Canary roll-out: {record['outcome']}")
    assert "[every hypothesis](/artifacts/key/board-rollout-n2-n3)" in report
    assert {one[0] for one in beats} == {str(flow_run.id)}
    assert all("narrows" in one[2] for one in beats)


def _waiting() -> str | None:
    found = [one.flow_run_id for one in waiting_runs() if one.name == "canary-rollout rollout-n2-n3"]
    return found[0] if found else None


@pytest.mark.prefect
def test_as_a_deployment_it_runs_one_at_a_time_goes_on_with_what_was_begun_and_says_what_is_wrong(
    tmp_path: Path,
    on_server: ServerHandle,  # the deployments are made on it
) -> None:
    from prefect.client.orchestration import get_client
    from prefect.flows import load_flow_from_entrypoint
    from prefect.states import Running

    command = [sys.executable, "-m", "prefect", "--no-prompt"]
    for words in (["work-pool", "create", "narrows", "--type", "process", "--overwrite"], ["deploy", "--all"]):
        done = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name("canary-rollout/canary-rollout")
    assert deployment.entrypoint == "flows/canary_rollout.py:canary_rollout"
    assert deployment.global_concurrency_limit is not None
    assert deployment.global_concurrency_limit.limit == 1

    flow = load_flow_from_entrypoint(f"{ROOT}/{deployment.entrypoint}")
    assert set(deployment.parameters) <= set(flow.parameters.properties)
    given = {**deployment.parameters, "case": str(case_file(tmp_path, "n3")), "approve_all": True}
    refused = flow(upgraded=["n2"], control=["n2"], return_state=True, **given)
    assert refused.is_failed()
    assert "n2: in both sets" in refused.message
    state = flow(upgraded=["n[2-3]"], control=["n0", "n1"], return_state=True, **given)
    assert state.name == "Regressed", state.message
    (folder,) = (tmp_path / "rollouts").glob("rollout-*")
    docket = str(docket_tag(folder))
    (first,) = runs_tagged(docket)
    assert first.name == "canary-rollout of n[2-3]: REGRESSED"
    new_case = next(tmp_path.glob("rollout-n2-n3-*.yaml"))
    assert f"narrows investigate {new_case.name}" in page("canary-rollout-n2-n3")

    _cut(tmp_path)
    with get_client(sync_client=True) as client:  # as a process leaves it that was killed
        client.set_flow_run_state(first.id, Running(), force=True)
    new_case.unlink()
    assert flow(upgraded=["n[2-3]"], control=["n0", "n1"], return_state=True, **given).name == "Regressed"
    states = {str(one.id) == str(first.id): one.state.name for one in runs_tagged(docket)}
    assert states == {True: "Crashed", False: "Regressed"}
    launched = Docket.open(folder / "docket.jsonl").of(Kind.LAUNCHED)
    assert len(launched) == 1, "what was measured is not measured again"


def _cut(workspace: Path) -> None:
    """The docket as it was before its verdict."""
    (path,) = (workspace / "rollouts").glob("*/docket.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    last = next(at for at, line in enumerate(lines) if json.loads(line)["kind"] == "evidence")
    path.write_text("".join(lines[: last + 1]))
