"""Two sets of run directories described: the account, the ranks, the certainty, and what swapping the arms does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from narrows.inquiry.errors import RunDirectoryError
from narrows.reducers.compared_parts import Comparison
from narrows.reducers.compared_plain import report, with_pictures
from narrows.reducers.compared_runs import compare_runs, run_directories


def usual(rank: int, step: int) -> float:
    return 8.0 + 0.05 * ((step * 7 + rank * 3) % 11)


def slower_on(*ranks: int) -> Any:
    return lambda rank, step: usual(rank, step) + (3.0 if rank in ranks else 0.0)


def taking_turns(rank: int, step: int) -> float:
    return usual(rank, step) + (4.0 if (step * 5 + step // 3) % 4 == rank else 0.0)


def pair(
    folder: Path, arm: type[Any], before: dict[str, Any] | None = None, after: dict[str, Any] | None = None
) -> tuple[Path, Path]:
    healthy = arm(**{"compute": usual, "pairs": 8} | (before or {})).write(folder / "healthy")
    regressed = arm(**{"compute": usual, "pairs": 8} | (after or {})).write(
        folder / "regressed", arm="regressed", turn=1
    )
    return healthy, regressed


def compare(runs: tuple[Path, Path]) -> Comparison:
    return compare_runs([runs[0]], [runs[1]])


def test_one_slow_rank_is_named_with_its_account_and_the_next_experiment(tmp_path: Path, recorded_arm: Any) -> None:
    found = compare(pair(tmp_path, recorded_arm, after={"compute": slower_on(2)}))
    assert (found.status, found.lead, found.view, found.tested) == ("slower", "compute", "critical_path", True)
    assert found.culprit == {"kind": "rank", "members": [2]}
    assert found.step.delta == pytest.approx(3.0, rel=0.1)
    assert found.next.row == "compute-somewhere"
    assert found.next.predicted_ms == pytest.approx(3.0, rel=0.1)
    assert "rank 2" in found.next.evidence
    assert "rank 2" in found.follows


def test_a_slow_host_is_named_rather_than_its_ranks(tmp_path: Path, recorded_arm: Any) -> None:
    found = compare(pair(tmp_path, recorded_arm, after={"compute": slower_on(2, 3)}))
    assert found.culprit == {"kind": "host", "members": ["n1"]}
    assert "host n1" in found.follows


def test_when_every_rank_is_slower_nobody_is_singled_out(tmp_path: Path, recorded_arm: Any) -> None:
    found = compare(pair(tmp_path, recorded_arm, after={"compute": slower_on(0, 1, 2, 3)}))
    assert found.culprit == {"kind": "all", "members": []}
    assert found.next.row == "compute-everywhere"


def test_waiting_for_a_rank_that_changes_is_skew_of_no_rank(tmp_path: Path, recorded_arm: Any) -> None:
    found = compare(pair(tmp_path, recorded_arm, after={"compute": taking_turns}))
    assert (found.lead, found.view, found.culprit["kind"]) == ("skew", "rank_mean", "varies")
    assert found.next.row == "jitter"


def test_a_slower_link_is_transfer_between_the_hosts(tmp_path: Path, recorded_arm: Any) -> None:
    found = compare(pair(tmp_path, recorded_arm, after={"service": lambda _rank, _step: 5.0}))
    assert (found.lead, found.view) == ("transfer", "least_waiting_rank")
    assert found.culprit == {"kind": "link", "members": ["n0", "n1"]}
    assert found.next.row == "transfer-across"
    assert "dp" in found.next.evidence
    assert report(found)["delta_label"] == "communication"


def test_a_slower_loader_on_every_rank_is_input(tmp_path: Path, recorded_arm: Any) -> None:
    found = compare(pair(tmp_path, recorded_arm, after={"read": lambda _rank, _step: 3.5}))
    assert (found.lead, found.next.row) == ("input", "input")
    assert report(found)["delta_label"] == "input"


def test_two_halves_of_the_same_are_not_told_apart(tmp_path: Path, recorded_arm: Any) -> None:
    found = compare(pair(tmp_path, recorded_arm))
    assert found.status == "same"
    assert (found.lead, found.culprit["kind"], found.next.row) == (None, "none", "none")


def test_more_work_comes_before_every_other_reading(tmp_path: Path, recorded_arm: Any) -> None:
    heavy = {"compute": lambda rank, step: 1.4 * usual(rank, step), "useful": {"model_flops": 14.0}}
    found = compare(pair(tmp_path, recorded_arm, before={"useful": {"model_flops": 10.0}}, after=heavy))
    assert found.work is not None
    assert found.work.verdict == "numerator"
    assert found.next.row == "work"


@pytest.mark.parametrize("fault", ["rank", "turns", "link", "input"])
def test_swapping_the_arms_flips_every_sign(fault: str, tmp_path: Path, recorded_arm: Any) -> None:
    after = {
        "rank": {"compute": slower_on(1)},
        "turns": {"compute": taking_turns},
        "link": {"service": lambda _rank, _step: 5.0},
        "input": {"read": lambda _rank, _step: 3.5},
    }[fault]
    runs = pair(tmp_path, recorded_arm, after=after)
    there, back = compare(runs), compare((runs[1], runs[0]))
    assert (there.status, back.status) == ("slower", "faster")
    assert (there.view, there.lead) == (back.view, back.lead)
    assert back.step.delta == pytest.approx(-there.step.delta)
    for name, change in there.accounts.items():
        assert back.accounts[name].delta == pytest.approx(-change.delta, abs=1e-9)
    assert there.step.interval is not None
    assert back.step.interval == pytest.approx([-end for end in reversed(there.step.interval)])
    assert back.culprit["kind"] == "none"


@pytest.mark.parametrize("fault", [slower_on(1), taking_turns])
def test_the_accounts_of_every_view_add_up_to_the_step(fault: Any, tmp_path: Path, recorded_arm: Any) -> None:
    found = compare(pair(tmp_path, recorded_arm, after={"compute": fault}))
    for table in found.views.values():
        for arm in ("healthy", "regressed"):
            whole = sum(getattr(change, arm) for change in table.values())
            assert whole == pytest.approx(getattr(found.step, arm), rel=0.002)


def test_fewer_than_four_pairs_describe_and_say_so(tmp_path: Path, recorded_arm: Any) -> None:
    found = compare(pair(tmp_path, recorded_arm, before={"pairs": 3}, after={"pairs": 3, "compute": slower_on(2)}))
    assert (found.pairs, found.tested, found.status) == (3, False, "slower")
    assert "described, not tested" in found.certainty
    assert any("too few pairs" in limit for limit in found.limits)
    assert found.culprit == {"kind": "rank", "members": [2]}


def test_arms_that_did_not_take_turns_are_not_tested(tmp_path: Path, recorded_arm: Any) -> None:
    arm = recorded_arm(compute=usual, pairs=5)
    first = arm.write(tmp_path / "first", segments={at: at for at in range(5)})
    second = arm.write(tmp_path / "second", segments={at + 5: at for at in range(5)})
    found = compare((first, second))
    assert (found.pairs, found.tested) == (5, False)
    assert any("take turns" in limit for limit in found.limits)


def test_single_runs_pair_by_the_order_in_which_they_began(tmp_path: Path, recorded_arm: Any) -> None:
    paths = []
    for at in range(8):
        compute = slower_on(0, 1, 2, 3) if at % 2 else usual
        arm = recorded_arm(compute=compute, numbered=False, pairs=1, steps=24, began_ns=1_000_000_000 * (at * 60 + 1))
        paths.append(arm.write(tmp_path / f"run-{at}"))
    found = compare_runs(paths[::2], paths[1::2])
    assert (found.pairs, found.tested, found.status) == (4, True, "slower")


def test_runs_of_other_rank_counts_are_refused(tmp_path: Path, recorded_arm: Any) -> None:
    runs = pair(tmp_path, recorded_arm, after={"hosts": ("n0", "n0")})
    with pytest.raises(ValueError, match=r"4 ranks and .* 2: .* same rank count"):
        compare(runs)


def test_a_run_against_itself_is_refused(tmp_path: Path, recorded_arm: Any) -> None:
    healthy, _ = pair(tmp_path, recorded_arm)
    with pytest.raises(RunDirectoryError, match="in both arms"):
        compare((healthy, healthy))


def test_a_run_without_steps_is_an_error_that_names_it(tmp_path: Path, recorded_arm: Any) -> None:
    healthy, regressed = pair(tmp_path, recorded_arm)
    for file in regressed.glob("ranks/*/steps.jsonl"):
        file.write_text(file.read_text().splitlines()[0] + "\n")
    with pytest.raises(RunDirectoryError, match="regressed"):
        compare((healthy, regressed))


def test_lost_records_are_listed_and_named_among_the_limits(tmp_path: Path, recorded_arm: Any) -> None:
    healthy, regressed = pair(tmp_path, recorded_arm, after={"compute": slower_on(2)})
    torn = regressed / "ranks" / "00001" / "steps.jsonl"
    torn.write_bytes(torn.read_bytes()[:-20])
    found = compare((healthy, regressed))
    assert any("torn line" in loss for loss in found.losses)
    assert any("lost while reading" in limit for limit in found.limits)
    assert found.culprit == {"kind": "rank", "members": [2]}


def test_a_manifest_difference_is_possible_only_where_its_accounts_moved(tmp_path: Path, recorded_arm: Any) -> None:
    before = {"config": {"bucket_bytes": 1, "compute_scale": 1.0}, "manifest": {"program": "step"}}
    after = {"config": {"bucket_bytes": 2, "compute_scale": 1.4}, "manifest": {"program": "step"}}
    found = compare(pair(tmp_path, recorded_arm, before, after | {"compute": slower_on(0, 1, 2, 3)}))
    possible = {one["field"]: one["possible"] for one in found.differences}
    assert possible == {"config.bucket_bytes": False, "config.compute_scale": True}


def test_the_report_is_json_with_its_documented_keys(tmp_path: Path, recorded_arm: Any) -> None:
    found = report(compare(pair(tmp_path, recorded_arm, after={"compute": slower_on(2)})))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["schema"], found["kind"]) == (1, "comparison")
    assert set(found["step_ms"]) == {"healthy", "regressed", "delta", "interval"}
    assert found["accounts_ms"]["compute"]["delta"] == pytest.approx(3.0, rel=0.1)
    assert 0 < found["window_steps"]["healthy"] == found["window_steps"]["regressed"] < 8 * 12  # without the warm-up
    assert found["coverage"] == 1.0
    assert found["label"] == "compute"
    assert found["culprit"] == {"kind": "rank", "members": [2]}


def test_the_pictures_show_the_slow_rank_and_when_it_arrives(tmp_path: Path, recorded_arm: Any) -> None:
    found = with_pictures(compare(pair(tmp_path, recorded_arm, after={"compute": slower_on(2)})))["pictures"]
    for arm in ("healthy", "regressed"):
        step = found[arm]["typical"]
        assert step["rank"] == 2
        assert sum(step["accounts_ms"].values()) == pytest.approx(step["step_ms"])
        assert all(0 <= since < until <= step["step_ms"] for _, since, until in step["own"] + step["communication"])
    late = found["regressed"]["arrivals"]["lateness_ms"]
    assert [row[0] > 2 for row in late] == [False, False, True, False]


def test_a_folder_of_run_directories_stands_for_all_of_them(tmp_path: Path, recorded_arm: Any) -> None:
    healthy, regressed = pair(tmp_path, recorded_arm)
    assert run_directories(tmp_path) == (healthy, regressed)
    assert run_directories(healthy) == (healthy,)
    assert run_directories(healthy / "ranks") == ()
