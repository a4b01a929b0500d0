"""A comparison as a table, as markdown and as a page: figures that add up, nothing loaded, nothing injected."""

from __future__ import annotations

import base64
import re
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from narrows.inquiry.accounts import ACCOUNTS
from narrows.templates.comparison import findings, render_html, render_markdown, render_text, table
from narrows.templates.comparison_figures import drawings
from narrows.templates.comparison_rings import parts_of


def change(healthy: float, regressed: float, interval: list[float] | None = None) -> dict[str, Any]:
    return {"healthy": healthy, "regressed": regressed, "delta": regressed - healthy, "interval": interval}


def typical(length: float) -> dict[str, Any]:
    kept = {"compute": length - 4.0, "skew": 3.0, "residual": 1.0}
    return {
        "rank": 2, "host": "n1", "step": 7, "step_ms": length, "accounts_ms": kept,
        "own": [["compute", 0.0, length - 4.0]],
        "communication": [["waiting", length - 4.0, length - 1.0], ["transfer", length - 1.0, length - 0.5]],
        "parts_ms": {"forward": (length - 4.0) / 3, "backward": 2 * (length - 4.0) / 3},
    }  # fmt: skip


@pytest.fixture
def report() -> dict[str, Any]:
    moved = {"compute": change(30.0, 36.0, [5.5, 6.5]), "skew": change(2.0, 3.0, [0.5, 1.5])}
    accounts = {str(one): moved.get(str(one), change(0.0, 0.0, [0.0, 0.0])) for one in ACCOUNTS}
    return {
        "source": "run directories", "arms": {"healthy": "runs/healthy", "regressed": "runs/regressed"},
        "statistic": "mean", "status": "slower", "step_ms": change(32.0, 39.0, [6.5, 7.5]), "view": "critical_path",
        "accounts_ms": accounts, "account": "compute", "reading": "The second run is slower.",
        "culprit": {"kind": "rank", "members": [2]}, "follows": "the change follows rank 2", "certainty": "8 pairs",
        "tail": "", "windows_ms": {}, "what_if": None, "work": None, "coverage": 0.97,
        "losses": ["ranks/00001/steps.jsonl: torn line (1)"],
        "window_steps": {"healthy": 96, "regressed": 95}, "limits": ["no work counters"],
        "labels": {arm: {"label": "compute", "version": "bt-1"} for arm in ("healthy", "regressed", "delta")},
        "manifest_differences": [
            {"field": "config.x", "healthy": "a|b", "regressed": "<i>c</i>", "why": "it may", "possible": True}
        ],
        "next": {"scope": "one_rank", "evidence": "compute grew", "experiment": "run it on rank 2",
                 "prediction": "6 ms", "rejection": "the upper bound is below 3 ms"},
        "pictures": {
            arm: {
                "steps_ms": [length + 0.1 * at for at in range(20)],
                "typical": typical(length),
                "arrivals": {"ranks": [0, 1, 2], "lateness_ms": [[0.0, 0.1], [0.2, 0.0], [length - 32, 3]], "more": 0},
            }
            for arm, length in (("healthy", 32.0), ("regressed", 39.0))
        },
    }  # fmt: skip


def test_the_step_comes_first_and_the_accounts_by_their_change(report: dict[str, Any]) -> None:
    lines = table(report)
    assert [line.name for line in lines] == ["step", "compute", "skew"]
    assert lines[1].cells == ("compute", "30.00", "36.00", "+6.00 [+5.50, +6.50]", "86 %")


def test_small_accounts_are_folded_so_that_the_column_still_adds_up(report: dict[str, Any]) -> None:
    report["accounts_ms"]["copy"] = change(0.02, 0.04)
    report["accounts_ms"]["input"] = change(0.01, 0.01)
    lines = table(report)
    assert lines[-1].name == "others"
    for column in ("healthy", "regressed"):
        shown = sum(float(getattr(line, column)) for line in lines[1:])
        assert shown == pytest.approx(float(getattr(lines[0], column)), abs=0.06)


def test_a_difference_within_one_percent_has_no_shares(report: dict[str, Any]) -> None:
    report["step_ms"] = change(32.0, 32.1)
    assert {line.share for line in table(report)} == {"-"}


def test_the_terminal_says_the_table_the_culprit_the_limits_and_the_next_experiment(report: dict[str, Any]) -> None:
    text = render_text(report)
    assert text.startswith("healthy against regressed: slower by 21.9 %\n")
    for part in ("rank 2", "8 pairs", "torn line", "no work counters", "97% of the collective", "below 3 ms"):
        assert part in text
    assert "ms a step, mean of each run's steps, accounts along the critical path" in text


@pytest.mark.parametrize("kind", ["none", "all", "varies", "host", "rank", "link", "group"])
def test_every_kind_of_culprit_has_words(kind: str, report: dict[str, Any]) -> None:
    report["culprit"] = {"kind": kind, "members": [] if kind in ("none", "all", "varies") else ["n1"]}
    words = dict((one.head, one.texts) for one in findings(report))["culprit"][0]  # noqa: C402  # keyed by the head
    assert words


def test_what_is_not_slower_says_that_there_is_nothing_to_look_for(report: dict[str, Any]) -> None:
    report["next"] = {"scope": None, "experiment": "nothing to look for", "evidence": "it is not slower"}
    assert render_text(report).rstrip().endswith("nothing to look for: it is not slower")


def test_markdown_keeps_its_table_whatever_the_values_hold(report: dict[str, Any]) -> None:
    text = render_markdown(report)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1
    assert "<i>" not in text
    assert "a\\|b" in text


def test_the_page_needs_nothing_else_and_runs_nothing(report: dict[str, Any]) -> None:
    page = render_html(report)
    assert "<script" not in page
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    assert "url(" not in page
    assert "<i>c</i>" not in page
    assert page.count("<img ") == 5
    assert not re.search(r"<img [^>]*alt=\"\"", page)


def test_every_picture_is_a_whole_svg_with_a_finding_as_its_title(report: dict[str, Any]) -> None:
    shown = drawings(report)
    assert [one.name for one in shown] == ["accounts", "steps", "lanes", "rings", "arrivals"]
    for one in shown:
        ET.fromstring(base64.b64decode(one.uri.partition(",")[2]))
    titles = {one.name: one.title for one in shown}
    assert titles["accounts"] == "Compute holds +6.00 ms of the step's +7.00 ms"
    assert titles["lanes"] == "One typical step of rank 2 (n1): +22 %"
    assert titles["arrivals"].startswith("Rank 2 of the regressed run comes latest")


def test_pictures_are_the_same_bytes_each_time(report: dict[str, Any]) -> None:
    assert drawings(report) == drawings(report)


def test_pictures_without_data_are_left_out(report: dict[str, Any]) -> None:
    for arm in report["pictures"].values():
        arm.update(steps_ms=[1.0], typical=None, arrivals=None)
    assert [one.name for one in drawings(report)] == ["accounts"]


def test_the_parts_of_a_ring_add_up_to_the_step(report: dict[str, Any]) -> None:
    step = report["pictures"]["regressed"]["typical"]
    parts = parts_of(step)
    assert sum(length for _, _, length in parts) == pytest.approx(step["step_ms"])
    assert {kind for kind, _, _ in parts} == {"compute", "communication", "idle"}
