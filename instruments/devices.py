"""Times of collectives on a CUDA stream, read when they are over and never waited for by the training thread."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from narrows.instruments.operations import Call
    from narrows.instruments.records import CollectiveRecord

_BUFFERS = ("tensor", "output_tensor", "input", "self", "output", "tensors", "tensor_list", "inputs")
ANCHOR_NS = 500_000_000


class Event(Protocol):
    """What is asked of ``torch.cuda.Event``: times in ms between events of one device."""

    def record(self, stream: Any = None) -> None: ...
    def query(self) -> bool: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, end_event: Any) -> float: ...


class DeviceClock:
    """Places device events on the host's clock, by an event whose host time is known, renewed as time goes on.

    The distance to the anchor is kept under about a second, where the float32 milliseconds of CUDA resolve 60 ns.
    """

    def __init__(self, make: Callable[[], Event], anchor: Callable[[Event], None]) -> None:
        self._make = make
        self._record_anchor = anchor
        self._anchor: Event | None = None
        self._anchor_ns = 0

    def mark(self) -> Mark:
        """A mark whose beginning is recorded on the current stream now."""
        return Mark(self, self._make(), self._make())

    def host_ns(self, event: Event) -> int:
        """The host's monotonic time of a completed event, ns. May synchronise an otherwise idle stream."""
        if self._anchor is None or time.monotonic_ns() - self._anchor_ns > ANCHOR_NS:
            self._anchor = self._make()
            self._record_anchor(self._anchor)
            self._anchor.synchronize()
            self._anchor_ns = time.monotonic_ns()
        return self._anchor_ns + round(self._anchor.elapsed_time(event) * 1e6)


class Mark:
    """Two events around an operation. ``stop`` records the second one, on the stream that is current then."""

    __slots__ = ("_begin", "_clock", "_end", "_stopped")

    def __init__(self, clock: DeviceClock, begin: Event, end: Event) -> None:
        self._clock = clock
        self._begin = begin
        self._end = end
        self._stopped = False
        begin.record()

    def stop(self) -> None:
        """The operation ends here on the current stream; only the first call counts."""
        if not self._stopped:
            self._end.record()
            self._stopped = True

    def read(self, record: CollectiveRecord) -> bool:
        """Whether the device has passed the end; ``device_us`` and ``end_ns`` of the record are set when it has."""
        if not self._stopped or not self._end.query():
            return False
        record.device_us = self._begin.elapsed_time(self._end) * 1000
        record.end_ns = max(record.enter_ns, self._clock.host_ns(self._end))
        return True


_clocks: dict[int, DeviceClock] = {}


def start_mark(call: Call) -> Mark | None:
    """A mark on the current CUDA stream where the call's buffers are on a CUDA device; None elsewhere."""
    cuda = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return None
    buffer = next((found for name in _BUFFERS if (found := call[name]) is not None), None)
    while isinstance(buffer, (list, tuple)) and buffer:
        buffer = buffer[0]
    device = getattr(buffer, "device", None)
    if device is None or device.type != "cuda" or cuda.is_current_stream_capturing():
        return None
    return cuda_clock(cuda, device.index or 0).mark()


def cuda_clock(cuda: Any, index: int) -> DeviceClock:
    """The clock of one CUDA device; its anchors are recorded on a stream of its own."""
    if index not in _clocks:
        side = cuda.Stream(device=index)
        _clocks[index] = DeviceClock(lambda: cuda.Event(enable_timing=True), lambda event: event.record(side))
    return _clocks[index]


def is_compiling() -> bool:
    """Whether torch.compile is tracing this code: then nothing of ours may become part of the graph."""
    compiler = sys.modules.get("torch.compiler")
    return compiler is not None and bool(compiler.is_compiling())
