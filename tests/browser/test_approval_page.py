"""Approval on the page: what waits and what it would cost, an approval clicked, and a refusal with its reason typed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from narrows.flows import demo
from narrows.flows.local_launcher import LocalLauncher
from narrows.flows.processes import wait_until
from narrows.flows.server import ServerHandle
from narrows.inquiry.docket import Docket, Kind

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    OpenPage = Callable[[], AbstractContextManager[Page]]

pytestmark = [pytest.mark.browser, pytest.mark.prefect, pytest.mark.dist, pytest.mark.timeout(900)]

WAIT_MS = 180_000
WAIT_S = 180.0
COMMAND = [sys.executable, "-c", "from narrows.flows.cli import main; main()"]
COST = re.compile(r"It would cost [0-9.]+ device-hours; 0 of 1 are spent")


@pytest.fixture
def case_file(open_page: OpenPage, tmp_path: Path) -> Path:
    """A small case that asks before every launch; recorded only where there is a browser."""
    path = demo.lay_out("more-padding", tmp_path / "work")
    case = yaml.safe_load(path.read_text())
    case["judge"] |= {"steps": 8, "pairs": 4}
    case["case"] = "asked"
    case["budget"] = {"device_hours": 1, "ask_above_device_hours": 0}
    path.write_text(yaml.safe_dump(case))
    demo.record(path, LocalLauncher())
    return path


@pytest.fixture
def investigation(case_file: Path, narrows_server: ServerHandle) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``investigation()``: the command on the test's server, running; ended with the test."""
    assert narrows_server.folder is not None
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment = kept | {"NARROWS_HOME": str(narrows_server.folder.parent), "PYTHONUNBUFFERED": "1"}
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        with (case_file.parent / "said.txt").open("w") as said:
            started.append(
                subprocess.Popen(
                    [*COMMAND, "investigate", case_file.name, *words], cwd=case_file.parent, env=environment,
                    stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, text=True,
                )
            )  # fmt: skip
        return started[-1]

    yield start
    for process in started:
        process.terminate()
        process.wait(60)


def test_a_launch_is_approved_on_the_page_and_declined_with_a_reason(
    open_page: OpenPage,
    case_file: Path,
    investigation: Callable[..., subprocess.Popen[str]],
    screenshots: Path,
) -> None:
    first = investigation()
    with open_page() as page:
        _see_what_waits(page, _address(case_file), screenshots)
        _answer(page, "approve", "Ada", "the queue is empty", screenshots / "approval-form.png")
        _see(page.get_by_text("investigate asked: EXPLAINED"))
        _open_artifact(page, "board-asked")
        _see(page.get_by_role("heading", name="Where the step's time goes"))
        _see(page.get_by_role("row", name="compute"))
        _see(page.locator("img[src^='data:image/png']"))
        page.screenshot(path=screenshots / "approved-board.png", full_page=True)
    assert first.wait(WAIT_S) == 0, _said(case_file)
    assert _answers(case_file) == [("approve", "Ada", "the queue is empty")]

    second = investigation("--fresh")
    with open_page() as page:
        _see_what_waits(page, _address(case_file), screenshots)
        _answer(page, "abort", "Grace", "the nodes are | promised\nto others", screenshots / "declining-form.png")
        _see(page.get_by_text("investigate asked: ABORTED"))
        assert second.wait(WAIT_S) == 3, _said(case_file)
        _open_artifact(page, "board-asked")
        _see(page.get_by_role("cell", name="the nodes are | promised to others"))
        _see(page.get_by_role("cell", name="Grace"))
        page.get_by_role("heading", name="Asked and answered").scroll_into_view_if_needed()
        page.screenshot(path=screenshots / "declined-board.png")
        page.goto(_target(page.get_by_role("link", name="postmortem", exact=True)))
        _see(page.get_by_text("investigate asked: ABORTED"))
        page.goto(_address(case_file))
        _open_artifact(page, "postmortem-asked")
        _see(page.get_by_role("cell", name="the nodes are | promised to others"))
    assert _answers(case_file) == [("abort", "Grace", "the nodes are | promised\nto others")]
    assert "the nodes are" in (case_file.parent / "cases" / "asked" / "postmortem.md").read_text()


def _see_what_waits(page: Page, address: str, screenshots: Path) -> None:
    """The run's page says that it is paused, and its board what it would cost."""
    page.goto(address)
    _see(page.get_by_text("Paused", exact=True))
    page.screenshot(path=screenshots / "waiting-run.png")
    _open_artifact(page, "board-asked")
    _see(page.get_by_role("heading", name="Waits for approval"))
    _see(page.get_by_text(COST))
    page.screenshot(path=screenshots / "waiting-board.png")
    page.goto(address)
    _see(
        page.get_by_text("waits for approval: Run one_rank-regressed")
    )  # a paused run's log is read when its page is opened, not after


def _open_artifact(page: Page, key: str) -> None:
    """Opens an artifact by its card on the page of its run."""
    page.get_by_text("Artifacts", exact=True).first.click()
    page.locator(".artifact-card", has_text=key).first.click(timeout=WAIT_MS)


def _answer(page: Page, decision: str, approver: str, reason: str, picture: Path) -> None:
    """Fills in the form that the page makes of the question, and sends it."""
    page.get_by_role("button", name="Resume").first.click(timeout=WAIT_MS)
    form = page.get_by_role("dialog")
    _see(form.get_by_text("device-hours, above the ask line"))
    form.locator("button.p-select-button__control").press("Space")
    page.get_by_text(decision, exact=True).last.click()
    texts = form.locator("textarea")
    texts.nth(0).fill(approver)
    texts.nth(1).fill(reason)
    page.screenshot(path=picture)
    form.get_by_role("button", name="Submit").click()
    form.wait_for(state="hidden", timeout=WAIT_MS)


def _address(case_file: Path) -> str:
    """The page that the command printed."""
    assert wait_until(lambda: "waiting for approval" in _said(case_file), WAIT_S), _said(case_file)
    found = re.search(r"follow it at (\S+)", _said(case_file))
    assert found
    return found.group(1)


def _said(case_file: Path) -> str:
    return (case_file.parent / "said.txt").read_text()


def _answers(case_file: Path) -> list[tuple[str, str, str]]:
    docket = Docket.open(case_file.parent / "cases" / "asked" / "docket.jsonl")
    return [tuple(entry.body[key] for key in ("decision", "by", "reason")) for entry in docket.of(Kind.ANSWERED)]  # type: ignore[misc]


def _target(link: Locator) -> str:
    """Where a link leads; the page opens those of a text in a window of their own."""
    address = str(link.evaluate("one => one.href"))
    assert address.endswith("/artifacts/key/postmortem-asked")
    return address


def _see(locator: Locator) -> None:
    locator.first.wait_for(state="visible", timeout=WAIT_MS)
