"""The hypotheses of an investigation as a board: one markdown artifact, updated in place, or a terminal table."""

from __future__ import annotations

import base64
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.schemas.objects import ArtifactCollection, FlowRun
    from rich.table import Table

OPEN = ("registered", "running")
_HEADERS = ("", "scope", "hypothesis", "prediction", "reject if", "verdict", "evidence")
# No emoji: a bare machine has no font for them.
_MARKS = {"supported": "\u2713", "rejected": "\u2717", "inconclusive": "?", "running": "\u25b8", "registered": "\u00b7"}
_STYLES = {"supported": "green", "rejected": "red", "inconclusive": "yellow", "running": "cyan"}
_PICTURES_BYTES = 1_000_000  # Prefect refuses to publish the event of an artifact above 1.5 MB
_KEY_LENGTH = 120
_KEYS_AT_ONCE = 100
# The page never breaks a line of a table, so what is wider than its column must bring its own breaks.
_CLAIM_WIDTH, _RESULT_WIDTH = 44, 40
_CASE_ENDS = re.compile(r": [A-Z][A-Z ]*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardRow:
    """One hypothesis. ``verdict`` is registered, running, supported, rejected or inconclusive."""

    number: str = ""
    scope: str
    hypothesis: str
    prediction: str
    reject_if: str
    verdict: str
    evidence: str = ""

    def cells(self) -> tuple[str, ...]:
        """The row's texts under the board's headers."""
        mark, hypothesis = _MARKS.get(self.verdict, ""), f"{self.number} {self.hypothesis}".strip()
        return mark, self.scope, hypothesis, self.prediction, self.reject_if, self.verdict, self.evidence


def board_markdown(
    title: str, rows: Sequence[BoardRow], pictures: Mapping[str, bytes] | None = None,
    *, above: Sequence[str] = (), below: Sequence[str] = (),
) -> str:  # fmt: skip
    """The board as markdown for the Prefect page; ``pictures`` are PNG files by caption, inside the text.

    ``above`` are lines before the hypotheses, ``below`` those between them and what they predict.

    The chain is text: mermaid is drawn by Prefect's second page only. What was predicted stands in a table of its own,
    because the page is too narrow for one that holds all, and shows no part of a table that does not fit.
    """
    lines = [f"## {escaped(title)}", ""]
    if rows:
        lines += [f"Ladder: {escaped(chain(rows))}", ""]
    lines += above
    lines += table(("verdict", "hypothesis", "result"), [_verdict_cells(row) for row in rows])
    lines += below
    if rows:
        lines += ["", "### What each predicts, and what would reject it", ""]
        lines += table(("", "predicts", "rejected if"), [_prediction_cells(row) for row in rows])
    return "\n".join([*lines, *_pictures(pictures or {})]) + "\n"


def _verdict_cells(row: BoardRow) -> tuple[str, str, str]:
    claim = f"{escaped(f'{row.number} {row.scope}'.strip())}<br>{wrapped(row.hypothesis, _CLAIM_WIDTH)}"
    return f"{_MARKS.get(row.verdict, '')} **{escaped(row.verdict)}**", claim, wrapped(row.evidence, _RESULT_WIDTH)


def _prediction_cells(row: BoardRow) -> tuple[str, str, str]:
    name = escaped(row.number or row.hypothesis)
    return name, wrapped(row.prediction, _CLAIM_WIDTH), wrapped(row.reject_if, _CLAIM_WIDTH)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a markdown table, of cells that are markdown already."""
    return [_table_line(headers), _table_line(["-"] * len(headers)), *map(_table_line, rows)]


def wrapped(text: str, width: int) -> str:
    """Plain ``text`` as the markdown of a table cell, in lines of at most ``width`` characters where it has blanks."""
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return "<br>".join(map(escaped, lines))


def chain(rows: Sequence[BoardRow]) -> str:
    """The scopes in order, each with the verdicts reached in it."""
    marks: dict[str, list[str]] = {}
    for row in rows:
        marks.setdefault(row.scope, []).append(_MARKS.get(row.verdict, row.verdict))
    return " \u2192 ".join(f"{scope} {''.join(found)}" for scope, found in marks.items())


def _table_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """Plain ``text`` as markdown that stays inside its line and its table's cell."""
    # The page would take < for HTML, and a bar or a line break for the end of a cell.
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
    return " ".join(text.replace("*", "\\*").replace("`", "\\`").split())


def _pictures(pictures: Mapping[str, bytes]) -> list[str]:
    lines, room = [], _PICTURES_BYTES
    for caption, png in pictures.items():
        uri = data_uri(png)
        if len(uri) <= room:
            room -= len(uri)
            lines += ["", f"![{escaped(caption)}]({uri})"]
        else:
            lines += ["", f"{escaped(caption)}: left out here, {len(png) / 1e6:.1f} MB; see the investigation's folder"]
    return lines


def data_uri(png: bytes) -> str:
    """A PNG inside a text. Raises ``ValueError`` for anything else."""
    if not png.startswith(b"\x89PNG"):
        raise ValueError("a picture of the board must be a PNG file")
    return "data:image/png;base64," + base64.b64encode(png).decode()


def board_table(title: str, rows: Sequence[BoardRow]) -> Table:
    """The same board for a terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", caption=Text(chain(rows)), caption_justify="left")
    for header in _HEADERS:
        table.add_column(header, overflow="fold")
    for row in rows:
        style = _STYLES.get(row.verdict, "")
        table.add_row(*(Text(cell, style=style if index in (0, 5) else "") for index, cell in enumerate(row.cells())))
    return table


def board_key(slug: str) -> str:
    """The key of an investigation's board."""
    return page_key("board", slug)


def page_key(kind: str, slug: str) -> str:
    """The artifact key of a page of an investigation: Prefect's keys hold a-z, 0-9 and dashes only, and are global.

    Raises ``ValueError`` for a ``slug`` that leaves nothing.
    """
    text = re.sub(r"[^a-z0-9]+", "-", slug.lower()).strip("-")[:_KEY_LENGTH].strip("-")
    if not text:
        raise ValueError(f"no artifact key can be made of {slug!r}; name the case with letters or digits")
    return f"{kind}-{text}"


class Board:
    """The artifact of the flow run that creates it: one version a run, whatever the number of updates.

    A run that was started again goes on with the artifact that it made before.
    """

    def __init__(self, slug: str, title: str) -> None:
        self.key, self._title = board_key(slug), title
        self._artifact: UUID | None = None

    def show(
        self, rows: Sequence[BoardRow], pictures: Mapping[str, bytes] | None = None,
        *, above: Sequence[str] = (), below: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Puts ``rows`` on the page, as ``board_markdown`` does. To be called inside the root flow run."""
        text = board_markdown(self._title, rows, pictures, above=above, below=below)
        self._artifact = show_page(self.key, text, "every hypothesis with its verdict", self._artifact)


def show_page(key: str, text: str, description: str, known: UUID | None = None) -> UUID:
    """The markdown artifact ``key`` of the current flow run, made now or given its new text; one version a run."""
    from prefect.artifacts import create_markdown_artifact
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import ArtifactUpdate

    artifact = known or _of_this_run(key)
    if artifact is None:
        made = create_markdown_artifact(text, key=key, description=description)
        assert not hasattr(made, "__await__"), "called from a coroutine"
        return made
    with get_client(sync_client=True) as client:
        client.update_artifact(artifact, ArtifactUpdate(data=text))
    return artifact


def _of_this_run(key: str) -> UUID | None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, ArtifactFilterKey
    from prefect.runtime import flow_run

    mine = ArtifactFilter(key=ArtifactFilterKey(any_=[key]), flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run.id]))
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=mine)
    return found[0].id if found else None


def existing_pages(keys: Sequence[str]) -> set[str]:
    """Those of ``keys`` under which the server has an artifact."""
    return set(_latest(keys))


def _latest(keys: Sequence[str]) -> dict[str, ArtifactCollection]:
    """The newest artifact of each key that has one. A key may have hundreds, and the server answers 200 at a time."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactCollectionFilter, ArtifactCollectionFilterKey

    found: dict[str, ArtifactCollection] = {}
    with get_client(sync_client=True) as client:
        for at in range(0, len(keys), _KEYS_AT_ONCE):
            some = ArtifactCollectionFilterKey(any_=list(keys[at : at + _KEYS_AT_ONCE]))
            answer = client.read_latest_artifacts(artifact_filter=ArtifactCollectionFilter(key=some))
            found |= {str(one.key): one for one in answer}
    return found


def page_links(pages: Mapping[str, str]) -> list[str]:
    """A markdown link to each of ``pages``, keys by their words, that the server has."""
    there = existing_pages(list(pages.values()))
    return [_page_link(words, key) for words, key in pages.items() if key in there]


def _page_link(words: str, key: str) -> str:
    return f"[{escaped(words)}](/artifacts/key/{key})"


def link_back(key: str, words: str, target: str) -> None:
    """Puts a link to the page ``target`` at the end of the newest page ``key``; nothing where it is there already.

    For a page that was there first: its own run is over, and knew of no ``target``.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import ArtifactUpdate

    page, link = _latest([key]).get(key), _page_link(words, target)
    if page is None or link in str(page.data):
        return
    with get_client(sync_client=True) as client:
        client.update_artifact(page.latest_id, ArtifactUpdate(data=f"{page.data}\n{link}\n"))


def verdict_tag(verdict: str) -> str:
    """The tag that runs with this outcome carry, for the page's filter."""
    return f"verdict:{verdict.lower().replace(' ', '-')}"


def tag_run(tags: Sequence[str]) -> None:
    """Adds ``tags`` to the current flow run: one that a deployment started had no ``with tags(...)`` around it."""
    from prefect.client.orchestration import get_client
    from prefect.runtime import flow_run

    with get_client(sync_client=True) as client:
        run = client.read_flow_run(flow_run.id)
        client.update_flow_run(run.id, tags=list(dict.fromkeys([*run.tags, *tags])))


@contextmanager
def untagged() -> Iterator[None]:
    """Task runs that begin in here carry no tag.

    Before a task with tags Prefect asks the server for a slot of each; where SQLite is busy, as it is after an
    experiment, the answer takes 2 s, and where the server is away the task fails. The flow runs above carry the tags.
    """
    from prefect.context import TagsContext

    with TagsContext(current_tags=set()):
        yield


def label_run(verdict: str) -> None:
    """Puts ``verdict`` into the current flow run's name and tags.

    The page colours by the state's type, so that supported and rejected look the same, and filters by tag.
    """
    from prefect.client.orchestration import get_client
    from prefect.runtime import flow_run

    if flow_run.id is None:
        raise ValueError("there is no flow run to label")
    with get_client(sync_client=True) as client:
        run = subflow_run() or client.read_flow_run(flow_run.id)
        name = _CASE_ENDS.sub("", run.name)
        tags = [tag for tag in run.tags if not tag.startswith("verdict:")]
        client.update_flow_run(run.id, name=f"{name}: {verdict.upper()}", tags=[*tags, verdict_tag(verdict)])


def subflow_run() -> FlowRun | None:
    """The current flow run where it is below another, as it began: nobody tags such a run meanwhile."""
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    run = context.flow_run if context is not None else None
    return run if run is not None and run.parent_task_run_id is not None else None
