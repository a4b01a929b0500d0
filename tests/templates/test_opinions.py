"""The third opinion and the ledgers of the slow steps, in a postmortem and in a comparison."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import synthetic_cases as cases

from narrows.inquiry.accounts import ACCOUNTS
from narrows.templates.comparison_opinions import opinion_cells, opinions_of, slow_rows, slow_steps_of
from narrows.templates.opinions import table_of
from narrows.templates.render import render_postmortem
from narrows.templates.slow_steps import window_table
from narrows.templates.view import postmortem_view

TAIL = "the slowest steps changed more than the typical one (the slowest 5 % of the steps carry 97 %)"


def window(**accounts: float) -> dict[str, dict[str, float]]:
    table = dict.fromkeys(map(str, ACCOUNTS), 0.0) | accounts
    return dict.fromkeys(("rank_mean", "critical_path", "least_waiting_rank"), table)


def section(played: cases.Played) -> str:
    view = postmortem_view(played.case, played.docket, played.evidence, cases.DIRECTORY)
    return render_postmortem(view).partition("## Where the time went\n")[2].partition("\n## ")[0]


def with_tail() -> cases.Played:
    played = cases.explained()
    given = played.evidence["given"]
    given |= {"findings": [{"name": "tail_mechanism", "sentence": TAIL}], "tail": {"statistic": "es95"}}
    for arm, input_ms in (("healthy", 0.4), ("regressed", 90.4)):
        given["arms"][arm]["windows"] = {
            "median": window(compute=31.0, input=0.4), "es95": window(compute=33.0, input=input_ms),
        }  # fmt: skip
    return played


def test_three_opinions_that_agree_stand_in_one_table_with_links_to_the_evidence() -> None:
    text = section(cases.explained())
    assert "**A third opinion**: all three put compute first" in text
    [row] = [line for line in text.splitlines() if line.startswith("| compute |") and "96 %" in line and "87 %" in line]
    assert row.count("(evidence/given.json)") == 3
    assert "differs from what was measured by [+0.2 %](evidence/given.json) and [-0.4 %](evidence/given.json)" in text
    assert "No verdict rests on them" not in text


def test_a_replay_that_was_withheld_shows_its_reason_and_no_table() -> None:
    text = section(cases.link())
    assert f"**A third opinion**: the what-if replay is withheld: {cases.WITHHELD}." in text
    assert "what-if replay |" not in text


def test_opinions_that_differ_are_said_not_to_carry_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = "the opinions differ: the critical path puts compute first (96%)"
    monkeypatch.setitem(cases.FINDINGS, "opinions", cases.OPINIONS | {"agree": False, "sentence": sentence})
    text = section(cases.explained())
    assert f"**A third opinion**: {sentence}." in text
    assert "Where opinions differ, causes may overlap. No verdict rests on them." in text


def test_an_account_that_interacts_shows_both_of_the_replays_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    found = copy.deepcopy(cases.OPINIONS)
    found["accounts"][0] |= {"replay": None, "removal": 0.4, "addition": 0.9}
    monkeypatch.setitem(cases.FINDINGS, "opinions", found)
    assert "[40 %](evidence/given.json) taken away, [90 %](evidence/given.json) put in |" in section(cases.explained())
    assert opinion_cells(table_of(found, None).rows[0])[-1] == "40 % taken away, 90 % put in"
    assert opinion_cells(table_of(found, None).rows[-1]) == ("skew", "0 %", "9 %", "-")


def test_slow_steps_have_a_table_only_where_the_loss_is_in_them() -> None:
    text = section(with_tail())
    assert f"- {TAIL}." in text
    row = next(line for line in text.splitlines() if line.startswith("| input |") and " to " in line)
    told = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", row)
    assert told == "| input | 0.4 to 0.4, 0.0 | 0.4 to 90.4, +90.0 |"
    assert "P95 needs 200 steps in a run." in text
    assert "Where the slow steps differ" not in section(cases.explained())


def test_columns_of_the_slow_steps_add_up_and_small_accounts_are_folded() -> None:
    before = {"median": window(compute=30.0, host=0.05), "es95": window(compute=31.0, host=0.06)}
    after = {"median": window(compute=30.5, host=0.05), "es95": window(compute=50.0, host=0.07)}
    table = window_table(before, after, "critical_path")
    assert table is not None
    assert [name for name, _ in table.rows] == ["compute", "others", "sum"]
    for at in range(2):
        cells = [one[at] for _, one in table.rows]
        for column in ("before", "after", "change"):
            values = [getattr(cell, column).value for cell in cells]
            assert sum(values[:-1]) == pytest.approx(values[-1])
    assert window_table({}, after, "critical_path") is None


def test_a_comparison_by_a_statistic_of_the_tail_asks_for_the_slow_steps() -> None:
    def change(healthy: float, regressed: float) -> dict[str, Any]:
        return {"healthy": healthy, "regressed": regressed, "delta": regressed - healthy, "interval": None}

    table = {"critical_path": {str(one): change(0.0, 0.0) for one in ACCOUNTS} | {"compute": change(30.0, 33.0)}}
    report = {"tail": "", "statistic": "mean", "view": "critical_path", "windows_ms": {"es95": table}, "what_if": None}
    assert slow_steps_of(report) is None
    assert opinions_of(report) is None
    shown = slow_steps_of(report | {"statistic": "es95"})
    assert shown is not None
    assert slow_rows(shown)[0] == ("compute", "30.00 to 33.00, +3.00")
    assert slow_steps_of(report | {"tail": TAIL}) is not None
