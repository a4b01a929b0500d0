"""The view as markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

import jinja2

from narrows.templates.numbers import Number, hours
from narrows.templates.parts import PostmortemView, arm_words
from narrows.templates.wording import linked, sentence

TEMPLATE = "postmortem.md.j2"
_BLANK_LINES = re.compile(r"\n{3,}")


def render_postmortem(view: PostmortemView, figures: Mapping[str, str] | None = None) -> str:
    """The whole postmortem in markdown, ending in one newline.

    ``figures`` maps a picture's name to where it is found, a data URI for instance; by default it is
    ``figures/NAME.png`` beside the text.
    """
    text = _environment().get_template(TEMPLATE).render(view=view, figures=dict(figures or {}))
    lines = [line.rstrip() for line in text.splitlines()]
    return _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip() + "\n"


@cache
def _environment() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("narrows.templates", "."),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    found.filters.update(link=_link, bare=_bare, cell=_cell, hours=hours, sentence=sentence, arm=arm_words)
    return found


def _link(number: Number | None) -> str:
    """With its unit and its source; an absent number is a dash."""
    return "-" if number is None else linked(number)


def _bare(number: Number | None) -> str:
    """Without its unit, for a column whose head carries it."""
    return "-" if number is None else linked(number, unit=False)


def _cell(text: str) -> str:
    """Safe inside a table's cell and inside a link's text."""
    return " ".join(str(text).split()).replace("|", "\\|")
