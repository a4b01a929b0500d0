"""A revalidation as flow runs: what waits is on its page, it beats, and claim and case link each other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from narrows.flows.approval import Answer, Decision, answer, waiting_runs
from narrows.flows.claims_links import claims_of
from narrows.flows.claims_store import ClaimStore
from narrows.flows.cli import main
from narrows.flows.local_launcher import LocalLauncher
from narrows.flows.processes import wait_until
from narrows.flows.revalidating import Due, conclude, open_revalidation, settle
from narrows.flows.server import ServerHandle
from narrows.inquiry.docket import Docket, Kind

pytestmark = [pytest.mark.prefect, pytest.mark.timeout(300)]
PADDING = Path(__file__).with_name("padding.yaml")
PATIENCE_S = 120.0
Background = Callable[[Callable[[], None]], object]


@pytest.fixture
def store(tmp_path: Path, narrows_server: ServerHandle, monkeypatch: pytest.MonkeyPatch) -> ClaimStore:
    """A workspace with one claim, named after its case, on a host with the driver that it was confirmed with."""
    assert narrows_server.folder is not None
    folder = tmp_path / "work" / "claims"
    folder.mkdir(parents=True)
    write_claim(folder, "asked")
    (folder.parent / "facts.json").write_text('{"driver": "550.54.15"}')
    monkeypatch.setenv("NARROWS_HOME", str(narrows_server.folder.parent))
    monkeypatch.setenv("NARROWS_HOST_FACTS", str(folder.parent / "facts.json"))
    monkeypatch.chdir(folder.parent)
    return ClaimStore(folder)


def write_claim(folder: Path, name: str, case: str = "more-padding") -> None:
    text = PADDING.read_text().replace("claim: padding", f"claim: {name}").replace("more-padding", case)
    asks = text.replace("ask_above_device_hours: 0.5", "ask_above_device_hours: 0")
    (folder / f"{name}.yaml").write_text(asks)


def page(key: str) -> str:
    """The newest text under ``key``; empty where there is none."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactCollectionFilter

    with get_client(sync_client=True) as client:
        wanted = ArtifactCollectionFilter.model_validate({"key": {"any_": [key]}})
        return "".join(str(one.data) for one in client.read_latest_artifacts(artifact_filter=wanted))


def runs_tagged(tag: str) -> list[Any]:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter

    with get_client(sync_client=True) as client:
        return list(client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate({"tags": {"all_": [tag]}})))


def waiting() -> str | None:
    found = [one.flow_run_id for one in waiting_runs() if one.name == "revalidate"]
    return found[0] if found else None


@pytest.mark.dist
def test_each_claim_asks_for_itself_and_the_page_shows_what_waits_and_what_it_costs(
    store: ClaimStore, in_background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    from narrows.flows import zombies

    write_claim(store.folder, "second")
    beats: list[tuple[str, str]] = []
    emit = zombies._emit
    monkeypatch.setattr(zombies, "_emit", lambda *one: (beats.append((str(one[0]), one[1])), emit(*one))[1])
    pages: list[str] = []

    def decide() -> None:
        for decision, reason in ((Decision.APPROVE, "the queue is empty"), (Decision.SKIP, "not | tonight")):
            assert wait_until(lambda: waiting() is not None, PATIENCE_S)
            pages.append(page("revalidation"))
            answer(str(waiting()), Answer(decision=decision, by="Ada", reason=reason))
            assert wait_until(lambda: waiting() is None, PATIENCE_S)

    in_background(decide)
    with pytest.raises(SystemExit) as ended:
        main(["revalidate", "--all"])
    assert ended.value.code == 3, "the second one was declined"
    assert all("### Waits for approval" in one and "device-hours; 0 of 1 are spent" in one for one in pages)
    assert all("`narrows approve revalidate`" in one for one in pages)
    assert "| **asked** | due |" in pages[0]
    assert "| **asked** | holds |" in pages[1]
    report, claim = page("revalidation"), page("claim-second")
    assert "Waits for approval" not in report
    assert "[claim asked](/artifacts/key/claim-asked)" in report
    assert "| **skip** | Ada | not \\| tonight |" in claim
    assert "[all revalidations](/artifacts/key/revalidation)" in claim
    root = next(run for run in runs_tagged("claim:second") if run.parent_task_run_id is None)
    assert {"narrows", "claim:asked", "claim:second"} <= set(root.tags)
    names = {name for run_id, name in beats}
    assert names == {"revalidate", "claim asked", "claim second"}
    assert str(root.id) in {run_id for run_id, _ in beats}


def test_claim_and_case_link_each_other_and_only_pages_that_exist(store: ClaimStore) -> None:
    from prefect import flow

    from narrows.flows.board import link_back, show_page
    from narrows.flows.board_parts import links_of
    from narrows.flows.revalidating_pages import show_claim

    write_claim(store.folder, "alone", case="lonely")
    one = Due(claim=store.load("alone"), reasons=(), nodes={})
    session = open_revalidation(store, one, launcher=LocalLauncher(), say=lambda _text: None)
    found = settle(store, one, session, *conclude(session, one.claim))
    session.case = replace(session.case, name="lonely")

    @flow
    def shown() -> list[list[str]]:
        before = links_of(session)
        show_page("board-lonely", "a board\n", "a board")
        show_claim(store, one.claim, session, found)
        return [before, links_of(session)]

    before, after = shown()
    assert before == []
    assert after == ["", "[claim alone, and every revalidation](/artifacts/key/claim-alone)"]
    claim, board = page("claim-alone"), page("board-lonely")
    assert "[board of case lonely](/artifacts/key/board-lonely)" in claim
    assert "postmortem-lonely" not in claim
    link = "[claim alone, and every revalidation](/artifacts/key/claim-alone)"
    assert board.count(link) == 1
    link_back("board-lonely", "claim alone, and every revalidation", "claim-alone")
    link_back("board-of-nobody", "claim alone", "claim-alone")
    assert page("board-lonely") == board
    assert claims_of(session) == ["alone"]


@pytest.mark.dist
def test_a_killed_revalidation_is_marked_as_crashed_by_the_one_that_goes_on_with_it(
    store: ClaimStore, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", "from narrows.flows.cli import main; main()", "revalidate", "--all", "--yes"]
    with (tmp_path / "said.txt").open("w") as said:
        first = subprocess.Popen(command, env=os.environ.copy(), stdout=said, stderr=said, start_new_session=True)
    try:
        assert wait_until(lambda: _launched(store), PATIENCE_S), (tmp_path / "said.txt").read_text()
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    (folder,) = (store.workspace / "revalidations").glob("asked-*")
    left = {run.id for run in runs_tagged("claim:asked") if run.state.name == "Running"}
    assert len(left) == 2, "the run and its claim's"
    with pytest.raises(SystemExit) as ended:
        main(["revalidate", "--all", "--yes"])
    assert ended.value.code == 0
    states = {run.id: run.state.name for run in runs_tagged("claim:asked")}
    assert {states[run_id] for run_id in left} == {"Crashed"}
    assert [one.name for one in (store.workspace / "revalidations").glob("asked-*")] == [folder.name]


def _launched(store: ClaimStore) -> bool:
    paths = (store.workspace / "revalidations").glob("asked-*/docket.jsonl")
    return any(Docket.open(path, repair=False).of(Kind.LAUNCHED) for path in paths)
