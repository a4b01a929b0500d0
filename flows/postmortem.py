"""Writes the postmortem of a case: the text, its pictures, and the short ending for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrows.templates.figures import data_uri, write_figures
from narrows.templates.render import render_postmortem
from narrows.templates.summary import summary_text
from narrows.templates.view import postmortem_view

if TYPE_CHECKING:
    from narrows.flows.session import Session
    from narrows.templates.parts import PostmortemView


REPRODUCER = ("narrows reproduce .",)


def view_of(session: Session) -> PostmortemView:
    """The postmortem as data, from the docket and the evidence as they are now."""
    return postmortem_view(session.case, session.docket, session.all_evidence(), session.directory, reproducer=REPRODUCER)


def write_postmortem(session: Session) -> list[str]:
    """Writes ``postmortem.md`` and ``figures/`` into the case's folder; returns the lines that sum it up."""
    view = view_of(session)
    write_figures(view, session.directory)
    session.postmortem.write_text(render_postmortem(view), encoding="utf-8")
    return summary_text(view, str(session.postmortem)).splitlines()


def page(session: Session) -> str:
    """The postmortem with its pictures inside the text, for a page that cannot reach files."""
    view = view_of(session)
    figures = {path.stem: data_uri(path) for path in write_figures(view, session.directory)}
    return render_postmortem(view, figures)
