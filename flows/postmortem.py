"""Writes the postmortem of a case: the text, its pictures, and the short ending for the terminal."""

from __future__ import annotations

import re
import textwrap
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from narrows.inquiry.docket import Docket

# What only the end needs takes as long to import as all the rest: functions import it, the rehearsal before the others.
if TYPE_CHECKING:
    from narrows.flows.session import Session
    from narrows.inquiry.case import Case
    from narrows.templates.figures import Drawn
    from narrows.templates.parts import PostmortemView

_FILE_LINK = re.compile(r"(?<!!)\[([^\[\]]+)\]\((?![a-z]+:)[^()\s]*\)")
_SUMMARY = re.compile(r"<details><summary>(.*?)</summary>")
_STARTS_A_BLOCK = re.compile(r"[|>#<!-]|```|\d+\. ")
_CELL_END = re.compile(r"(?<!\\)\|")
_LINKS_LEAD = "Every number links to the file that it came from."

_DRAWING = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pictures")
"""The one thread that draws: matplotlib's settings belong to the whole process."""
_REHEARSED: dict[Path, Future[dict[str, Drawn]]] = {}
"""By the folder of the last case that was rehearsed, its pictures."""


def rehearse_meanwhile(session: Session) -> None:
    """Prepares the postmortem beside an experiment that starts, once a case, so that little is left to wait for.

    Whoever draws and writes must be imported, compiled and given fonts, and most pictures of the given runs are
    final already. It takes a second; the ranks take several to import torch, and measure nothing before.
    """
    if session.directory in _REHEARSED:
        return
    _REHEARSED.clear()
    so_far = Docket(session.docket.path, session.docket.entries)
    _REHEARSED[session.directory] = _DRAWING.submit(
        _rehearse, session.case, so_far, session.all_evidence(), session.directory
    )


def _rehearse(case: Case, docket: Docket, evidence: dict[str, Any], directory: Path) -> dict[str, Drawn]:
    """The pictures of the postmortem as it would be now; its text is only tried out."""
    from narrows.flows.claims_propose import propose_beside  # noqa: F401  # slow to import, and needed at the end
    from narrows.templates.figures import draw_figures
    from narrows.templates.render import render_postmortem
    from narrows.templates.view import postmortem_view

    view = postmortem_view(case, docket, evidence, directory)
    render_postmortem(view)
    return draw_figures(view)


def _drawn_ahead(session: Session) -> dict[str, Drawn]:
    """Waits for the rehearsal; what went wrong in it goes wrong again where it can be told."""
    rehearsed = _REHEARSED.pop(session.directory, None)
    return {} if rehearsed is None or rehearsed.exception() else rehearsed.result()


def view_of(session: Session) -> PostmortemView:
    """The postmortem as data, from the docket and the evidence as they are now."""
    from narrows.templates.view import postmortem_view

    return postmortem_view(session.case, session.docket, session.all_evidence(), session.directory)


def write_postmortem(session: Session) -> list[str]:
    """Writes ``postmortem.md`` and ``figures/`` into the case's folder; returns the lines that sum it up."""
    from narrows.flows.claims_propose import propose_beside
    from narrows.templates.figures import write_figures
    from narrows.templates.render import render_postmortem
    from narrows.templates.summary import summary_text

    ahead, view = _drawn_ahead(session), view_of(session)
    _DRAWING.submit(write_figures, view, session.directory, ahead).result()
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
    from narrows.flows.claims_propose import propose_beside
    from narrows.templates.figures import data_uri, figure_paths
    from narrows.templates.render import render_postmortem

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
