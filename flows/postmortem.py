"""Writes the postmortem of a case: the text, its pictures, and the short ending for the terminal."""

from __future__ import annotations

import importlib
import re
import textwrap
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from narrows.flows.claims_propose import propose_beside
from narrows.templates.render import render_postmortem
from narrows.templates.summary import summary_text
from narrows.templates.view import postmortem_view

if TYPE_CHECKING:
    from narrows.flows.session import Session
    from narrows.templates.parts import PostmortemView

_FILE_LINK = re.compile(r"(?<!!)\[([^\[\]]+)\]\((?![a-z]+:)[^()\s]*\)")
_SUMMARY = re.compile(r"<details><summary>(.*?)</summary>")
_STARTS_A_BLOCK = re.compile(r"[|>#<!-]|```|\d+\. ")
_CELL_END = re.compile(r"(?<!\\)\|")
_LINKS_LEAD = "Every number links to the file that it came from."


def import_figures_meanwhile() -> None:
    """Imports what draws the pictures beside an experiment that starts, so that nobody waits for it at the end.

    It takes half a second; the ranks take several to import torch, and measure nothing before.
    """
    threading.Thread(
        target=importlib.import_module, args=("narrows.templates.figures",), daemon=True, name="import figures"
    ).start()


def view_of(session: Session) -> PostmortemView:
    """The postmortem as data, from the docket and the evidence as they are now."""
    return postmortem_view(session.case, session.docket, session.all_evidence(), session.directory)


def write_postmortem(session: Session) -> list[str]:
    """Writes ``postmortem.md`` and ``figures/`` into the case's folder; returns the lines that sum it up."""
    from narrows.templates.figures import write_figures

    view = view_of(session)
    write_figures(view, session.directory)
    proposal = propose_beside(session)
    session.postmortem.write_text(render_postmortem(view) + _claim_section(session, proposal), encoding="utf-8")
    lines = summary_text(view, shown(session.postmortem)).splitlines()
    return lines if proposal is None else [*lines, f"{'claim':<11} {shown(proposal)}"]


def _claim_section(session: Session, proposal: Path | None) -> str:
    """What becomes of the explanation; nothing where there is none."""
    if proposal is None:
        return ""
    name = session.case.name
    return (
        f"\n## Claim\n\nThe explanation is proposed as a claim, in `claims/{proposal.name}` beside the case file: the "
        "experiment that shows it, the ranges that were found, and what it depends on. Review it like code; "
        f"`narrows claims accept {name}` puts it in force, and `narrows revalidate` runs it again when a driver, a "
        "library or the job changed.\n"
        if proposal.suffix == ".proposed"
        else f"\n## Claim\n\nThe explanation is in force as claim `claims/{proposal.name}` beside the case file.\n"
    )


def shown(path: Path) -> str:
    """The path as a person would type it here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def page(session: Session) -> str:
    """The postmortem with its pictures inside the text, for a page that cannot reach files; once it is written."""
    from narrows.templates.figures import data_uri, figure_paths

    view = view_of(session)
    figures = {path.stem: data_uri(path) for path in figure_paths(view, session.directory)}
    text = render_postmortem(view, figures) + _claim_section(session, propose_beside(session))
    return for_page(text, str(session.postmortem))


def for_page(markdown: str, file: str) -> str:
    """``markdown`` as Prefect's page needs it; ``file`` is where the links work.

    The page takes a link to a file for one of its own addresses and a line break inside a paragraph for a real one; it
    never breaks a line of a table, and does not fold what stands between ``<details>`` and its end.
    """
    text = markdown.replace(_LINKS_LEAD, f"In `{file}` every number links to the file that it came from.")
    text = _SUMMARY.sub(r"**\1**", text).replace("</details>", "")
    return _joined(_FILE_LINK.sub(r"\1", text))


def _joined(markdown: str) -> str:
    """``markdown`` with each paragraph on one line; tables, lists, quotes and code stay as they are."""
    lines: list[str] = []
    in_code, may_join = False, False
    for line in markdown.splitlines():
        fence = line.startswith("```")
        plain = bool(line.strip()) and not in_code and not _STARTS_A_BLOCK.match(line)
        if plain and may_join:
            lines[-1] += f" {line}"
        else:
            lines.append(line if in_code or not line.startswith("| ") else _narrow(line))
        in_code ^= fence
        may_join = plain
    return "\n".join(lines) + "\n"


def _narrow(line: str) -> str:
    """A table's line with breaks in its long cells: the narrower, the more cells there are."""
    cells = _CELL_END.split(line)
    width = 26 if len(cells) > 7 else 40
    return "|".join(cell if "`" in cell else _broken(cell, width) for cell in cells)


def _broken(cell: str, width: int) -> str:
    lines = textwrap.wrap(cell.strip(), width, break_long_words=False, break_on_hyphens=False)
    return f" {'<br>'.join(lines)} " if lines else cell
