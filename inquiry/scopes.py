"""How much of the job an experiment keeps, from one rank to all of it, and the rungs of the ladder."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    """Totally ordered, smallest first: fewer parts means fewer things that can be the cause, and less to pay."""

    ONE_RANK = "one_rank"
    ONE_NODE = "one_node"
    TWO_NODES = "two_nodes"
    FULL = "full"

    @property
    def order(self) -> int:
        return list(Scope).index(self)

    # StrEnum brings str's comparisons, by which "full" < "one_rank": none of them may be reached, so there is
    # no NotImplemented, which would let the other side answer.
    def __lt__(self, other: object) -> bool:
        return self.order < _order_of(other)

    def __le__(self, other: object) -> bool:
        return self.order <= _order_of(other)

    def __gt__(self, other: object) -> bool:
        return self.order > _order_of(other)

    def __ge__(self, other: object) -> bool:
        return self.order >= _order_of(other)

    @property
    def words(self) -> str:
        return self.value.replace("_", " ")


def _order_of(other: object) -> int:
    if not isinstance(other, Scope):
        raise TypeError(f"a scope is compared with {other!r}; only scopes have an order")
    return other.order


class Rung(StrEnum):
    """The ten steps of the ladder, in order."""

    MANIFEST = "manifest diff"
    RECONCILIATION = "wall-time reconciliation"
    ONE_RANK = "one rank"
    ONE_NODE = "one node"
    TWO_NODES = "two nodes"
    FULL = "full scale"
    PERTURBATION = "perturbation"
    SCALE_UP = "scale-up"
    SOAK = "soak"
    CLOSING = "closing"

    @property
    def number(self) -> int:
        """1 to 10."""
        return list(Rung).index(self) + 1

    @property
    def label(self) -> str:
        """For example ``3. one rank``."""
        return f"{self.number}. {self.value}"


SCOPE_RUNGS: dict[Scope, Rung] = {
    Scope.ONE_RANK: Rung.ONE_RANK,
    Scope.ONE_NODE: Rung.ONE_NODE,
    Scope.TWO_NODES: Rung.TWO_NODES,
    Scope.FULL: Rung.FULL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which hosts run which ranks, in node-rank order: ``(("n0", (0, 1)), ("n1", (2, 3)))``."""

    hosts: tuple[tuple[str, tuple[int, ...]], ...]

    def __post_init__(self) -> None:
        names = [host for host, _ in self.hosts]
        ranks = [rank for _, members in self.hosts for rank in members]
        if len(set(names)) != len(names):
            raise ValueError(f"a host is named twice in {names}; each host holds its ranks once")
        if ranks != list(range(len(ranks))) or not ranks:
            raise ValueError(f"ranks {ranks} are not 0..{len(ranks) - 1} in host order")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(host for host, _ in self.hosts)

    @property
    def world_size(self) -> int:
        return sum(len(members) for _, members in self.hosts)

    def host_of(self, rank: int) -> str:
        """The host that runs ``rank``. Raises ``ValueError`` for a rank that is not placed."""
        for host, members in self.hosts:
            if rank in members:
                return host
        raise ValueError(f"rank {rank} is not placed; ranks are 0..{self.world_size - 1}")


def placement(hosts: tuple[str, ...], ranks_per_node: int) -> Placement:
    """``ranks_per_node`` consecutive ranks on each of ``hosts``, in that order."""
    return Placement(
        hosts=tuple((host, tuple(range(i * ranks_per_node, (i + 1) * ranks_per_node))) for i, host in enumerate(hosts))
    )
