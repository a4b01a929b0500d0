"""Packing: every policy deals the same documents, level in tokens; what differs is where the squares go."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrows.experiments.packing import POLICIES, LengthModel, draw_documents, pack

TAIL = LengthModel(mean_doc_tokens=256, doc_sigma=1.0, max_doc_tokens=1024)
TOKENS_PER_RANK = 4096
policies = st.sampled_from(sorted(POLICIES))
shard_counts = st.integers(1, 8)
batches = st.integers(0, 10_000)
seeds = st.integers(0, 1000)


def documents(num_shards: int, seed: int, batch: int) -> tuple[int, ...]:
    return draw_documents(TAIL, tokens=num_shards * TOKENS_PER_RANK, seed=seed, batch=batch)


def worst_squares(policy: str, num_shards: int, batch: int) -> float:
    """Largest sum of squares over the mean of the shards."""
    lengths = documents(num_shards, 7, batch)
    shards = pack(lengths, num_shards=num_shards, policy=policy, seed=7, batch=batch)
    squares = [sum(lengths[document] ** 2 for document in shard) for shard in shards]
    return max(squares) / statistics.mean(squares)


@given(policies, shard_counts, seeds, batches)
@settings(max_examples=60, deadline=None)
def test_every_document_is_dealt_to_exactly_one_shard(policy: str, num_shards: int, seed: int, batch: int) -> None:
    lengths = documents(num_shards, seed, batch)
    shards = pack(lengths, num_shards=num_shards, policy=policy, seed=seed, batch=batch)
    assert len(shards) == num_shards
    assert sorted(document for shard in shards for document in shard) == list(range(len(lengths)))


@given(policies, shard_counts, seeds, batches)
@settings(max_examples=60, deadline=None)
def test_no_shard_is_more_than_four_percent_from_its_token_budget(
    policy: str, num_shards: int, seed: int, batch: int
) -> None:
    lengths = documents(num_shards, seed, batch)
    shards = pack(lengths, num_shards=num_shards, policy=policy, seed=seed, batch=batch)
    for shard in shards:
        tokens = sum(lengths[document] for document in shard)
        assert abs(tokens - TOKENS_PER_RANK) <= 0.04 * TOKENS_PER_RANK


@given(st.integers(16, 100_000), st.integers(1, 512), st.floats(0, 2), st.integers(1, 2048), seeds, batches)
@settings(max_examples=60, deadline=None)
def test_drawn_documents_add_up_to_the_token_budget_and_keep_the_cap(
    tokens: int, mean: int, sigma: float, cap: int, seed: int, batch: int
) -> None:
    model = LengthModel(mean_doc_tokens=mean, doc_sigma=sigma, max_doc_tokens=cap)
    lengths = draw_documents(model, tokens=tokens, seed=seed, batch=batch)
    assert sum(lengths) == tokens
    assert min(lengths) >= 1
    assert max(lengths) <= cap


@given(policies, seeds, batches)
@settings(max_examples=20, deadline=None)
def test_the_same_arguments_give_the_same_shards(policy: str, seed: int, batch: int) -> None:
    lengths = documents(4, seed, batch)
    first = pack(lengths, num_shards=4, policy=policy, seed=seed, batch=batch)
    assert first == pack(lengths, num_shards=4, policy=policy, seed=seed, batch=batch)
    assert lengths == documents(4, seed, batch)


def test_batches_differ_from_each_other() -> None:
    assert len({documents(4, 7, batch) for batch in range(20)}) == 20


def test_greedy_is_worst_in_squares_and_cost_balanced_never_worse_than_the_snake() -> None:
    rounds = range(30)
    worst = {policy: [worst_squares(policy, 4, batch) for batch in rounds] for policy in POLICIES}
    mean = {policy: statistics.mean(values) for policy, values in worst.items()}
    assert mean["greedy"] > 1.5 * mean["snake"]
    assert mean["greedy"] > mean["shuffled"] > mean["snake"]
    assert all(balanced <= snake + 1e-9 for balanced, snake in zip(worst["cost_balanced"], worst["snake"], strict=True))


def test_the_shard_with_the_long_documents_changes_from_batch_to_batch() -> None:
    heaviest = []
    for batch in range(40):
        lengths = documents(4, 7, batch)
        shards = pack(lengths, num_shards=4, policy="greedy", seed=7, batch=batch)
        squares = [sum(lengths[document] ** 2 for document in shard) for shard in shards]
        heaviest.append(squares.index(max(squares)))
    assert [heaviest.count(shard) for shard in range(4)] == [10, 10, 10, 10]


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="packing = 'first_fit' is unknown: expected one of snake, greedy"):
        pack((1, 2), num_shards=1, policy="first_fit", seed=0, batch=0)


def test_no_shard_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="num_shards = 0"):
        pack((1, 2), num_shards=0, policy="snake", seed=0, batch=0)
