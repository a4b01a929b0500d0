"""A page of Debian's chromium that notes whom it asks. Tests skip, with the reason, where there is no browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture
def asked_hosts() -> set[str]:
    """The hosts that the page of this test sent a request to."""
    return set()


@pytest.fixture
def open_page(asked_hosts: set[str]) -> Callable[[], AbstractContextManager[Page]]:
    """Opens a page; not before everything else is done, since Prefect takes Playwright's event loop for its own."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium on PATH; scripts/install-system-packages.sh installs it")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is missing; install the dev extra")

    @contextmanager
    def opened() -> Iterator[Page]:
        with playwright.sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=chromium, args=ARGUMENTS)
            page = browser.new_page(viewport={"width": 1400, "height": 1000})
            page.on("request", lambda request: asked_hosts.add(_host(request)))
            page.on("websocket", lambda socket: asked_hosts.add(urlsplit(socket.url).hostname or ""))
            yield page
            browser.close()

    return opened


def _host(request: Any) -> str:
    parts = urlsplit(request.url)
    return "" if parts.scheme in ("data", "blob") else parts.hostname or ""


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    """Where pictures of the pages are kept for people: NARROWS_SCREENSHOTS, else the test's folder."""
    folder = Path(os.environ.get("NARROWS_SCREENSHOTS") or tmp_path / "screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
