"""The board: what the page and the terminal show of the same rows."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrows.flows.board import Board, BoardRow, board_key, board_markdown, board_table, chain, data_uri, label_run
from narrows.flows.server import ServerHandle

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 40


def row(scope: str, verdict: str, **given: str) -> BoardRow:
    texts = {"hypothesis": "kernels slowed", "prediction": "compute +8 ms", "reject_if": "below +2 ms", "evidence": ""}
    return BoardRow(scope=scope, verdict=verdict, **{**texts, **given})


ROWS = [
    row("one rank", "rejected", evidence="-0.1 ms [-0.4, 0.2]"),
    row("two nodes", "supported", evidence="8.4 ms [8.1, 8.8]"),
    row("two nodes", "running"),
    row("full", "registered"),
]


def test_the_chain_gathers_the_verdicts_of_each_scope_in_order() -> None:
    assert chain(ROWS) == "one rank \u2717 \u2192 two nodes \u2713\u25b8 \u2192 full \u00b7"


@given(st.text())
def test_no_text_can_break_a_row_of_the_table(text: str) -> None:
    given = row("one rank", "rejected", number="H1", evidence=text, prediction=text)
    lines = [line for line in board_markdown("t", [given]).splitlines() if "H1" in line]
    assert len(lines) == 2
    for line in lines:
        assert len(re.findall(r"(?<!\\)\|", line)) == 4
        assert "<" not in line.replace("<br>", "")


def test_the_verdict_stands_before_what_may_be_too_wide_and_long_texts_break() -> None:
    text = board_markdown("t", [row("one rank", "rejected", number="H07", evidence="no shift " * 20)])
    (line,) = [line for line in text.splitlines() if "no shift" in line]
    assert line.startswith("| \u2717 **rejected** | H07 one rank<br>kernels slowed |")
    assert max(len(part) for part in re.split(r"<br>|\|", line)) <= 44


def test_a_picture_goes_into_the_text_unless_it_would_be_too_large() -> None:
    text = board_markdown("t", ROWS, {"ledger": PNG, "huge": PNG + b"\0" * 1_000_000})
    assert f"![ledger]({data_uri(PNG)})" in text
    assert "huge: left out here, 1.0 MB" in text
    with pytest.raises(ValueError, match="PNG"):
        data_uri(b"GIF89a")


def test_the_terminal_shows_the_same_cells() -> None:
    from rich.console import Console

    console = Console(width=200, record=True, file=io.StringIO())
    console.print(board_table("Why [slow]?", ROWS))
    shown = console.export_text()
    for one in ROWS:
        assert all(cell in shown for cell in one.cells())
    assert "Why [slow]?" in shown
    assert chain(ROWS) in shown


@given(st.text())
def test_a_key_has_only_what_prefect_takes(slug: str) -> None:
    key = board_key(f"{slug}7")
    assert re.fullmatch(r"board-[a-z0-9]+(-[a-z0-9]+)*", key)
    assert len(key) < 200


def test_a_name_without_a_letter_or_digit_makes_no_key() -> None:
    with pytest.raises(ValueError, match="'--_'"):
        board_key("--_")


@pytest.mark.prefect
def test_the_board_is_one_artifact_that_is_updated_in_place(narrows_server: ServerHandle) -> None:
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
    from prefect.states import Completed

    @flow(flow_run_name="investigate")
    def investigate() -> object:
        board = Board("Reg_17", "Why slower?")
        board.show([row("one rank", "running")])
        board.show([row("one rank", "rejected", evidence="no shift")])
        Board("Reg_17", "Why slower?").show(ROWS, {"ledger": PNG})  # as after a restart of the same run
        label_run("inconclusive")
        label_run("rejected")
        return Completed(name="Rejected", message="as measured")

    state = investigate(return_state=True)
    assert state.name == "Rejected"
    with get_client(sync_client=True) as client:
        mine = ArtifactFilter(key=ArtifactFilterKey(any_=["board-reg-17"]))
        artifacts = client.read_artifacts(artifact_filter=mine)
        run = client.read_flow_run(state.state_details.flow_run_id)
    assert [artifact.data for artifact in artifacts] == [board_markdown("Why slower?", ROWS, {"ledger": PNG})]
    assert run.name == "investigate: REJECTED"
    assert [tag for tag in run.tags if tag.startswith("verdict:")] == ["verdict:rejected"]
