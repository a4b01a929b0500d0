"""What a person sees of a claim in the browser: each revalidation with its outcome, and the history of them all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from narrows.flows.claims_store import ClaimStore
from narrows.flows.cli import main
from narrows.flows.server import ServerHandle

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    OpenPage = Callable[[], AbstractContextManager[Page]]

pytestmark = [pytest.mark.browser, pytest.mark.prefect, pytest.mark.dist, pytest.mark.timeout(400)]

PADDING = Path(__file__).resolve().parents[1] / "claims" / "padding.yaml"
WAIT_MS = 60_000


@pytest.fixture
def store(open_page: OpenPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClaimStore:
    """A workspace with one claim, on a host with the driver that it was confirmed with."""
    folder = tmp_path / "work" / "claims"
    folder.mkdir(parents=True)
    (folder / "seen.yaml").write_text(PADDING.read_text().replace("claim: padding", "claim: seen"))
    (folder.parent / "facts.json").write_text('{"driver": "550.54.15"}')
    monkeypatch.setenv("NARROWS_HOST_FACTS", str(folder.parent / "facts.json"))
    monkeypatch.chdir(folder.parent)
    return ClaimStore(folder)


def test_the_pages_show_a_claims_revalidations_with_their_outcomes(
    open_page: OpenPage,
    store: ClaimStore,
    narrows_server: ServerHandle,
    monkeypatch: pytest.MonkeyPatch,
    asked_hosts: set[str],
    screenshots: Path,
) -> None:
    assert narrows_server.folder is not None
    monkeypatch.setenv("NARROWS_HOME", str(narrows_server.folder.parent))
    assert _revalidate("--all") == 0
    _narrow_the_range(store)
    assert _revalidate("--all") == 4
    root, claim = _runs()

    with open_page() as page:
        page.goto(narrows_server.run_url(root.id))
        _see(page.get_by_text("revalidate: RANGE MOVED"))
        _see(page.get_by_text("claim:seen", exact=True))
        page.screenshot(path=screenshots / "revalidation-run.png")
        page.goto(narrows_server.run_url(claim.id))
        _see(page.get_by_text("claim seen: RANGE MOVED"))
        _see(page.get_by_text("investigation:more-padding"))
        page.get_by_text("Task Runs", exact=True).first.click()
        _see(page.get_by_text("H02 REJECTED: The loss lies in the accepted range"))
        page.screenshot(path=screenshots / "revalidation-claim.png")
        page.goto(f"{narrows_server.ui_url}/artifacts/key/claim-seen")
        _see(page.get_by_text("claim seen: HOLDS"))
        _see(page.get_by_text("claim seen: RANGE MOVED"))
        page.screenshot(path=screenshots / "revalidation-versions.png")
        page.goto(f"{narrows_server.ui_url}/artifacts/artifact/{_artifact(claim)}")
        _see(page.get_by_role("heading", name="Claim seen"))
        for outcome in ("range moved", "holds"):
            _see(page.get_by_role("cell", name=outcome))
        page.screenshot(path=screenshots / "revalidation-history.png")

    assert asked_hosts - {""} == {"127.0.0.1"}


def _revalidate(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["revalidate", *words])
    return int(ended.value.code or 0)


def _narrow_the_range(store: ClaimStore) -> None:
    """A range that the effect cannot lie in."""
    path = store.path("seen")
    path.write_text(path.read_text().replace("low: 2.0", "low: 40.0").replace("high: 12.0", "high: 50.0"))


def _runs() -> tuple[Any, Any]:
    """The newest revalidation and its claim's run."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter

    mine = FlowRunFilter.model_validate({"tags": {"all_": ["claim:seen"]}})
    with get_client(sync_client=True) as client:
        found = sorted(client.read_flow_runs(flow_run_filter=mine), key=lambda run: run.created)
    roots = [run for run in found if run.parent_task_run_id is None]
    return roots[-1], found[-1]


def _artifact(run: Any) -> str:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter

    mine = ArtifactFilter.model_validate({"flow_run_id": {"any_": [str(run.id)]}})
    with get_client(sync_client=True) as client:
        (one,) = client.read_artifacts(artifact_filter=mine)
    return str(one.id)


def _see(locator: Locator) -> None:
    locator.first.wait_for(state="visible", timeout=WAIT_MS)
