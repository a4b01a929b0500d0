"""What communication should move and take by the textbook, beside what it took: bytes, rounds, alpha-beta time.

Bytes and rounds need nothing but the shape. A time is expected only where something known says it: a curve over the
healthy run's own message sizes, the numbers of an emulated fabric, or a link that was stated.
Source: nccl-tests PERFORMANCE.md, bytes and rounds; Narayanan et al., SC 2021, the pipeline's bubble.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from narrows.reducers.curves import fit_curve
from narrows.reducers.scaling import Link, bus_factor, transfer_us

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from narrows.reducers.records import F64, I64

EXCEEDS = 1.25
"""Calls are flagged where three quarters of them take longer than this multiple of the expected time: a convention, as
wide as the closing test's. Half of them may be slow for no more than a busy machine."""
FITS = 1.10
"""A curve that misses one of its own sizes by more than this factor is no basis: its sizes lie on no line."""
LOW = 0.25
LEAST_SIZES = 3
LEAST_CALLS = 5
"""A median over fewer calls is shown and never flagged."""
FABRIC_ROLE = "dp"
RING_OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")
OPS = (*RING_OPS, "barrier", "send", "recv")
MOST_ROWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One kind of collective: its group's role, its operation, the ranks, the whole buffer in bytes."""

    group: str
    op: str
    ranks: int
    payload_bytes: int
    crosses_hosts: bool

    @property
    def kind(self) -> Kind:
        return (self.group, self.op, self.ranks, self.crosses_hosts)


Kind = tuple[str, str, int, bool]
"""What shapes of one curve share: all but the bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A shape as it was met in steady steps: ``calls`` a step of one group, ``num`` of them in all. ``service_us`` is
    the median service after the last arrival, of the group of this role whose median is the longest; a quarter of its
    calls took ``low_us`` or less."""

    shape: Shape
    calls: float
    service_us: float
    low_us: float
    num: int
    slowest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """t = ``alpha_us`` + ``us_a_byte`` x payload, as fitted from ``least_bytes`` to ``most_bytes``; ``off`` is the
    largest factor between the curve and one of its own sizes."""

    alpha_us: float
    us_a_byte: float
    least_bytes: int
    most_bytes: int
    sizes: int
    off: float

    def at_us(self, payload_bytes: float) -> float:
        return self.alpha_us + self.us_a_byte * payload_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What expectations rest on. A curve goes before all else.

    ``fabric`` is an emulated one, whose ``alpha_us`` is that of a whole pass around the ring, for data-parallel groups;
    ``link`` holds for groups that cross hosts. ``sizes`` counts the healthy run's sizes of each kind.
    """

    curves: Mapping[Kind, Curve] = field(default_factory=dict)
    sizes: Mapping[Kind, int] = field(default_factory=dict)
    fabric: Link | None = None
    link: Link | None = None

    def expected_us(self, shape: Shape) -> tuple[float, str] | None:
        """The time of one such collective in us, and what says so; None where nothing does."""
        curve = self.curves.get(shape.kind)
        if curve is not None and _lies_on(curve, shape):
            return curve.at_us(shape.payload_bytes), f"curve over {curve.sizes} sizes of the healthy run"
        if shape.ranks < 2:
            return None
        if self.fabric is not None and shape.op in RING_OPS and shape.group.partition("-")[0] == FABRIC_ROLE:
            ring = replace(self.fabric, alpha_us=self.fabric.alpha_us / (shape.ranks - 1))
            return transfer_us(shape.op, shape.payload_bytes, shape.ranks, ring), "alpha-beta of the emulated fabric"
        if self.link is not None and shape.crosses_hosts:
            return transfer_us(shape.op, shape.payload_bytes, shape.ranks, self.link), "alpha-beta of the stated link"
        return None

    def why_not(self, shape: Shape) -> str:
        """Why no time is expected of a shape of which ``expected_us`` knows none."""
        return f"{self._no_curve(shape)}; {'no link stated' if self.link is None else 'the link is between hosts'}"

    def _no_curve(self, shape: Shape) -> str:
        curve = self.curves.get(shape.kind)
        if curve is None:
            if not shape.payload_bytes:
                return "no curve: it moves no bytes"
            sizes = self.sizes.get(shape.kind, 0)
            return f"no curve: {sizes} size{'s' * (sizes != 1)} in the healthy run, {LEAST_SIZES} are needed"
        if curve.off > FITS:
            return f"no curve: the healthy run's sizes lie up to {curve.off - 1:.0%} off a line"
        return f"no curve: the healthy run's sizes go from {curve.least_bytes} to {curve.most_bytes} bytes"


def _lies_on(curve: Curve, shape: Shape) -> bool:
    return curve.off <= FITS and curve.least_bytes <= shape.payload_bytes <= curve.most_bytes


def known_op(op: str) -> str | None:
    """The modelled operation that a recorded name begins with (``all_gather_into_tensor``); None for others."""
    return next((one for one in OPS if op.removeprefix("i").startswith(one)), None)


def rounds(op: str, ranks: int) -> int:
    """Rounds of one ring collective, of a barrier's tree, or 1 for a point-to-point call; 0 for a single rank."""
    if ranks < 2:
        return 0
    if op == "barrier":
        return 2 * math.ceil(math.log2(ranks))
    if op in ("send", "recv"):
        return 1
    return 2 * (ranks - 1) if op == "all_reduce" else ranks - 1


def sent_bytes(op: str, payload_bytes: float, ranks: int) -> float:
    """Bytes that one rank sends in one ring collective of the whole buffer; the most of any rank where they differ."""
    return 0.0 if ranks < 2 or op == "barrier" else payload_bytes * bus_factor(op, ranks)


def exposed(first_B: I64, ready_C: F64, service_C: F64, until_B: F64) -> F64:
    """Shape (B,): what of each batch of collectives is left when nothing hides it any longer, in the unit given.

    A collective starts when it is ready and the one before it in its batch is done; batch b begins at ``first_B[b]``
    of the collectives C, which are in order of their start, and its compute ends at ``until_B[b]``.
    """
    if not len(first_B):
        return np.zeros(0)
    before_C = np.cumsum(service_C) - service_C
    # end = max over b of (ready_b + the service of b and all after it).
    latest_B = np.maximum.reduceat(ready_C - before_C, first_B)
    done_B = np.append(before_C[first_B[1:]], before_C[-1] + service_C[-1])
    return np.asarray(np.maximum(0.0, latest_B + done_B - until_B), dtype=np.float64)


def bubble_share(stages: int, microbatches: int, chunks: int = 1) -> float:
    """The idle part of a step of equal pipeline stages, 0 to 1; ``chunks`` of the model a stage when interleaved.

    Raises ``ValueError`` below one stage, microbatch or chunk.
    """
    if min(stages, microbatches, chunks) < 1:
        raise ValueError(f"{stages} stages, {microbatches} microbatches, {chunks} chunks: give at least 1 of each")
    return (stages - 1) / (chunks * microbatches + stages - 1)


def bubble_ms(stage_ms: Sequence[float], microbatches: int, chunks: int = 1) -> float:
    """What a stage waits in a step, mean over stages, when stage s computes ``stage_ms[s]`` a step in all.

    Unequal stages: the step is the sum of their times for one microbatch and m - 1 times the longest. Interleaved
    stages are taken for equal. Raises ``ValueError`` as ``bubble_share`` does.
    """
    stages, mean = len(stage_ms), sum(stage_ms) / max(1, len(stage_ms))
    share = bubble_share(stages, microbatches, chunks)
    if chunks > 1:
        return mean * share / (1 - share)
    return (sum(stage_ms) + (microbatches - 1) * max(stage_ms)) / microbatches - mean


def basis_of(healthy: Sequence[Measured], manifest: Mapping[str, Any], link: Link | None = None) -> Basis:
    """Curves over the sizes of the healthy run where a kind has at least 3, what its manifest says of an emulated
    fabric, and the link that was stated."""
    times: dict[Kind, dict[int, float]] = {}
    for one in healthy:
        if one.service_us > 0 and one.shape.payload_bytes > 0:
            times.setdefault(one.shape.kind, {})[one.shape.payload_bytes] = one.service_us
    return Basis(
        curves={kind: _curve(table) for kind, table in times.items() if len(table) >= LEAST_SIZES},
        sizes={kind: len(table) for kind, table in times.items()},
        fabric=_fabric(manifest),
        link=link,
    )


def _curve(table: Mapping[int, float]) -> Curve:
    payload = sorted(table)
    alpha_us, us_a_byte = fit_curve(payload, [table[one] for one in payload])
    ratios = [table[one] / (alpha_us + us_a_byte * one) for one in payload]
    return Curve(
        alpha_us=alpha_us,
        us_a_byte=us_a_byte,
        least_bytes=payload[0],
        most_bytes=payload[-1],
        sizes=len(payload),
        off=max(max(one, 1 / one) for one in ratios),
    )


def _fabric(manifest: Mapping[str, Any]) -> Link | None:
    """An emulated fabric takes exactly what its configuration says, unless a slower link was added to it."""
    config = manifest.get("config") or {}
    rate, delay = config.get("fabric_mbit"), config.get("fabric_delay_us")
    if not manifest.get("emulated") or config.get("slow_link"):
        return None
    if not isinstance(rate, (int, float)) or not isinstance(delay, (int, float)) or rate <= 0 or delay < 0:
        return None
    return Link(alpha_us=float(delay), bytes_per_us=float(rate) / 8)


def shape_rows(arms: Mapping[str, Iterable[Measured]], basis: Basis) -> list[dict[str, Any]]:
    """One plain row a shape, that with most time a step first: what it should move and take, and what it took by arm.

    ``expected_us`` and ``basis`` are absent without a basis, and ``why_not`` says why. ``exceeded`` names the arms
    in which three quarters of the calls take more than ``EXCEEDS`` times the expected.
    """
    met: dict[Shape, dict[str, Measured]] = {}
    for arm, measured in arms.items():
        for one in measured:
            met.setdefault(one.shape, {})[arm] = one
    rows = [_row(shape, by_arm, list(arms), basis) for shape, by_arm in met.items()]
    return sorted(rows, key=lambda row: -max(_step_us(row, arm) for arm in arms))


def beside(rows: list[dict[str, Any]], overlap: list[dict[str, Any]], bubble: dict[str, Any]) -> dict[str, Any]:
    """What evidence and comparisons hold: the first ``MOST_ROWS`` of the shapes' ``rows``, how many were ``left_out``,
    and what a rank has ``sent`` a step."""
    return {
        "rows": rows[:MOST_ROWS],
        "left_out": max(0, len(rows) - MOST_ROWS),
        "sent": sent_a_step(rows),
        "overlap": overlap,
        "bubble": bubble,
    }


def sent_a_step(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Bytes that one rank sends a step, by role of group and arm: the work of the network, before it is blamed.

    Point-to-point calls are left out: they are counted by group, of which each rank makes some.
    """
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["op"] == "send":
            continue
        by_arm = found.setdefault(row["group"], dict.fromkeys(row["calls"], 0.0))
        for arm, calls in row["calls"].items():
            by_arm[arm] += (calls or 0.0) * row["sent_bytes"]
    return found


def _step_us(row: Mapping[str, Any], arm: str) -> float:
    return float((row["calls"][arm] or 0.0) * (row["measured_us"][arm] or 0.0))


def _row(shape: Shape, by_arm: Mapping[str, Measured], arms: Sequence[str], basis: Basis) -> dict[str, Any]:
    row: dict[str, Any] = {
        "group": shape.group,
        "op": shape.op,
        "ranks": shape.ranks,
        "crosses_hosts": shape.crosses_hosts,
        "payload_bytes": shape.payload_bytes,
        "rounds": rounds(shape.op, shape.ranks),
        "sent_bytes": sent_bytes(shape.op, shape.payload_bytes, shape.ranks),
        "calls": {arm: by_arm[arm].calls if arm in by_arm else None for arm in arms},
        "measured_us": {arm: by_arm[arm].service_us if arm in by_arm else None for arm in arms},
        "slowest": {arm: by_arm[arm].slowest for arm in arms if arm in by_arm},
        "exceeded": [],
    }
    known = basis.expected_us(shape)
    if known is None:
        return row | {"why_not": basis.why_not(shape)}
    over = [arm for arm, one in by_arm.items() if one.num >= LEAST_CALLS and one.low_us > EXCEEDS * known[0]]
    return row | {"expected_us": known[0], "basis": known[1], "exceeded": over}
