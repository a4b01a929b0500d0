from __future__ import annotations

import pandas as pd
import pytest

from narrows.reducers.numerator import (
    NumeratorResult,
    NumeratorVerdict,
    Work,
    compare_work,
    judge_numerator,
    work_of,
    work_of_units,
)


def _work(**counters: float) -> Work:
    return Work(total=counters, max_rank={name: value / 2 for name, value in counters.items()})


def _judge(healthy: Work, regressed: Work, moved: float = 10.0, delta: float = 10.0) -> NumeratorResult:
    return judge_numerator(healthy, regressed, compute_ms=100.0, compute_change_ms=moved, delta_ms=delta)


def test_a_tenth_more_flops_explain_a_tenth_more_compute() -> None:
    result = _judge(_work(model_flops=1000, valid_tokens=50), _work(model_flops=1100, valid_tokens=50))
    assert result.verdict is NumeratorVerdict.NUMERATOR
    assert result.counter == "model_flops"
    assert (result.pi_num_ms, result.explained_share) == pytest.approx((10, 1))
    assert result.remaining_ms == pytest.approx(0)
    assert "the step is slower because it does more" in result.sentence


@pytest.mark.parametrize(
    ("moved", "delta", "verdict"),
    [
        (7.6, 10.0, NumeratorVerdict.NUMERATOR),
        (7.4, 10.0, NumeratorVerdict.CHANGED),
        (12.4, 19.9, NumeratorVerdict.NUMERATOR),
        (12.6, 10.0, NumeratorVerdict.CHANGED),
        (10.0, 20.1, NumeratorVerdict.CHANGED),
    ],
)
def test_the_rule_asks_for_half_of_the_loss_and_a_quarter_of_the_prediction(
    moved: float, delta: float, verdict: NumeratorVerdict
) -> None:
    assert _judge(_work(model_flops=1000), _work(model_flops=1100), moved, delta).verdict is verdict


def test_less_work_never_explains_a_loss() -> None:
    assert _judge(_work(model_flops=1000), _work(model_flops=900), moved=-10.0).verdict is NumeratorVerdict.CHANGED


def test_equal_work_is_unchanged_and_leaves_the_whole_loss() -> None:
    result = _judge(_work(model_flops=1000), _work(model_flops=1000))
    assert (result.verdict, result.changes, result.remaining_ms) == (NumeratorVerdict.UNCHANGED, (), 10.0)


def test_executed_flops_speak_before_every_other_counter() -> None:
    recomputed = _judge(_work(executed_flops=1000, model_flops=900), _work(executed_flops=1330, model_flops=900))
    assert (recomputed.counter, recomputed.pi_num_ms) == ("executed_flops", pytest.approx(33))
    same = _judge(_work(executed_flops=1000, padded_tokens=10), _work(executed_flops=1000, padded_tokens=20))
    assert (same.verdict, same.counter) == (NumeratorVerdict.CHANGED, None)


def test_padding_counts_like_valid_tokens() -> None:
    result = _judge(_work(valid_tokens=90, padded_tokens=10), _work(valid_tokens=90, padded_tokens=20))
    assert result.pi_num_ms == pytest.approx(10)


def test_a_heavier_heaviest_rank_at_equal_totals_is_a_distribution() -> None:
    healthy = Work(total={"sum_sq_len": 400.0, "valid_tokens": 40.0}, max_rank={"sum_sq_len": 100.0})
    regressed = Work(total={"sum_sq_len": 400.0, "valid_tokens": 40.0}, max_rank={"sum_sq_len": 180.0})
    result = _judge(healthy, regressed)
    assert (result.verdict, result.counter) == (NumeratorVerdict.DISTRIBUTION, "sum_sq_len")
    assert result.remaining_ms == 10.0
    assert "heaviest rank changed by 1.8x" in result.sentence


def test_a_counter_that_one_run_did_not_record_is_a_difference_without_a_factor() -> None:
    (change, _) = compare_work(_work(samples=4), Work(total={}, max_rank={}))
    assert (change.counter, change.healthy, change.regressed, change.factor) == ("samples", 4, None, None)


def test_more_bytes_alone_predict_no_compute() -> None:
    result = _judge(_work(payload_bytes=10), _work(payload_bytes=20))
    assert (result.verdict, result.pi_num_ms) == (NumeratorVerdict.CHANGED, 0.0)
    assert result.sentence.startswith("payload_bytes changed")


def test_work_is_summed_over_ranks_and_taken_at_the_heaviest() -> None:
    rows = [(0, 0, 3, 1.0), (1, 0, 5, 1.0), (0, 1, 4, 1.0), (1, 1, 4, None)]
    table = pd.DataFrame(rows, columns=["rank", "step", "valid_tokens", "sum_sq_len"])
    work = work_of(table)
    assert (work.total, work.max_rank) == ({"valid_tokens": 8.0}, {"valid_tokens": 4.5})
    relabelled = work_of(table.assign(rank=[7, 3, 7, 3]).iloc[::-1])
    assert relabelled == work


def test_a_table_of_units_gives_the_same_work() -> None:
    table = pd.DataFrame({"segment": [0, 1], "valid_tokens_sum": [8.0, 8.0], "valid_tokens_max": [5.0, 4.0]})
    work = work_of_units(table)
    assert (work.total, work.max_rank) == ({"valid_tokens": 8.0}, {"valid_tokens": 4.5})


def test_a_work_table_without_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks rank"):
        work_of(pd.DataFrame({"step": [0], "valid_tokens": [1]}))


def test_executed_flops_that_one_run_alone_records_are_held_against_the_models_flops_of_the_other() -> None:
    """A run records them only where they differ, which recomputation, padding and spare capacity make them."""
    result = _judge(
        _work(model_flops=1000, valid_tokens=50), _work(model_flops=1000, executed_flops=1100, valid_tokens=50)
    )

    assert result.verdict is NumeratorVerdict.NUMERATOR
    assert result.counter == "executed_flops"


@pytest.mark.parametrize(("moved", "counter"), [(10.0, "valid and padded tokens"), (40.0, "executed_flops")])
def test_of_counters_that_grew_apart_the_one_that_the_compute_followed_explains(moved: float, counter: str) -> None:
    """Padding adds a tenth of the tokens and four tenths of the FLOPs: the kernels decide which of them counts."""
    result = _judge(
        _work(model_flops=1000, valid_tokens=50, padded_tokens=0),
        _work(model_flops=1000, executed_flops=1400, valid_tokens=50, padded_tokens=5),
        moved=moved,
        delta=moved,
    )

    assert result.verdict is NumeratorVerdict.NUMERATOR
    assert result.counter == counter


def test_compute_that_followed_no_counter_is_not_explained_by_any() -> None:
    result = _judge(
        _work(model_flops=1000, valid_tokens=50, padded_tokens=0),
        _work(model_flops=1000, executed_flops=1400, valid_tokens=50, padded_tokens=5),
        moved=20.0,
        delta=20.0,
    )

    assert result.verdict is NumeratorVerdict.CHANGED
