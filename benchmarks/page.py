"""The page of benchmark results: one section for each program that writes its own table."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def put_section(page: Path, heading: str, text: str) -> None:
    """Puts the section that begins with ``heading`` into the page: in place of the one there, else at its end."""
    before = page.read_text(encoding="utf-8") if page.exists() else "# Benchmarks\n"
    found = re.search(rf"^{re.escape(heading)}$.*?(?=^## |\Z)", before, re.MULTILINE | re.DOTALL)
    if found:
        rest = before[found.end() :]
        after = before[: found.start()] + text + ("\n" + rest if rest else "")
    else:
        after = before.rstrip("\n") + "\n\n" + text
    page.write_text(after, encoding="utf-8")
