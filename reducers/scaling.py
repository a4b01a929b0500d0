"""What a mechanism predicts at a smaller scope: the ratio kappa of its effect there to its effect at full scale.

Arrays carry the suffix _SR: steps by ranks, local time in ms (no waiting).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaln

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

_DRAWS = 2000
_LEVEL = 0.05


class Algorithm(StrEnum):
    """How a collective is carried out."""

    RING = "ring"
    TREE = "tree"
    IN_NETWORK = "in_network"
    HIERARCHICAL = "hierarchical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link: `alpha_us` for each round, and its rate in bytes a microsecond (1 Gbit/s is 125)."""

    alpha_us: float
    bytes_per_us: float

    def __post_init__(self) -> None:
        if self.alpha_us < 0 or not self.bytes_per_us > 0:
            raise ValueError(f"{self}: a round takes at least 0 us and the rate is positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledPrediction:
    """`kappa` with its 90 % interval over steps; `exponential_kappa` is H_n / H_N, what independent exponential delays
    on every rank would give. Far from it, the change sits on few ranks or in few steps."""

    kappa: float
    lower: float
    upper: float
    exponential_kappa: float
    ranks: int
    full_ranks: int
    source: str


def harmonic_ratio(ranks: int, full_ranks: int) -> float:
    """H_n / H_N: the expected maximum of n exponential delays over that of N."""
    _check_ranks(ranks, full_ranks)
    return _harmonic(ranks) / _harmonic(full_ranks)


def expected_max(local_ms_SR: npt.ArrayLike, ranks: int) -> Floats:
    """For each step, the expected maximum over `ranks` ranks drawn from its ranks without putting back (ms).

    Exact: the mean that resampling tends to. Raises `ValueError` for more ranks than the table holds.
    """
    table = _steps_by_ranks(local_ms_SR)
    total = table.shape[1]
    _check_ranks(ranks, total)
    # The k-th smallest of N is the maximum of a drawn n-set in C(k-1, n-1) of the C(N, n) sets.
    k = np.arange(ranks, total + 1)
    weights = np.exp(_log_choose(k - 1, ranks - 1) - _log_choose(total, ranks))
    return np.asarray(np.sort(table, axis=1)[:, ranks - 1 :] @ weights, dtype=np.float64)


def imbalance_kappa(
    healthy_SR: npt.ArrayLike,
    regressed_SR: npt.ArrayLike,
    ranks: int,
    *,
    seed: int = 0,
    draws: int = _DRAWS,
) -> ScaledPrediction:
    """How much of the full-scale effect `ranks` ranks show when every step waits for its slowest rank.

    kappa = change of E[max over n ranks] / change of E[max over all N ranks], from local times of both full-scale
    runs; the interval comes from `draws` seeded resamplings of steps. Raises `ValueError` for tables of different
    rank counts, or where the full-scale maximum did not change.
    """
    healthy, regressed = _steps_by_ranks(healthy_SR), _steps_by_ranks(regressed_SR)
    if healthy.shape[1] != regressed.shape[1]:
        raise ValueError(f"{healthy.shape[1]} healthy and {regressed.shape[1]} regressed ranks: compare equal jobs")
    total = healthy.shape[1]
    before = np.column_stack([expected_max(healthy, ranks), healthy.max(axis=1)])
    after = np.column_stack([expected_max(regressed, ranks), regressed.max(axis=1)])
    change = after.mean(axis=0) - before.mean(axis=0)
    if abs(change[1]) <= 1e-12 * abs(after).max():
        raise ValueError("the slowest rank's local time is the same in both runs: there is no imbalance to scale")
    rng = np.random.Generator(np.random.PCG64(seed))
    changes = _resampled_means(after, rng, draws) - _resampled_means(before, rng, draws)
    # A draw whose full-scale change vanishes says nothing of the ratio.
    usable = changes[np.abs(changes[:, 1]) > 1e-12 * abs(after).max()]
    lower, upper = np.quantile(usable[:, 0] / usable[:, 1], [_LEVEL, 1 - _LEVEL])
    return ScaledPrediction(
        kappa=float(change[0] / change[1]),
        lower=float(lower),
        upper=float(upper),
        exponential_kappa=harmonic_ratio(ranks, total),
        ranks=ranks,
        full_ranks=total,
        source=f"expected maximum over {ranks} of {total} ranks in {len(healthy)} and {len(regressed)} steps",
    )


def transfer_us(
    op: str,
    payload_bytes: float,
    ranks: int,
    link: Link,
    *,
    algorithm: Algorithm = Algorithm.RING,
    inter: Link | None = None,
    nodes: int = 1,
) -> float:
    """Time of one collective in us by the alpha-beta model; 0 for a single rank.

    `payload_bytes` is the whole buffer: for all-gather and reduce-scatter count x ranks x size. A hierarchical
    all-reduce uses `link` inside its `nodes` and `inter` between them.
    Raises `ValueError` for an unknown operation or algorithm. Source: nccl-tests PERFORMANCE.md, NCCL's tuner.
    """
    if ranks < 1 or payload_bytes < 0:
        raise ValueError(f"{ranks} ranks, {payload_bytes} bytes: give at least 1 rank and at least 0 bytes")
    if ranks == 1 or op == "barrier":
        return 0.0 if ranks == 1 else 2 * math.ceil(math.log2(ranks)) * link.alpha_us
    if op == "all_reduce":
        return _all_reduce_us(payload_bytes, ranks, link, algorithm, inter, nodes)
    if algorithm is not Algorithm.RING:
        raise ValueError(f"{op} by {algorithm.value}: only all_reduce is modelled beyond a ring")
    if op in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) * link.alpha_us + payload_bytes * (ranks - 1) / ranks / link.bytes_per_us
    if op in ("broadcast", "reduce"):
        return (ranks - 1) * link.alpha_us + payload_bytes / link.bytes_per_us
    if op in ("send", "recv"):
        return link.alpha_us + payload_bytes / link.bytes_per_us
    raise ValueError(
        f"op={op!r}: modelled are all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, barrier, send"
    )


def bus_factor(op: str, ranks: int, algorithm: Algorithm = Algorithm.RING) -> float:
    """Bus bandwidth over algorithm bandwidth, as nccl-tests reports them."""
    if op == "all_reduce":
        return (ranks - 1) / (ranks + 1) if algorithm is Algorithm.IN_NETWORK else 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if op in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


def transfer_kappa(
    op: str,
    payload_bytes: float,
    ranks: int,
    full_ranks: int,
    healthy: Link,
    regressed: Link,
    *,
    present: bool = True,
    algorithm: Algorithm = Algorithm.RING,
) -> float:
    """The effect of a changed link on a group of `ranks`, as a share of its effect on the group of `full_ranks`.

    `present` is false where the link does not exist at the scope (a group that no longer crosses hosts): then 0.
    Raises `ValueError` where the link change moves nothing at full scale.
    """
    _check_ranks(ranks, full_ranks)

    def change_us(members: int) -> float:
        before = transfer_us(op, payload_bytes, members, healthy, algorithm=algorithm)
        return transfer_us(op, payload_bytes, members, regressed, algorithm=algorithm) - before

    full = change_us(full_ranks)
    if full == 0:
        raise ValueError(f"{healthy} and {regressed} take {op} over {full_ranks} ranks equally long: nothing to scale")
    return change_us(ranks) / full if present and ranks > 1 else 0.0


def _all_reduce_us(
    payload: float, ranks: int, link: Link, algorithm: Algorithm, inter: Link | None, nodes: int
) -> float:
    if algorithm is Algorithm.RING:
        return 2 * (ranks - 1) * link.alpha_us + 2 * payload * (ranks - 1) / ranks / link.bytes_per_us
    if algorithm is Algorithm.TREE:
        return 2 * math.ceil(math.log2(ranks)) * link.alpha_us + 2 * payload / link.bytes_per_us
    if algorithm is Algorithm.IN_NETWORK:
        return link.alpha_us + payload / link.bytes_per_us
    if inter is None or nodes < 1 or ranks % nodes:
        raise ValueError(f"hierarchical over {ranks} ranks on {nodes} nodes needs an inter link and equal nodes")
    local = ranks // nodes
    inside = 2 * (local - 1) * link.alpha_us + 2 * payload * (local - 1) / local / link.bytes_per_us
    between = 2 * (nodes - 1) * inter.alpha_us + 2 * payload / local * (nodes - 1) / nodes / inter.bytes_per_us
    return inside + between


def _resampled_means(rows: Floats, rng: np.random.Generator, draws: int) -> Floats:
    """Means of `draws` resamplings of rows, as weighted sums: a draw is how often each row was taken."""
    counts = rng.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=draws)
    return np.asarray(counts @ rows / len(rows), dtype=np.float64)


def _steps_by_ranks(values: npt.ArrayLike) -> Floats:
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or 0 in table.shape or not np.isfinite(table).all():
        raise ValueError(f"local times of shape {table.shape}: give finite times, one row a step and one column a rank")
    return table


def _check_ranks(ranks: int, full_ranks: int) -> None:
    if not 1 <= ranks <= full_ranks:
        raise ValueError(f"{ranks} of {full_ranks} ranks: a scope keeps at least 1 rank and at most all")


def _log_choose(n: npt.ArrayLike, k: int) -> Floats:
    top = np.asarray(n, dtype=np.float64)
    return np.asarray(gammaln(top + 1) - gammaln(k + 1) - gammaln(top - k + 1), dtype=np.float64)


def _harmonic(n: int) -> float:
    return math.fsum(1 / k for k in range(1, n + 1))
