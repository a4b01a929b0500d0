"""What must not matter to a verdict: how ranks are numbered, which arm is called first, in what unit time passes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrows.inquiry.scopes import Scope
from narrows.reducers.comparison import judge_scope
from narrows.reducers.evidence import VIEWS, ArmRuns, build_evidence
from narrows.reducers.ledger import build_ledger
from narrows.reducers.reconcile import Shape, reconcile
from narrows.reducers.rundir import read_run
from narrows.reducers.views import critical_path, least_waiting_rank

HOSTS = ("n0", "n0", "n1", "n1")
SCOPES = (Scope.ONE_RANK, Scope.ONE_NODE, Scope.TWO_NODES)


@st.composite
def arms(draw: st.DrawFn) -> dict[str, Any]:
    """Local times of four ranks in whole microseconds, one rank or all of them slower in the second arm."""
    base = draw(st.lists(st.integers(4_000, 9_000), min_size=4, max_size=4))
    jitter = draw(st.lists(st.integers(0, 300), min_size=24, max_size=24))
    slow = draw(st.sampled_from([(0,), (2,), (3,), (0, 1, 2, 3)]))
    added = draw(st.integers(2_000, 6_000))
    service = draw(st.integers(200, 3_000))
    return {"base": base, "jitter": jitter, "slow": slow, "added": added, "service": service}


def written(recorded_arm: Any, folder: Path, drawn: dict[str, Any], *, order: Any = range(4), scale: int = 1) -> Any:
    """Both arms; the rank in place r of the written run is rank ``order[r]`` of the drawn one."""

    def compute(slower: bool) -> Any:
        def ms(rank: int, step: int) -> float:
            own = order[rank]
            late = drawn["added"] if slower and own in drawn["slow"] else 0
            return scale * (drawn["base"][own] + drawn["jitter"][(step * 5 + own * 7) % 24] + late) / 1000

        return ms

    def service(_rank: int, _step: int) -> float:
        return float(scale * drawn["service"] / 1000)

    common = {
        "hosts": tuple(HOSTS[order[rank]] for rank in range(4)),
        "service": service,
        "read": lambda _rank, _step: 0.5 * scale,
        "pairs": 4,
        "steps": 6,
    }
    # What a step takes beside its parts is scaled by no argument, so the arms start far enough apart for any of them.
    first = recorded_arm(**common, compute=compute(False)).write(folder / "healthy")
    second = recorded_arm(**common, compute=compute(True)).write(folder / "regressed", arm="regressed", turn=1)
    return ArmRuns(name="healthy", paths=(first,)), ArmRuns(name="regressed", paths=(second,))


def evidence_of(both: Any) -> dict[str, Any]:
    return build_evidence("E", both, statistic="mean", mode="switchback", washout=0)


def verdict_of(evidence: dict[str, Any]) -> tuple[Any, ...]:
    step = np.array(evidence["difference"]["step_ms"])
    result = judge_scope(step, step)
    return result.verdict, result.sublabel, result.look


@settings(max_examples=15, deadline=None)
@given(drawn=arms(), order=st.sampled_from([(1, 0, 2, 3), (0, 1, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0), (1, 0, 3, 2)]))
def test_renumbering_the_ranks_moves_the_culprit_with_them_and_changes_no_verdict(
    recorded_arm: Any, drawn: dict[str, Any], order: tuple[int, ...]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        one = evidence_of(written(recorded_arm, Path(folder) / "one", drawn))
        other = evidence_of(written(recorded_arm, Path(folder) / "other", drawn, order=order))
    assert verdict_of(one) == verdict_of(other)
    assert one["difference"]["step_ms"] == pytest.approx(other["difference"]["step_ms"])
    for view in ("rank_mean", "critical_path"):
        for account, values in one["difference"]["accounts"][view].items():
            assert other["difference"]["accounts"][view][account] == pytest.approx(values, abs=1e-9), (view, account)
    before, after = (
        reconcile(found, Shape(nodes=2, ranks_per_node=2, hosts=hosts, scopes=SCOPES))
        for found, hosts in ((one, HOSTS), (other, tuple(HOSTS[rank] for rank in order)))
    )
    assert (before.mechanism, before.account) == (after.mechanism, after.account)
    assert sorted(before.ranks) == sorted(order[rank] for rank in after.ranks)


@settings(max_examples=15, deadline=None)
@given(drawn=arms())
def test_swapping_the_arms_flips_every_sign(recorded_arm: Any, drawn: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        both = written(recorded_arm, Path(folder), drawn)
        one, other = evidence_of(both), evidence_of(both[::-1])
    step, swapped = (np.array(found["difference"]["step_ms"]) for found in (one, other))
    np.testing.assert_array_equal(step, -swapped)
    for view in VIEWS:
        for account, values in one["difference"]["accounts"][view].items():
            flipped = other["difference"]["accounts"][view][account]
            np.testing.assert_array_equal(np.array(values), -np.array(flipped))
    low, high = one["intervals"]["step_ms"]
    assert other["intervals"]["step_ms"] == pytest.approx([-high, -low])
    assert verdict_of(one) == verdict_of(other)
    assert judge_scope(step, step).effect_ms == -judge_scope(swapped, swapped).effect_ms


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), scale=st.integers(2, 1000))
def test_scaling_all_times_scales_all_accounts(data_parallel: Any, seed: int, scale: int) -> None:
    """Exactly, in whole nanoseconds, on every rank and in the views that read one path or one rank."""
    draw = np.random.default_rng(seed)
    compute, read = draw.integers(1_000, 9_000, (2, 4, 12)) * 1_000
    service = draw.integers(100, 2_000, (3, 12)) * 1_000
    run = data_parallel(
        compute=lambda rank, step: int(compute[rank, step]),
        read=lambda rank, step: int(read[rank, step]),
        service=lambda bucket, step: int(service[bucket, step]),
    ).build()
    with tempfile.TemporaryDirectory() as folder:
        one = build_ledger(read_run(run.write(Path(folder) / "one")))
        for lines in (*run.steps.values(), *run.calls.values()):
            for line in lines:
                line |= {name: line[name] * scale for name in ("start_ns", "end_ns", "enter_ns") if name in line}
                if "spans_ns" in line:
                    line["spans_ns"] = [[name, a * scale, b * scale] for name, a, b in line["spans_ns"]]
        other = build_ledger(read_run(run.write(Path(folder) / "other")))
    np.testing.assert_array_equal(one.account_ns_RSA * scale, other.account_ns_RSA)
    np.testing.assert_array_equal(one.hidden_ns_RS * scale, other.hidden_ns_RS)
    for view in (critical_path, least_waiting_rank):
        np.testing.assert_array_equal(view(one).account_ns_SA * scale, view(other).account_ns_SA)


@given(
    scope=st.lists(st.floats(-50, 50), min_size=4, max_size=12),
    reference=st.lists(st.floats(-50, 50), min_size=8, max_size=8),
    power=st.integers(-8, 8),
)
def test_a_verdict_depends_on_no_unit(scope: list[float], reference: list[float], power: int) -> None:
    """Powers of two, so that the arithmetic itself stays exact."""
    scale = 2.0**power
    scope_ms, reference_ms = np.round(scope, 3), np.round(reference, 3)
    one = judge_scope(scope_ms, reference_ms)
    other = judge_scope(scale * scope_ms, scale * reference_ms)
    assert (one.verdict, one.look, one.sublabel) == (other.verdict, other.look, other.sublabel)
    assert other.effect_ms == pytest.approx(scale * one.effect_ms)
