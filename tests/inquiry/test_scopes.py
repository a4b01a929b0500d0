"""Scopes are totally ordered, rungs are numbered, placements are checked."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrows.inquiry.case import ArmSpec, Case
from narrows.inquiry.scopes import SCOPE_RUNGS, Placement, Rung, Scope, placement

SMALLEST_FIRST = [Scope.ONE_RANK, Scope.ONE_NODE, Scope.TWO_NODES, Scope.FULL]
COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge)


@given(st.lists(st.sampled_from(Scope)))
def test_sorting_scopes_puts_the_smallest_first(scopes: list[Scope]) -> None:
    assert sorted(scopes) == [one for one in SMALLEST_FIRST for _ in range(scopes.count(one))]


@pytest.mark.parametrize("compare", COMPARISONS)
@pytest.mark.parametrize(("left", "right"), list(itertools.product(Scope, Scope)))
def test_every_comparison_of_two_scopes_goes_by_size(
    compare: Callable[[object, object], bool], left: Scope, right: Scope
) -> None:
    assert compare(left, right) is compare(SMALLEST_FIRST.index(left), SMALLEST_FIRST.index(right))


def test_the_order_is_total_and_transitive() -> None:
    for a, b, c in itertools.product(Scope, repeat=3):
        assert (a < b) + (a == b) + (a > b) == 1
        if a <= b <= c:
            assert a <= c


@pytest.mark.parametrize("compare", COMPARISONS)
@pytest.mark.parametrize("other", ["full", "one_rank", "a", 3, None])
def test_a_scope_is_never_ordered_against_anything_else(
    compare: Callable[[object, object], bool], other: object
) -> None:
    """As texts "full" comes before "one_rank": comparing letters would turn the ladder round."""
    with pytest.raises(TypeError):
        compare(Scope.FULL, other)
    with pytest.raises(TypeError):
        compare(other, Scope.FULL)


def test_rungs_are_numbered_from_one_to_ten_and_scopes_have_theirs() -> None:
    assert [rung.number for rung in Rung] == list(range(1, 11))
    assert Rung.ONE_RANK.label == "3. one rank"
    assert [SCOPE_RUNGS[scope].number for scope in SMALLEST_FIRST] == [3, 4, 5, 6]


@pytest.mark.parametrize(
    "hosts",
    [
        (),
        (("n0", ()),),
        (("n0", (0,)), ("n0", (1,))),
        (("n0", (1, 0)),),
        (("n0", (0,)), ("n1", (2,))),
        (("n0", (0, 0)),),
    ],
)
def test_a_placement_holds_each_host_once_and_ranks_in_order(hosts: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
    with pytest.raises(ValueError, match=r"named twice|host order"):
        Placement(hosts=hosts)


@given(st.integers(1, 5), st.integers(1, 4))
def test_a_placement_knows_the_host_of_every_rank(nodes: int, width: int) -> None:
    names = tuple(f"n{at}" for at in range(nodes))
    where = placement(names, width)
    assert where.names == names
    assert [where.host_of(rank) for rank in range(where.world_size)] == [name for name in names for _ in range(width)]
    with pytest.raises(ValueError, match=f"ranks are 0..{nodes * width - 1}"):
        where.host_of(nodes * width)


@given(st.integers(1, 6), st.integers(1, 4))
def test_the_scopes_of_a_cluster_differ_in_size_and_end_with_all_of_it(nodes: int, width: int) -> None:
    from narrows.inquiry.case import Budget, Cluster, Judging, Workload
    from narrows.inquiry.design import ArmKind

    work = Workload(program="step", builtin=True, kind=ArmKind.CONFIG, healthy=ArmSpec(), regressed=ArmSpec())
    hosts = tuple(f"n{at}" for at in range(nodes))
    case = Case(
        name="x", question="x", runs={}, workload=work, judging=Judging(),
        cluster=Cluster(launcher="local", nodes=nodes, ranks_per_node=width, hosts=hosts, device="emulated"),
        budget=Budget(device_hours=1, ask_above_device_hours=1),
    )  # fmt: skip
    sizes = {Scope.ONE_RANK: 1, Scope.ONE_NODE: width, Scope.TWO_NODES: 2 * width, Scope.FULL: nodes * width}
    ranks = [sizes[scope] for scope in case.scopes()]
    assert ranks == sorted(set(ranks))
    assert ranks[-1] == nodes * width == case.world_size
    assert ranks[0] == 1
