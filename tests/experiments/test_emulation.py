"""The emulated accelerator, the loader and the buckets, without any process group."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrows.experiments.batches import modelled_loss, rank_batches
from narrows.experiments.buckets import BucketOrder, plan_buckets
from narrows.experiments.emulated import gradient_buckets
from narrows.experiments.loader import Loader
from narrows.experiments.places import link_time_ns
from narrows.experiments.plan import Segment
from narrows.experiments.timing import Timeline, wait_until
from narrows.experiments.workload import SlowLink, step_config

MS = 1_000_000


def segment(**changes: object) -> Segment:
    values: dict[str, object] = {
        "segment": 0, "pair": 0, "arm": "healthy", "steps": 3, "washout": 0, "first_batch": 5, "active": None,
        "shards": None,
    }  # fmt: skip
    return Segment(**{**values, **changes})  # type: ignore[arg-type]  # the keys are Segment's


@pytest.mark.parametrize("length_ns", [0, 1000, 100_000, 3 * MS])
def test_a_wait_is_never_shorter_than_asked(length_ns: int) -> None:
    begin = time.monotonic_ns()
    woke = wait_until(begin + length_ns)
    assert begin + length_ns <= woke <= time.monotonic_ns()


def test_kernels_run_back_to_back_for_exactly_their_computed_time() -> None:
    stream = Timeline()
    begin = stream.end_ns
    lengths = [MS, 2 * MS, MS // 2]
    spans = [stream.run(length) for length in lengths]
    assert [end - start for start, end in spans] == lengths
    assert [start for start, _ in spans] == [begin, *(end for _, end in spans[:-1])]
    assert time.monotonic_ns() >= begin + sum(lengths)


def test_a_host_that_is_a_little_late_does_not_delay_the_stream_and_a_blocked_one_does() -> None:
    stream = Timeline(slack_ns=10_000 * MS)
    _, end = stream.run(MS)
    wait_until(end + 2 * MS)
    stream.resume(0)
    assert stream.end_ns == end
    stream.resume(end + MS)
    assert stream.end_ns == end + MS


def test_a_host_later_than_the_slack_has_let_the_stream_run_dry() -> None:
    stream = Timeline(slack_ns=MS)
    wait_until(stream.end_ns + 5 * MS)
    before = stream.end_ns
    stream.resume(0)
    assert stream.end_ns >= before + 4 * MS


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_the_loader_keeps_the_order_and_needs_its_time_for_each_batch(depth: int) -> None:
    loader = Loader(range(4), str, load_ns=2 * MS, depth=depth)
    taken = [loader.take() for _ in range(4)]
    loader.close()
    assert [item for item, _ in taken] == ["0", "1", "2", "3"]
    ready = [ready_ns for _, ready_ns in taken]
    assert all(later - earlier >= 2 * MS for earlier, later in itertools.pairwise(ready))


def test_a_loader_that_is_closed_early_ends_its_thread() -> None:
    loader = Loader(range(1000), str, load_ns=0, depth=2)
    loader.take()
    loader.close()
    assert loader._thread is not None
    assert not loader._thread.is_alive()


@given(st.lists(st.integers(1, 500), min_size=1, max_size=30), st.integers(1, 600))
def test_buckets_hold_every_gradient_once_in_order_and_keep_their_limit(sizes: list[int], limit: int) -> None:
    buckets = plan_buckets(sizes, limit)
    assert [index for bucket in buckets for index in bucket] == list(range(len(sizes)))
    assert all(len(bucket) == 1 or sum(sizes[index] for index in bucket) <= limit for bucket in buckets)


@given(st.permutations(range(6)))
def test_buckets_are_issued_in_order_however_they_become_ready(arrivals: list[int]) -> None:
    order = BucketOrder(6)
    issued = [bucket for ready in arrivals for bucket in order.mark(ready)]
    assert issued == list(range(6))
    assert list(order.rest()) == []


@given(st.permutations(range(6)), st.integers(0, 6))
def test_what_was_not_ready_is_issued_at_the_end_and_the_next_step_starts_afresh(
    arrivals: list[int], ready: int
) -> None:
    order = BucketOrder(6)
    early = [bucket for index in arrivals[:ready] for bucket in order.mark(index)]
    assert early + list(order.rest()) == list(range(6))
    assert list(order.mark(0)) == [0]


def test_a_bucket_is_complete_with_the_lowest_layer_in_it() -> None:
    completes, payloads = gradient_buckets(step_config({"bucket_bytes": 262144}))
    assert sorted(bucket for buckets in completes.values() for bucket in buckets) == list(range(len(payloads)))
    assert sum(payloads) == 4 * 12 * 64 * 64 * 4
    assert completes[0][-1] == len(payloads) - 1
    assert 0 not in completes[3]


def test_bfloat16_halves_the_bytes_on_the_wire_and_keeps_the_buckets() -> None:
    wide, narrow = gradient_buckets(step_config({}))[1], gradient_buckets(step_config({"grad_dtype": "bfloat16"}))[1]
    assert [2 * size for size in narrow] == wide


def test_a_link_passes_an_all_reduce_twice_and_other_operations_once() -> None:
    link = SlowLink(mbit=800, delay_us=100, host="")
    assert link_time_ns(link, "all_reduce", 1_000_000, 4) == 2 * 100_000 + round(1.5 * 1_000_000 * 10)
    assert link_time_ns(link, "all_gather", 1_000_000, 4) == 100_000 + round(0.75 * 1_000_000 * 10)
    assert link_time_ns(link, "broadcast", 1_000_000, 4) == 100_000 + 1_000_000 * 10


def test_a_reduced_scope_plays_the_packs_that_the_full_scale_ranks_played() -> None:
    config = step_config({})
    full = rank_batches(config, segment(), rank=3, ranks=(0, 1, 2, 3), num_shards=4, seed=7)
    alone = rank_batches(config, segment(active=(0,), shards={0: 3}), rank=0, ranks=(0,), num_shards=4, seed=7)
    assert [batch.documents for batch in full] == [batch.documents for batch in alone]
    assert [batch.batch for batch in full] == [5, 6, 7]


@pytest.mark.parametrize("other", ["greedy", "cost_balanced", "shuffled"])
def test_packing_changes_neither_the_loss_nor_the_work_of_the_whole_batch(other: str) -> None:
    def play(policy: str) -> list[list[tuple[float, int, int]]]:
        config = step_config({"packing": policy})
        return [
            [(b.model_loss, b.useful["valid_tokens"], b.useful["sum_sq_len"])
             for b in rank_batches(config, segment(), rank=rank, ranks=(0, 1, 2), num_shards=3, seed=7)]
            for rank in range(3)
        ]  # fmt: skip

    old, new = play("snake"), play(other)
    for step in range(3):
        assert len({rank[step][0] for rank in old + new}) == 1
        for counter in (1, 2):
            assert sum(rank[step][counter] for rank in old) == sum(rank[step][counter] for rank in new)


@given(st.permutations([(0, 5), (1, 80), (2, 900), (3, 17)]))
def test_the_modelled_loss_does_not_depend_on_the_order_of_documents(documents: list[tuple[int, int]]) -> None:
    ordered = modelled_loss(sorted(documents), seed=1, batch=2)
    assert modelled_loss(documents, seed=1, batch=2) == ordered


@given(st.integers(1, 6))
def test_micro_steps_split_the_documents_of_a_rank(count: int) -> None:
    (batch, *_) = rank_batches(step_config({}), segment(), rank=0, ranks=(0,), num_shards=1, seed=3)
    parts = batch.micro(count)
    assert len(parts) == count
    assert sorted(document for part in parts for document in part) == sorted(batch.documents)
