"""Labelled slow runs, where they are at hand: whom the comparison names in each, and that equals are not told apart."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from narrows.reducers.compared_parts import Comparison
from narrows.reducers.compared_records import compare_records
from narrows.reducers.step_record_sides import RecordFile, record_file

DATA = Path(__file__).parents[3] / "shared" / "data" / "labelled-slow-runs"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the labelled slow runs are not beside the project")

# Faults that leave nothing in these records: one whose healthy run is slower, one that costs under 1 % of the step.
UNSEEN = {"p3-ext-b-quiet", "p3-sw-c-quiet"}
TRUTH: dict[str, dict[str, Any]] = json.loads((DATA / "truth.json").read_text()) if DATA.is_dir() else {}
RANK_FAULTS = [case for case, true in TRUTH.items() if true["victim_scope"] == "rank" and case not in UNSEEN]


@cache
def side(case: str, arm: str) -> tuple[RecordFile, ...]:
    return tuple(record_file(path) for path in sorted((DATA / case / arm).iterdir()))


@cache
def compared(case: str) -> Comparison:
    return compare_records(side(case, "healthy"), side(case, "regressed"), ("healthy", "regressed"))


@pytest.mark.parametrize("case", RANK_FAULTS)
def test_the_slow_rank_is_named_in_steps_of_the_fault(case: str) -> None:
    found, true = compared(case), TRUTH[case]
    assert (found.status, found.culprit) == ("slower", {"kind": "rank", "members": [true["victim_rank"]]})
    first, last = true["fault_steps"]
    assert found.slow_steps is not None
    assert first - 10 <= found.slow_steps[0] < found.slow_steps[1] <= last + 10


def test_a_fault_of_the_interconnect_is_transfer_of_all_ranks() -> None:
    found = compared("p2-sw-b-loud")
    assert (found.status, found.culprit["kind"], found.lead) == ("slower", "all", "transfer")


def test_a_fault_of_the_host_is_laid_to_the_only_host() -> None:
    found = compared("p3-ext-a-loud")
    assert (found.status, found.culprit) == ("slower", {"kind": "host", "members": ["node 0"]})


@pytest.mark.parametrize("case", sorted(UNSEEN & set(TRUTH)))
def test_nobody_is_named_where_the_step_is_no_slower(case: str) -> None:
    found = compared(case)
    assert found.status in ("same", "faster")
    assert found.culprit["kind"] == "none"


@pytest.mark.parametrize("case", TRUTH)
def test_the_halves_of_a_healthy_run_are_not_told_apart(case: str) -> None:
    files = side(case, "healthy")
    middle = len(files[0].records.steps) // 2
    first, second = (
        [replace(one, records=replace(one.records, steps=one.records.steps[part])) for one in files]
        for part in (slice(0, middle), slice(middle, None))
    )
    for found in (compare_records(first, second, ("a", "b")), compare_records(second, first, ("b", "a"))):
        assert found.culprit["kind"] == "none"
        assert found.status in ("same", "unclear")
        assert found.slow_steps is None


def test_a_fault_in_the_healthy_place_makes_nobody_slower() -> None:
    for case in RANK_FAULTS:
        found = compare_records(side(case, "regressed"), side(case, "healthy"), ("regressed", "healthy"))
        assert (case, found.status == "slower", found.culprit["kind"]) == (case, False, "none")


@pytest.mark.parametrize("case", TRUTH)
def test_swapping_the_runs_flips_every_sign_and_names_nobody_who_is_well(case: str) -> None:
    found = compared(case)
    turned = compare_records(side(case, "regressed"), side(case, "healthy"), ("regressed", "healthy"))
    assert turned.step.delta == pytest.approx(-found.step.delta)
    assert {name: change.delta for name, change in turned.accounts.items()} == pytest.approx(
        {name: -change.delta for name, change in found.accounts.items()}
    )
    assert turned.status == {"slower": "faster", "faster": "slower"}.get(found.status, found.status)
    if found.status == "slower":
        assert turned.culprit["kind"] == "none"
