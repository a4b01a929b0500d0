"""One regression under investigation: the question, the two runs, the workload, the cluster, the budget."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from narrows.inquiry.codec import digest, plain
from narrows.inquiry.design import ArmKind, Mode
from narrows.inquiry.playbook import Play
from narrows.inquiry.scopes import Placement, Scope, placement


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSpec:
    """What one arm sets beyond the common workload. ``hosts`` (placement arms) replaces the cluster's."""

    config: dict[str, Any] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is run. ``program`` is a built-in name (``step``) or the path of the user's own script."""

    program: str
    builtin: bool
    kind: ArmKind
    healthy: ArmSpec
    regressed: ArmSpec
    perturbed: ArmSpec | None = None
    config: dict[str, Any] = field(default_factory=dict)
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedLink:
    """What a person knows of the links between hosts: us a round, and the rate in Gbit/s."""

    alpha_us: float
    gbit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Where it runs. ``hosts`` holds the job's hosts first, then spares; ``nodes`` of them make the full scale."""

    launcher: str
    nodes: int
    ranks_per_node: int
    hosts: tuple[str, ...]
    device: str
    link: StatedLink | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Device-hours: in all, and the amount for one launch above which a person is asked."""

    device_hours: float
    ask_above_device_hours: float


PATH_ALPHA = 0.10
"""The chance of a wrong turn on the whole climb, in each direction, where a case sets no alpha of its own."""
PATH_TESTS = 5
"""Tests that a climb takes at most, the proof by work counters included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """How evidence is gathered and judged; registered with every hypothesis.

    ``scope_alpha`` is the error of each scope in each direction: the climb is a sequence of tests, and the chance of a
    wrong turn anywhere on it is at most their sum. ``margin_percent`` of the healthy step is the smallest slowdown
    worth a search. ``steps`` counts the steps of a segment, ``washout`` included; your own script runs as many as it
    likes.
    """

    margin_percent: float = 1.0
    statistic: str = "mean"
    alpha: float = 0.05
    scope_alpha: float = PATH_ALPHA / PATH_TESTS
    looks: tuple[int, ...] = (4, 6, 8, 12)
    mode: Mode = Mode.SWITCHBACK
    pairs: int = 6
    steps: int = 15
    washout: int = 3
    soak_steps: int = 320
    seed: int = 0
    start_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A checked case. ``runs`` holds run directories by arm, as written; ``playbook`` what may be perturbed."""

    name: str
    question: str
    runs: dict[str, tuple[str, ...]]
    workload: Workload
    cluster: Cluster
    budget: Budget
    judging: Judging
    playbook: tuple[Play, ...] = ()

    @property
    def full_hosts(self) -> tuple[str, ...]:
        """The hosts of the regressed run at full scale, in node order."""
        return self.workload.regressed.hosts or self.cluster.hosts[: self.cluster.nodes]

    @property
    def healthy_hosts(self) -> tuple[str, ...]:
        """The hosts of the healthy run at full scale, in node order."""
        return self.workload.healthy.hosts or self.cluster.hosts[: self.cluster.nodes]

    @property
    def full_placement(self) -> Placement:
        return placement(self.full_hosts, self.cluster.ranks_per_node)

    @property
    def world_size(self) -> int:
        return self.cluster.nodes * self.cluster.ranks_per_node

    def scopes(self) -> tuple[Scope, ...]:
        """The scopes that differ from each other on this cluster, smallest first; the last one is the full scale."""
        nodes, ranks = self.cluster.nodes, self.cluster.ranks_per_node
        found = []
        if nodes * ranks > 1:
            found.append(Scope.ONE_RANK)
        if ranks > 1 and nodes > 1:
            found.append(Scope.ONE_NODE)
        if nodes > 2:
            found.append(Scope.TWO_NODES)
        last = Scope.FULL
        if nodes == 2:
            last = Scope.TWO_NODES
        elif nodes == 1:
            last = Scope.ONE_NODE if ranks > 1 else Scope.ONE_RANK
        return (*found, last)

    @property
    def full_scope(self) -> Scope:
        return self.scopes()[-1]

    def ranks_at(self, scope: Scope) -> int:
        """How many ranks play at ``scope``."""
        width = self.cluster.ranks_per_node
        return {Scope.ONE_RANK: 1, Scope.ONE_NODE: width, Scope.TWO_NODES: 2 * width}.get(scope, self.world_size)

    def digest(self) -> str:
        found = plain(self)
        if self.cluster.link is None:
            del found["cluster"]["link"]  # a case that states none keeps the digest that it had before it could
        return digest(found)
