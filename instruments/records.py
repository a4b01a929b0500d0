"""What the training thread leaves in memory, and the lines that the writer makes of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Span = tuple[str, int, int]


class StepRecord(NamedTuple):
    """One step window as the training thread left it: times in monotonic ns, spans absolute."""

    step: int
    segment: int | None
    pair: int | None
    start_ns: int
    end_ns: int
    spans: list[Span]
    batch: int | None
    useful: Mapping[str, float] | None
    loss: float | None
    grad_norm: float | None
    memory: Mapping[str, float] | None
    warmup: bool


@dataclass(slots=True, kw_only=True, eq=False)
class CollectiveRecord:
    """One operation of a group: ``end_ns`` and ``device_us`` stay None until they are known."""

    group: str
    seq: int
    op: str
    payload_bytes: int | None
    enter_ns: int
    step: int
    segment: int | None
    peer: int | None = None
    p2p: bool = False
    end_ns: int | None = None
    device_us: float | None = None
    mark: Any = None


def step_line(record: StepRecord) -> dict[str, Any]:
    """The JSON object of a step: spans as offsets from its start, clipped to the window, and their union by name."""
    spans = [clipped for span in record.spans if (clipped := _clip(span, record.start_ns, record.end_ns))]
    line: dict[str, Any] = {"step": record.step}
    _put(line, segment=record.segment, pair=record.pair, batch=record.batch)
    line["start_ns"] = record.start_ns
    line["end_ns"] = record.end_ns
    line["step_us"] = (record.end_ns - record.start_ns) / 1000
    line["parts_us"] = _union_by_name(spans)
    line["spans_ns"] = spans
    if record.useful:
        line["useful"] = dict(record.useful)
    _put_number(line, "loss", record.loss)
    _put_number(line, "grad_norm", record.grad_norm)
    if record.memory:
        line["memory"] = dict(record.memory)
    if record.warmup:
        line["warmup"] = True
    return line


def collective_line(record: CollectiveRecord) -> dict[str, Any]:
    """The JSON object of a collective; one that never completed has no ``end_ns``."""
    line: dict[str, Any] = {"group": record.group, "seq": record.seq, "op": record.op}
    _put(line, payload_bytes=record.payload_bytes)
    line["enter_ns"] = record.enter_ns
    _put(line, end_ns=record.end_ns)
    line["step"] = record.step
    _put(line, segment=record.segment, device_us=record.device_us)
    if record.p2p:
        line["p2p"] = True
    _put(line, peer=record.peer)
    return line


def _clip(span: Span, start_ns: int, end_ns: int) -> Span | None:
    """The part of the span inside the window, as offsets from the window's start; None where there is none."""
    name, begin, end = span
    begin, end = max(begin, start_ns), min(end, end_ns)
    return (name, begin - start_ns, end - start_ns) if begin < end else None


def _union_by_name(spans: Iterable[Span]) -> dict[str, float]:
    """For each name the length that its spans cover, us: nested spans of one name count once."""
    covered: dict[str, int] = {}
    reached: dict[str, int] = {}
    for name, begin, end in sorted(spans, key=lambda span: span[1]):
        new_from = max(begin, reached.get(name, 0))
        if end > new_from:
            covered[name] = covered.get(name, 0) + end - new_from
            reached[name] = end
    return {name: length / 1000 for name, length in covered.items()}


def _put(line: dict[str, Any], **values: object) -> None:
    line.update({name: value for name, value in values.items() if value is not None})


def _put_number(line: dict[str, Any], name: str, value: object) -> None:
    """A number that JSON cannot hold (a loss of NaN) stands as text under ``<name>_nonfinite``."""
    if value is None:
        return
    number = float(value)  # type: ignore[arg-type]  # a user may hand over a tensor; float() takes it
    if math.isfinite(number):
        line[name] = number
    else:
        line[f"{name}_nonfinite"] = str(number)
