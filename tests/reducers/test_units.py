"""A unit's statistic and the accounts that add up to it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats.mstats import hdquantiles

from narrows.inquiry.accounts import ACCOUNTS
from narrows.reducers.ledger import Ledger, build_ledger
from narrows.reducers.rundir import read_run
from narrows.reducers.units import Statistic, units, work
from narrows.reducers.views import critical_path, least_waiting_rank, rank_mean

MS = 1_000_000
NAMES = [str(account) for account in ACCOUNTS]


def _ledger(run) -> Ledger:
    with tempfile.TemporaryDirectory() as folder:
        return build_ledger(read_run(run.write(Path(folder) / "run")))


def _one_rank(blank_run, parts_us: list[tuple[int, int]], **fields) -> Ledger:
    """One rank, whose steps are input then compute of these lengths."""
    run, now = blank_run.of(1), 0
    for step, (read, compute) in enumerate(parts_us):
        middle, end = now + 1000 * read, now + 1000 * (read + compute)
        run.step(0, step, now, end, [("input", now, middle), ("forward", middle, end)], **fields)
        now = end
    return _ledger(run)


@pytest.fixture(scope="module")
def noisy(data_parallel) -> Ledger:
    draw = np.random.default_rng(3)
    noise = draw.gamma(2.0, 0.5 * MS, size=(4, 20))
    job = data_parallel(num_steps=10, segments=2, washout=2, compute=lambda rank, step: 6 * MS + int(noise[rank, step]))
    return _ledger(job.build())


@pytest.mark.parametrize("view", [rank_mean, critical_path, least_waiting_rank])
@pytest.mark.parametrize("statistic", [s for s in Statistic if s not in (Statistic.P95, Statistic.P99, Statistic.ES95)])
def test_accounts_of_every_view_and_statistic_sum_to_the_step(noisy, view, statistic):
    table = units(view(noisy), noisy, statistic)

    assert len(table) == 2
    assert table[NAMES].sum(axis=1).to_numpy() == pytest.approx(table["step_ms"].to_numpy(), abs=1e-9)


@given(
    parts_us=st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 5000)), min_size=1, max_size=60),
    statistic=st.sampled_from([Statistic.MEDIAN, Statistic.P25, Statistic.LOW50, Statistic.MEAN]),
)
@settings(max_examples=60, deadline=None)
def test_the_accounts_of_a_quantile_window_sum_to_the_quantile(blank_run, parts_us, statistic):
    ledger = _one_rank(blank_run, parts_us)
    row = units(rank_mean(ledger), ledger, statistic).iloc[0]
    step_ms = [(read + compute) / 1000 for read, compute in parts_us]

    assert sum(row[NAMES]) == pytest.approx(row["step_ms"], abs=1e-9)
    assert min(step_ms) - 1e-9 <= row["step_ms"] <= max(step_ms) + 1e-9


def test_the_median_is_harrell_davis_and_its_accounts_are_those_of_the_steps_near_it(blank_run):
    parts = [(100, 900)] * 5 + [(400, 800)] * 5 + [(5000, 5000)] * 5
    ledger = _one_rank(blank_run, parts)
    row = units(rank_mean(ledger), ledger, "median").iloc[0]
    expected = float(hdquantiles([(a + b) / 1000 for a, b in parts], [0.5])[0])

    assert row["step_ms"] == pytest.approx(expected)
    assert row["input"] / row["step_ms"] == pytest.approx(400 / 1200)


def test_low50_and_es95_are_plain_means_of_the_steps_at_either_end(blank_run):
    ledger = _one_rank(blank_run, [(0, us) for us in range(1, 101)])
    low, tail = (units(rank_mean(ledger), ledger, name).iloc[0]["step_ms"] for name in ("low50", "es95"))

    assert low == pytest.approx(np.mean(range(1, 51)) / 1000)
    assert tail == pytest.approx(np.mean(range(96, 101)) / 1000)


@pytest.mark.parametrize(("statistic", "least"), [("p95", 200), ("p99", 1000), ("es95", 20)])
def test_a_tail_of_too_few_steps_is_not_estimable(blank_run, statistic, least):
    short, long = (_one_rank(blank_run, [(1, us) for us in range(1, num + 1)]) for num in (least - 1, least))
    refused, given_ = (units(rank_mean(ledger), ledger, statistic).iloc[0] for ledger in (short, long))

    assert refused["status"] == f"not estimable: {statistic} needs {least} steps, the unit has {least - 1}"
    assert np.isnan(refused["step_ms"])
    assert given_["status"] == ""
    assert sum(given_[NAMES]) == pytest.approx(given_["step_ms"], abs=1e-9)


def test_a_unit_is_a_segment_without_its_washout(noisy):
    table = units(rank_mean(noisy), noisy, Statistic.MEAN)

    assert table["segment"].tolist() == [0, 1]
    assert table["pair"].tolist() == [0, 0]
    assert table["steps"].tolist() == [8, 8]
    assert set(table["launch"]) == {"launch-1"}
    assert set(table["arm"]) == {"healthy"}
    assert (table["started_ns"].to_numpy()[1:] >= table["ended_ns"].to_numpy()[:-1]).all()
    steady = ~noisy.steps["warmup"].to_numpy(dtype=bool)
    first = (noisy.steps["segment"] == 0).to_numpy() & steady
    mean_ms = (noisy.end_ns_RS - noisy.start_ns_RS)[:, first].mean() / MS
    assert table["step_ms"].iloc[0] == pytest.approx(mean_ms)


def test_a_pair_that_was_not_recorded_is_absent_not_zero(blank_run):
    ledger = _one_rank(blank_run, [(1, 2)])

    assert units(rank_mean(ledger), ledger, "mean")["pair"].isna().all()


def test_a_run_of_washout_alone_has_no_unit(blank_run):
    ledger = _one_rank(blank_run, [(1, 2)], warmup=True)

    assert len(units(rank_mean(ledger), ledger, "mean")) == 0


def test_the_boundary_of_the_least_waiting_rank_is_shown_and_is_inside_residual(noisy):
    view = least_waiting_rank(noisy)
    table = units(view, noisy, Statistic.MEAN)
    steady = (noisy.steps["segment"] == 0).to_numpy() & ~noisy.steps["warmup"].to_numpy(dtype=bool)

    assert table["boundary"].iloc[0] == pytest.approx(view.boundary_ns_S[steady].mean() / MS)
    measured_ms = view.account_ns_SA[steady, -1].mean() / MS
    assert table["residual"].iloc[0] == pytest.approx(measured_ms + table["boundary"].iloc[0])


def test_an_unknown_statistic_is_refused(noisy):
    with pytest.raises(ValueError, match="mode"):
        units(rank_mean(noisy), noisy, "mode")


def test_work_is_summed_and_maximised_over_ranks_a_step(noisy):
    table = work(noisy)

    assert table["valid_tokens_sum"].tolist() == [406.0, 406.0]
    assert table["valid_tokens_max"].tolist() == [103.0, 103.0]
    assert table["payload_bytes_sum"].tolist() == [4 * 3 * 1024.0] * 2
    assert table["collectives_sum"].tolist() == [12.0, 12.0]


def test_work_that_one_step_did_not_record_is_not_a_number(blank_run):
    run = blank_run.of(1)
    run.step(0, 0, 0, 10, useful={"valid_tokens": 5})
    run.step(0, 1, 10, 20)
    table = work(_ledger(run))

    assert pd.isna(table["valid_tokens_sum"]).all()


def test_work_does_not_depend_on_the_order_of_ranks(blank_run):
    def table(order):
        run = blank_run.of(3)
        for rank, tokens in zip(order, (0.1, 0.2, 0.7), strict=True):
            run.step(rank, 0, 0, 10, useful={"tokens": tokens * 1e9})
        return work(_ledger(run))[["tokens_sum", "tokens_max"]]

    pd.testing.assert_frame_equal(table((0, 1, 2)), table((2, 0, 1)), check_exact=True)
