"""Expected beside measured as people read it: in the postmortem and in a comparison."""

from __future__ import annotations

from typing import Any

import pytest
import synthetic_cases as cases

from narrows.templates.expected import size, table_of
from narrows.templates.render import render_postmortem
from narrows.templates.view import postmortem_view


@pytest.fixture
def found() -> dict[str, Any]:
    """The first kind takes twice its time in the regressed run, and more of it is exposed."""
    one = cases.beside()
    one["rows"][0]["measured_us"]["regressed"] = 2724.0
    one["rows"][0]["exceeded"] = one["overlap"][0]["exceeded"] = ["regressed"]
    one["overlap"][0]["arms"]["regressed"]["exposed_ms"] = 8.2
    return one


def rendered(expected: dict[str, Any] | None) -> str:
    played = cases.link()
    played.evidence["given"]["expected"] = expected
    text = render_postmortem(postmortem_view(played.case, played.docket, played.evidence, cases.DIRECTORY))
    return text.partition("## Where the time went")[2].partition("\n## ")[0]


def test_the_postmortem_shows_what_exceeds_its_expectation_and_what_has_none(found: dict[str, Any]) -> None:
    text = rendered(found)
    source = "evidence/given.json"
    said = "regressed takes 2 times the expected; curve over 3 sizes of the healthy run"
    cells = [f"[{one}]({source})" for one in ("26.21 MB", "3", "39.32 MB", "6", "1362", "1370", "2724")]
    assert f"| dp all_reduce, 4 ranks across hosts | {' | '.join(cells)} | {said} |" in text
    assert f"| [4]({source}) | - | [41.0]({source}) | - | no curve: it moves no bytes; no link stated" in text
    assert f"| [8.20]({source}) | more than with expected services |" in text


def test_a_record_without_collectives_shows_nothing_of_it(found: dict[str, Any]) -> None:
    assert "Expected beside measured" not in rendered(None)
    assert "Expected beside measured" not in rendered(found | {"rows": []})


def test_one_basis_for_all_is_said_once_below_the_table(found: dict[str, Any]) -> None:
    bare = dict(found["rows"][1])
    only = table_of(found | {"rows": [bare]}, None)
    assert only is not None
    assert only.rows[0].said == ""
    assert only.notes[0] == f"No time is expected: {bare['why_not']}."
    assert not any("Flagged" in note for note in only.notes)


def test_of_very_many_kinds_the_first_and_the_flagged_have_rows(found: dict[str, Any]) -> None:
    slow, other = found["rows"]
    table = table_of(found | {"rows": [other] * 12 + [slow], "left_out": 5}, None)
    assert table is not None
    assert len(table.rows) == 9
    assert table.rows[-1].flag == "regressed takes 2 times the expected"
    assert "9 more kinds of collectives take less time a step." in table.notes
    told = "regressed takes 2 times the expected 1362 us (curve over 3 sizes of the healthy run)"
    assert table.flagged == (f"dp all_reduce, 4 ranks across hosts, 26.21 MB: {told}",)


def test_a_bubble_is_told_for_each_run_and_what_it_lacks_only_where_there_is_a_pipeline(found: dict[str, Any]) -> None:
    arm = {"stages": 4, "microbatches": 8, "chunks": 2, "share": 3 / 19, "expected_ms": 1.5, "waiting_ms": 4.0}
    bubble = {"arms": {"healthy": arm | {"waiting_ms": 1.6}, "regressed": arm}, "exceeded": ["regressed"]}
    table = table_of(found | {"bubble": bubble}, None)
    assert table is not None
    assert "4 stages and 8 microbatches, 2 parts of the model a stage leave 16 % of a step idle" in table.notes[-1]
    assert "should wait 1.5 ms a step, and waits 4 ms for other ranks. It is exceeded." in table.notes[-1]
    assert table.notes[-2].endswith("waits 1.6 ms for other ranks.")
    lacking = table_of(found | {"bubble": {"why_not": "the configuration does not name the microbatches"}}, None)
    assert lacking is not None
    assert lacking.notes[-1] == "No bubble: the configuration does not name the microbatches."


def test_bytes_a_step_are_told_of_both_runs_where_they_differ(found: dict[str, Any]) -> None:
    usual = table_of(found, None)
    assert usual is not None
    assert "In dp a rank sends 118 MB a step." in usual.notes
    more = table_of(found | {"sent": {"dp": {"healthy": 118e6, "regressed": 236e6}}}, None)
    assert more is not None
    assert "In dp a rank sends 118 MB a step in the healthy run, 236 MB a step in the regressed run." in more.notes


def test_bytes_are_in_decimal_units_as_rates_are() -> None:
    assert [size(one) for one in (0, 999, 1000, 196_608, 26_214_400, 1.5e9)] == [
        "0 B", "999 B", "1 KB", "196.6 KB", "26.21 MB", "1.5 GB",
    ]  # fmt: skip
