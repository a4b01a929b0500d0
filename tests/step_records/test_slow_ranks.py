"""Slow ranks in step records: planted faults are named, and equals are not told apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import step_record_makers as make
from hypothesis import given, settings
from hypothesis import strategies as st

from narrows.inquiry.accounts import ACCOUNTS
from narrows.inquiry.errors import RunDirectoryError
from narrows.reducers.compared_parts import Comparison
from narrows.reducers.compared_plain import report
from narrows.reducers.compared_records import compare_records
from narrows.reducers.readers.step_records import PARTS
from narrows.reducers.slow_ranks import compute_waits
from narrows.reducers.step_record_sides import RecordFile, step_table

NAMES = ("before", "after")


def compared(healthy: list[RecordFile], regressed: list[RecordFile]) -> Comparison:
    return compare_records(healthy, regressed, NAMES)


def without(files: list[RecordFile], *parts: str) -> list[RecordFile]:
    """The same records, as a program writes them that does not time these parts."""
    kept = tuple(part for part in PARTS if part not in parts)
    return [
        replace(
            one,
            records=replace(
                one.records,
                parts=kept,
                steps=tuple(replace(step, **dict.fromkeys(parts)) for step in one.records.steps),
            ),
        )
        for one in files
    ]


@pytest.mark.parametrize("waits_in", ["compute_ms", "comm_ms", "wait_ms"])
@pytest.mark.parametrize(("rank", "loss", "span"), [(0, 8.0, (120, 220)), (5, 30.0, (80, 140)), (7, 8.0, (250, 390))])
def test_a_rank_that_is_slow_for_a_while_is_named_wherever_the_others_wait(
    waits_in: str, rank: int, loss: float, span: tuple[int, int]
) -> None:
    slow = make.job(1, own=[((rank,), (loss, *span))], waits_in=waits_in)
    found = compared(make.job(0, waits_in=waits_in), slow)
    assert (found.status, found.culprit, found.lead) == ("slower", {"kind": "rank", "members": [rank]}, "residual")
    assert found.slow_steps is not None
    assert np.abs(np.subtract(found.slow_steps, (span[0], span[1] - 1))).max() <= 10
    assert found.step.delta == pytest.approx(loss, rel=0.25)


def test_the_account_of_a_slow_rank_is_the_part_that_times_its_loss() -> None:
    found = compared(make.job(0), make.job(1, own=[((3,), (20.0, 100, 300))], moved_to="data_ms"))
    assert (found.lead, found.next.row) == ("input", "input")
    assert found.next.predicted_ms == pytest.approx(20.0, rel=0.1)


def test_slow_kernels_are_laid_to_compute_where_the_others_wait_outside_of_it() -> None:
    slow = make.job(1, own=[((3,), (20.0, 100, 300))], moved_to="compute_ms", waits_in="comm_ms")
    found = compared(make.job(0, waits_in="comm_ms"), slow)
    assert (found.lead, found.culprit["members"], found.next.row) == ("compute", [3], "compute-somewhere")


def test_a_slow_rank_is_not_told_from_all_where_compute_hides_it_and_that_is_said() -> None:
    slow = make.job(1, own=[((3,), (20.0, 100, 300))], moved_to="compute_ms", waits_in="compute_ms")
    found = compared(make.job(0), slow)
    assert found.culprit["kind"] == "all"
    assert any("kernels slow down there cannot be told" in limit for limit in found.limits)


def test_a_loss_that_sets_in_slowly_is_found_with_its_rank() -> None:
    ramp = [((2,), (2.0, start, 300)) for start in range(100, 300, 20)]
    found = compared(make.job(0), make.job(1, own=ramp))
    assert found.culprit == {"kind": "rank", "members": [2]}
    assert found.slow_steps is not None
    assert found.slow_steps[0] <= 150


def test_a_few_long_stalls_need_a_lasting_loss_beside_them_to_name_a_rank() -> None:
    stalls = [((2,), (900.0, 150, 151)), ((2,), (200.0, 154, 155))]
    assert compared(make.job(0), make.job(1, own=stalls)).culprit["kind"] == "none"
    lasting = [*stalls, ((2,), (0.8, 150, 350))]
    assert compared(make.job(0), make.job(1, own=lasting)).culprit == {"kind": "rank", "members": [2]}


def test_a_slow_rank_is_named_beside_ranks_that_are_late_by_turns() -> None:
    """As long as the late ones are, so that only the mean step and who stays slow tell."""
    slow = make.job(1, own=[((6,), (85.0, 100, 300))], stragglers=80.0)
    assert compared(make.job(0, stragglers=80.0), slow).culprit == {"kind": "rank", "members": [6]}


HOSTS = ("a",) * 4 + ("b",) * 4


def test_a_host_is_named_where_exactly_its_ranks_are_slow() -> None:
    found = compared(make.job(0, hosts=HOSTS), make.job(1, own=[((4, 5, 6, 7), (12.0, 100, 300))], hosts=HOSTS))
    assert found.culprit == {"kind": "host", "members": ["b"]}


def test_two_slow_ranks_of_two_hosts_are_ranks() -> None:
    found = compared(make.job(0, hosts=HOSTS), make.job(1, own=[((3, 4), (12.0, 100, 300))], hosts=HOSTS))
    assert found.culprit == {"kind": "rank", "members": [3, 4]}


EVERYONE = [(range(8), (12.0, 100, 300))]


def test_own_time_that_comes_and_goes_on_every_rank_of_the_only_host_is_the_hosts() -> None:
    one = ("a",) * 8
    assert compared(make.job(0, hosts=one), make.job(1, own=EVERYONE, hosts=one)).culprit == {
        "kind": "host", "members": ["a"]
    }  # fmt: skip
    assert compared(make.job(0, hosts=HOSTS), make.job(1, own=EVERYONE, hosts=HOSTS)).culprit["kind"] == "all"
    assert compared(make.job(0), make.job(1, own=EVERYONE)).culprit["kind"] == "all"


def test_own_time_of_every_rank_throughout_may_be_code_and_names_no_host() -> None:
    one = ("a",) * 8
    found = compared(make.job(0, hosts=one), make.job(1, own=[(range(8), (12.0, 0, 400))], hosts=one))
    assert (found.status, found.slow_steps, found.culprit["kind"]) == ("slower", None, "all")


def test_slower_collectives_of_all_are_transfer_of_all() -> None:
    found = compared(make.job(0), make.job(1, comm=16.0))
    assert (found.status, found.slow_steps, found.culprit["kind"]) == ("slower", None, "all")
    assert (found.lead, found.next.row) == ("transfer", "transfer")
    assert found.step.delta == pytest.approx(10.0, rel=0.05)


def test_a_rank_slow_throughout_is_named() -> None:
    found = compared(make.job(0), make.job(1, own=[((4,), (9.0, 0, 400))]))
    assert (found.slow_steps, found.culprit) == (None, {"kind": "rank", "members": [4]})


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
@pytest.mark.parametrize("stragglers", [0.0, 40.0])
def test_runs_without_a_fault_are_not_told_apart(phi: float, stragglers: float) -> None:
    for seed in range(12):
        arms = [make.job(100 + 2 * seed + at, phi=phi, stragglers=stragglers) for at in (0, 1)]
        found = compared(*arms)
        assert (found.slow_steps, found.culprit["kind"]) == (None, "none"), seed
        assert found.status in ("same", "unclear"), seed


@pytest.mark.parametrize("stragglers", [0.0, 40.0, 80.0])
def test_the_halves_of_one_run_are_not_told_apart(stragglers: float) -> None:
    for seed in range(6):
        run = step_records_of(make.job(seed, steps=500, stragglers=stragglers))
        for found in (compared(*run), compared(*reversed(run))):
            assert (found.culprit["kind"], found.slow_steps) == ("none", None)
            assert found.status in ("same", "unclear")


def step_records_of(files: list[RecordFile]) -> tuple[list[RecordFile], list[RecordFile]]:
    halves: tuple[list[RecordFile], list[RecordFile]] = ([], [])
    for file in files:
        middle = len(file.records.steps) // 2
        halves[0].append(replace(file, records=replace(file.records, steps=file.records.steps[:middle])))
        halves[1].append(replace(file, records=replace(file.records, steps=file.records.steps[middle:])))
    return halves


def test_a_fault_in_the_healthy_run_names_nobody() -> None:
    found = compared(make.job(0, own=[((3,), (20.0, 100, 300))]), make.job(1))
    assert found.culprit["kind"] == "none"
    assert found.status != "slower"


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(8)))
def test_the_name_follows_the_rank_whatever_its_number(order: list[int]) -> None:
    def renamed(files: list[RecordFile]) -> list[RecordFile]:
        return [
            replace(one, records=replace(one.records, rank=to)) for one, to in zip(files, order, strict=True)
        ]  # fmt: skip

    found = compared(renamed(make.job(0)), renamed(make.job(1, own=[((3,), (15.0, 100, 300))])))
    assert found.culprit == {"kind": "rank", "members": [order[3]]}


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 99),
    st.sampled_from(["compute_ms", "comm_ms", "wait_ms"]),
    st.sets(st.sampled_from(PARTS)),
    st.floats(0, 40),
)
def test_accounts_add_up_to_the_step_in_every_view(seed: int, waits_in: str, missing: set[str], loss: float) -> None:
    healthy = without(make.job(seed, ranks=4, steps=150, waits_in=waits_in), *missing)
    slow = make.job(seed + 100, ranks=4, steps=150, waits_in=waits_in, own=[((1,), (loss, 60, 120))])
    found = compared(healthy, slow)
    for table in found.views.values():
        assert set(table) == set(map(str, ACCOUNTS))
        for arm in ("healthy", "regressed"):
            total = sum(getattr(one, arm) for one in table.values())
            assert total == pytest.approx(getattr(found.step, arm))
    assert report(found)["kind"] == "comparison"


def test_a_part_that_one_side_lacks_is_used_on_neither() -> None:
    slow = make.job(1, own=[((3,), (20.0, 100, 300))])
    found = compared(without(make.job(0), "comm_ms"), slow)
    assert found.culprit == {"kind": "rank", "members": [3]}
    assert any("not recorded on both sides: comm_ms" in limit for limit in found.limits)


def test_step_times_alone_show_the_slow_steps_and_name_nobody() -> None:
    found = compared(*(without(files, *PARTS) for files in (make.job(0), make.job(1, own=[((3,), (20.0, 100, 300))]))))
    assert (found.status, found.culprit["kind"], found.lead) == ("slower", "none", None)
    assert found.slow_steps is not None
    assert any("no rank can be told from another" in limit for limit in found.limits)


def test_where_the_ranks_wait_is_read_off_the_records() -> None:
    for part, expected in (("compute_ms", True), ("comm_ms", False), ("wait_ms", False)):
        tables = step_table(make.job(0, waits_in=part), "a"), step_table(make.job(1, waits_in=part), "b")
        assert compute_waits(tables) is expected


def test_steps_that_a_rank_lacks_are_left_out_for_all_and_counted() -> None:
    files = make.job(0, ranks=3, steps=100)
    files[1] = replace(files[1], records=replace(files[1].records, steps=files[1].records.steps[:80]), torn=True)
    table = step_table(files, "run")
    assert (table.steps_T[0], table.steps_T[-1]) == (10, 79)
    assert table.losses == (
        "rank_1.jsonl: its gzip is torn; what came before the cut was read",
        "20 of 100 steps are not on every rank and were left out",
    )


def test_files_that_are_not_of_one_run_are_refused() -> None:
    files = make.job(0, ranks=2, steps=60)
    with pytest.raises(RunDirectoryError, match="both of rank 0"):
        step_table([files[0], files[0]], "run")
    with pytest.raises(RunDirectoryError, match="names its rank"):
        step_table([replace(files[0], records=replace(files[0].records, rank=None))], "run")
    with pytest.raises(RunDirectoryError, match="no step is recorded on every rank"):
        step_table([files[0], make.job(0, ranks=2, steps=60, first=500)[1]], "run")
    with pytest.raises(ValueError, match="same ranks"):
        compared(files, files[:1])
    with pytest.raises(ValueError, match="mean of their steps alone"):
        compare_records(files, files, NAMES, "p95")
