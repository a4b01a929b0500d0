"""Crossovers and Latin squares of places and shards: planted effects come back, and errors keep within their bounds."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrows.inquiry.verdict import Verdict
from narrows.reducers.crossover import (
    Decision,
    Source,
    both_in_part,
    cells,
    contrast,
    decide,
    judge_family,
    order_effect,
    williams,
)

DELTA_MS = 10.0
REFERENCE = [DELTA_MS + one for one in (-0.4, 0.3, 0.1, -0.2, 0.2, -0.1, 0.4, -0.3)]
ANY_MS = st.floats(-1e3, 1e3)


def rotated(table_QPS: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Local times by square, rotation and place, of those by square, place and shard."""
    size = table_QPS.shape[1]
    return np.array([[[one[j, (j + r) % size] for j in range(size)] for r in range(size)] for one in table_QPS])


def experiment(
    rng: np.random.Generator,
    squares: int,
    place: list[float],
    shard: list[float],
    together: float = 0.0,
    sd: float = 1.0,
) -> np.ndarray[Any, Any]:
    """Squares with additive effects, ``together`` where the last place plays the last shard, and noise of each cell,
    each square and each rotation."""
    size = len(place)
    table = np.add.outer(place, shard)
    table[-1, -1] += together
    found = rotated(50 + table + sd * rng.standard_normal((squares, size, size)))
    found += 5 * rng.standard_normal((squares, 1, 1)) + sd * rng.standard_normal((squares, size, 1))
    return np.asarray(found)


def judged(local: np.ndarray[Any, Any], suspects: list[int], controls: list[int], sources: tuple[Source, ...]) -> Any:
    table = cells(local)
    contrasts = {(at, one): contrast(table, one, at, controls) for at in suspects for one in sources}
    return judge_family(contrasts, REFERENCE, DELTA_MS), contrasts


def decided(local: np.ndarray[Any, Any]) -> Decision:
    """What a swap of two says of the second one."""
    found, contrasts = judged(local, [1], [0], tuple(Source))

    def partly() -> bool:
        sides = contrasts[1, Source.HARDWARE], contrasts[1, Source.DATA]
        return both_in_part(*sides, REFERENCE, DELTA_MS, alpha=0.05 / 3)

    return decide(*(found[1, one].verdict for one in Source), partly=partly)


# The estimates.


@given(arrays(np.float64, (3, 2, 2), elements=ANY_MS))
def test_with_two_places_the_contrasts_are_those_of_the_crossover(local: np.ndarray[Any, Any]) -> None:
    own, exchanged = local[:, 0], local[:, 1]
    (k_own, s_own), (k_exch, s_exch) = own.T, exchanged.T
    table = cells(local)
    for source, expected in (
        (Source.HARDWARE, 0.5 * (s_own + s_exch - k_own - k_exch)),
        (Source.DATA, 0.5 * (s_own + k_exch - s_exch - k_own)),
        (Source.INTERACTION, s_own - s_exch - k_exch + k_own),
    ):
        np.testing.assert_allclose(contrast(table, source, 1, [0]), expected, atol=1e-9)


@given(
    arrays(np.float64, st.shared(st.integers(2, 5), key="k"), elements=ANY_MS),
    arrays(np.float64, st.shared(st.integers(2, 5), key="k"), elements=ANY_MS),
    st.floats(-100, 100),
    st.integers(0, 10**6),
)
def test_additive_effects_are_found_whatever_a_rotation_costs_all_places(
    place: np.ndarray[Any, Any], shard: np.ndarray[Any, Any], together: float, seed: int
) -> None:
    size, rng = len(place), np.random.default_rng(seed)
    table = np.add.outer(place, shard)[None]
    local = rotated(table) + 100 * rng.standard_normal((1, size, 1))
    good = list(range(size - 1))
    found = cells(local)
    assert contrast(found, Source.HARDWARE, size - 1, good) == pytest.approx([place[-1] - place[:-1].mean()], abs=1e-6)
    assert contrast(found, Source.DATA, size - 1, good) == pytest.approx([shard[-1] - shard[:-1].mean()], abs=1e-6)
    table[0, -1, -1] += together
    assert contrast(cells(rotated(table)), Source.INTERACTION, size - 1, good) == pytest.approx([together], abs=1e-6)


def test_every_place_plays_every_shard_once_and_shards_follow_each_other_equally_often() -> None:
    for size in range(2, 9):
        order = williams(size)
        assert sorted(order) == list(range(size))
        forth = [(b - a) % size for a, b in pairwise(order)]
        back = [-one % size for one in forth]
        followed, times = (forth, 1) if size % 2 == 0 else (forth + back, 2)
        assert sorted(followed) == sorted(list(range(1, size)) * times)


@pytest.mark.parametrize("shape", [(3, 2), (3, 2, 3), (3, 1, 1)])
def test_a_table_that_is_no_square_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="as many rotations as places"):
        cells(np.zeros(shape))


@pytest.mark.parametrize("controls", [[], [1], [0, 1]])
def test_a_suspect_is_never_its_own_control(controls: list[int]) -> None:
    with pytest.raises(ValueError, match="other columns than the suspect's"):
        contrast(np.zeros((4, 3, 3)), Source.HARDWARE, 1, controls)


def test_what_playing_later_costs_is_told_apart_from_what_differs() -> None:
    rng, order = np.random.default_rng(3), [1, -1] * 4
    local = experiment(rng, 8, [0, 10, 0], [0, 0, 0], sd=0.1)
    local -= local.mean(axis=2, keepdims=True)
    first, last = 0, williams(3)[-1]
    for at, way in enumerate(order):
        local[at, last if way == 1 else first] += 3.0
    found = order_effect(local, order)
    assert found is not None
    assert found.flagged
    assert found.ms == pytest.approx(3.0, abs=0.2)
    assert order_effect(local, [1] * 8) is None


# The verdicts.


@pytest.mark.parametrize(
    ("place", "shard", "together", "decision"),
    [
        (DELTA_MS, 0.0, 0.0, Decision.HARDWARE),
        (0.0, DELTA_MS, 0.0, Decision.DATA),
        (DELTA_MS / 2, DELTA_MS / 2, 0.0, Decision.BOTH),
        (DELTA_MS, DELTA_MS, 0.0, Decision.BOTH),
        (0.0, 0.0, DELTA_MS, Decision.INTERACTION),
        (0.0, 0.0, 0.0, Decision.NEITHER),
    ],
)
def test_planted_sources_are_named_and_no_other(
    place: float, shard: float, together: float, decision: Decision
) -> None:
    rng = np.random.default_rng(11)
    found = [decided(experiment(rng, 12, [0, place], [0, shard], together)) for _ in range(100)]
    assert found.count(decision) >= 90
    assert set(found) <= {decision, Decision.INCONCLUSIVE}


def test_noise_names_nothing_more_often_than_the_error_allows() -> None:
    rng = np.random.default_rng(12)
    named, trials = 0, 400
    for _ in range(trials):
        found, _ = judged(experiment(rng, 12, [0, 0], [0, 0], sd=12.0), [1], [0], tuple(Source))
        named += any(one.verdict.verdict is Verdict.SUPPORTED for one in found.values())
    assert named <= 0.05 * trials


def test_at_the_boundary_itself_a_family_errs_no_more_than_its_alpha() -> None:
    """Half of the loss in each of two shards and places of three: all four tests have their largest error there."""
    rng = np.random.default_rng(13)
    half, trials = DELTA_MS / 2, 400
    wrong = 0
    for _ in range(trials):
        local = experiment(rng, 12, [0, half, half], [0, half, half], sd=2.0)
        found, _ = judged(local, [1, 2], [0], (Source.HARDWARE, Source.DATA))
        wrong += any(one.verdict.verdict is Verdict.SUPPORTED for one in found.values())
    assert wrong <= 0.05 * trials + 3 * np.sqrt(0.05 * 0.95 * trials)


@pytest.mark.parametrize("source", [Source.HARDWARE, Source.DATA])
def test_of_four_suspects_the_one_that_is_slow_is_named_and_three_are_acquitted(source: Source) -> None:
    rng, right, trials = np.random.default_rng(14), 0, 60
    slow, even = [0.0, 0.0, DELTA_MS, 0.0, 0.0], [0.0] * 5
    place, shard = (slow, even) if source is Source.HARDWARE else (even, slow)
    for _ in range(trials):
        local = experiment(rng, 8, place, shard, sd=2.0)
        found, _ = judged(local, [1, 2, 3, 4], [0], (Source.HARDWARE, Source.DATA))
        verdicts = {key: one.verdict.verdict for key, one in found.items()}
        assert verdicts.pop((2, source)) is not Verdict.REJECTED
        assert Verdict.SUPPORTED not in verdicts.values()
        right += found[2, source].verdict.verdict is Verdict.SUPPORTED and set(verdicts.values()) == {Verdict.REJECTED}
        assert found[2, source].max_t_p is not None
        assert found[2, source].max_t_p == min(one.max_t_p for one in found.values())
    assert right >= 0.9 * trials


def test_one_of_a_family_gets_more_of_the_error_once_others_are_decided() -> None:
    barely = [5.6 + (1.0 if at % 2 else -1.0) for at in range(12)]
    reference = [DELTA_MS] * 8

    def second(values: list[float]) -> Any:
        return judge_family({"a": barely, "b": values}, reference, DELTA_MS)["a"]

    settled, open_still = second([0.1, -0.1] * 6), second([4.0, 6.0] * 6)
    assert (settled.verdict.verdict, settled.alpha) == (Verdict.SUPPORTED, 0.05)
    assert (open_still.verdict.verdict, open_still.alpha) == (Verdict.INCONCLUSIVE, 0.025)
