"""The page of `narrows compare --html`, in a real browser: every picture is drawn, and nothing is asked of any host."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from narrows.flows.compare_command import compare

if TYPE_CHECKING:
    from playwright.sync_api import Page

NARROW = {"width": 400, "height": 800}


def test_the_page_draws_its_pictures_and_loads_nothing(
    open_page: Callable[[], AbstractContextManager[Page]],
    asked_hosts: set[str],
    screenshots: Path,
    tmp_path: Path,
    record_pair: Callable[..., tuple[Path, Path]],
) -> None:
    file = tmp_path / "page.html"
    assert compare(*record_pair(tmp_path), html=file) == 0
    with open_page() as page:
        page.goto(file.as_uri())
        images = page.locator("figure img").all()
        names = [image.get_attribute("alt") or "" for image in images]
        assert len(images) == 5, names  # accounts, steps, lanes, rings, arrivals
        assert all(image.evaluate("one => one.complete && one.naturalWidth > 0") for image in images)
        assert all(names)
        page.screenshot(path=screenshots / "comparison.png", full_page=True)
        page.set_viewport_size(NARROW)  # type: ignore[arg-type]
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert asked_hosts <= {""}
