"""Expected beside measured for the traces of several ranks: their matched collectives by shape."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from narrows.reducers.expected import LOW, Measured, Shape, basis_of, beside, known_op, shape_rows

if TYPE_CHECKING:
    from narrows.reducers.trace_sides import Side


def expected_of_traces(sides: Mapping[str, Side]) -> dict[str, Any] | None:
    """As of recorded runs, without overlap and bubble; the first side is the healthy one. None without a split.

    The times of a trace are those of the whole trace, warm-up included.
    """
    measured = {arm: _measured(side) for arm, side in sides.items()}
    if not all(measured.values()):
        return None
    rows = shape_rows(measured, basis_of(next(iter(measured.values())), {}))
    return beside(rows, [], {"why_not": "traces do not say which ranks form a pipeline group"})


def _measured(side: Side) -> list[Measured]:
    """Empty where it is not known who came last."""
    if side.across is None or not side.across.conclusive:
        return []
    host_of = dict(zip(side.ranks, side.hosts, strict=True))
    steps = max(1, min(len(one.trace.steps) for one in side.steps))
    by_shape: dict[Shape, list[int]] = {}
    for call in side.across.collectives:
        op = known_op(call.op)
        if op is None or call.payload_bytes is None:
            continue
        shape = Shape(
            group=call.group or "collectives",
            op=op,
            ranks=len(call.wait_ns),
            payload_bytes=call.payload_bytes,
            crosses_hosts=len({host_of[rank] for rank in call.wait_ns}) > 1,
        )
        by_shape.setdefault(shape, []).append(call.transfer_ns)
    return [
        Measured(
            shape=shape,
            calls=len(own) / steps,
            service_us=median(own) / 1e3,
            low_us=float(np.quantile(own, LOW)) / 1e3,
            num=len(own),
            slowest=shape.group,
        )
        for shape, own in by_shape.items()
    ]
