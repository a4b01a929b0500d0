"""What a person sees in the browser: the rungs, the hypotheses with their verdicts, the board and the report."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from narrows.flows import commands, demo
from narrows.flows.local_launcher import LocalLauncher
from narrows.flows.processes import wait_until
from narrows.flows.server import ServerHandle
from narrows.flows.session import Session, open_session
from narrows.inquiry.scopes import Rung
from narrows.inquiry.steps import StopReason

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    OpenPage = Callable[[], AbstractContextManager[Page]]

pytestmark = [pytest.mark.browser, pytest.mark.prefect, pytest.mark.dist, pytest.mark.timeout(400)]

WAIT_MS = 60_000  # the server notes tasks and logs behind the client's back


@pytest.fixture
def case_file(open_page: OpenPage, tmp_path: Path) -> Path:
    """A small case with more work in the regressed run; recorded only where there is a browser to look with."""
    path = demo.lay_out("more-padding", tmp_path / "work")
    case = yaml.safe_load(path.read_text())
    case["judge"] |= {"steps": 8, "pairs": 4}
    case["case"] = "browsed"
    case["budget"]["ask_above_device_hours"] = 0  # so that it asks
    path.write_text(yaml.safe_dump(case))
    demo.record(path, LocalLauncher())
    return path


def test_the_pages_show_the_ladder_the_verdicts_the_board_and_the_report(
    open_page: OpenPage,
    case_file: Path,
    narrows_server: ServerHandle,
    in_background: Callable[[Callable[[], None]], object],
    monkeypatch: pytest.MonkeyPatch,
    asked_hosts: set[str],
    screenshots: Path,
) -> None:
    session = _investigated(case_file, narrows_server, in_background, monkeypatch)
    root, first = _runs(session)
    artifacts = {key: f"{narrows_server.ui_url}/artifacts/artifact/{one}" for key, one in _artifacts(root).items()}
    assert set(artifacts) == {"board-browsed", "postmortem-browsed"}

    with open_page() as page:
        page.goto(narrows_server.run_url(root.id))
        _see_the_run(page, screenshots)
        page.goto(artifacts["board-browsed"])
        _see_the_board(page, list(session.state.judgements), screenshots)
        page.goto(narrows_server.run_url(first.id))
        _see_the_hypotheses(page, screenshots)
        page.goto(artifacts["postmortem-browsed"])
        _see_the_report(page, screenshots)

    assert asked_hosts - {""} == {"127.0.0.1"}


def _see_the_run(page: Page, screenshots: Path) -> None:
    """The investigation's own page: its end, its log, its rungs, its artifacts."""
    _see(page.get_by_text("investigate browsed: EXPLAINED"))
    _see(page.get_by_text("Explained", exact=True))
    _see(page.get_by_text("1. manifest diff: SUPPORTED: H01 supported"))  # a line of the log
    page.screenshot(path=screenshots / "run.png")
    _open(page, "Subflow Runs")
    for rung in Rung:
        _see(page.get_by_text(f"{rung.label}: "))
    _see(page.get_by_text("Skipped", exact=True))
    page.screenshot(path=screenshots / "rungs.png", full_page=True)
    _open(page, "Artifacts")
    _see(page.get_by_text("board-browsed"))
    _see(page.get_by_text("postmortem-browsed"))
    page.screenshot(path=screenshots / "artifacts.png")


def _see_the_board(page: Page, numbers: list[str], screenshots: Path) -> None:
    _see(page.get_by_text("every hypothesis with its verdict"))
    for verdict in ("supported", "rejected"):
        _see(page.get_by_role("cell", name=verdict))
    for number in numbers:
        _see(page.get_by_role("cell", name=f"{number} "))
    page.screenshot(path=screenshots / "board.png")


def _see_the_hypotheses(page: Page, screenshots: Path) -> None:
    """A rung's page: its launches and its hypotheses, each with its state's name."""
    _open(page, "Task Runs")
    _see(page.get_by_text("H01 SUPPORTED: The step got slower"))
    _see(page.get_by_text("one_rank-regressed launch 1"))
    _see(page.get_by_text("Supported", exact=True))
    page.screenshot(path=screenshots / "hypotheses.png")


def _see_the_report(page: Page, screenshots: Path) -> None:
    _see(page.get_by_role("heading", name="Postmortem: browsed"))
    picture = page.locator("img[src^='data:image/png']").first
    _see(picture)
    assert picture.evaluate("one => one.complete && one.naturalWidth") > 100
    page.screenshot(path=screenshots / "postmortem.png")


def _investigated(
    case_file: Path,
    server: ServerHandle,
    in_background: Callable[[Callable[[], None]], object],
    monkeypatch: pytest.MonkeyPatch,
) -> Session:
    """The case, investigated on the server, with its one question answered from beside."""
    from narrows.flows.approval import waiting_runs
    from narrows.flows.followed import run_on_board

    assert server.folder is not None
    monkeypatch.setenv("NARROWS_HOME", str(server.folder.parent))
    session = open_session(case_file, LocalLauncher())
    session.say = lambda _text: None

    def approve() -> None:
        assert wait_until(lambda: any(one.name == "investigate browsed" for one in waiting_runs()), 60.0)
        commands.approve("browsed", decision="approve", reason="for the pictures", by="a test", as_json=False)

    in_background(approve)
    assert run_on_board(session, case_file, None, server).reason is StopReason.EXPLAINED
    return session


def _runs(session: Session) -> tuple[Any, Any]:
    """The root run, and the run of its first rung that reached a verdict."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter

    mine = FlowRunFilter.model_validate({"tags": {"all_": [f"case:{session.case.name}"]}})
    with get_client(sync_client=True) as client:
        found = sorted(client.read_flow_runs(flow_run_filter=mine), key=lambda run: run.created)
    (root,) = [run for run in found if run.parent_task_run_id is None]
    return root, [run for run in found if run.name.startswith("1. manifest diff")][-1]


def _artifacts(run: Any) -> dict[str, str]:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter

    mine = ArtifactFilter.model_validate({"flow_run_id": {"any_": [str(run.id)]}})
    with get_client(sync_client=True) as client:
        return {str(one.key): str(one.id) for one in client.read_artifacts(artifact_filter=mine)}


def _see(locator: Locator) -> None:
    locator.first.wait_for(state="visible", timeout=WAIT_MS)


def _open(page: Page, tab: str) -> None:
    page.get_by_text(tab, exact=True).first.click()
