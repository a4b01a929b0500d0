"""Device times of collectives, with a device whose clock the test turns."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from narrows.instruments.devices import DeviceClock
from narrows.instruments.operations import Call, Parameters, tensor_bytes
from narrows.instruments.records import CollectiveRecord, collective_line


class FakeDevice:
    """A stream whose work is done up to ``done_ms`` of its own clock."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.done_ms = 0.0
        self.anchors = 0

    def event(self) -> FakeEvent:
        return FakeEvent(self)

    def anchor(self, event: Any) -> None:
        """On an idle stream the event happens when the host records it."""
        self.anchors += 1
        event.at_ms = time.monotonic_ns() / 1e6


class FakeEvent:
    """As torch.cuda.Event, in the fake device's time."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self.at_ms: float | None = None

    def record(self, _stream: Any = None) -> None:
        self.at_ms = self._device.now_ms

    def query(self) -> bool:
        return self.at_ms is not None and self.at_ms <= self._device.done_ms

    def synchronize(self) -> None:
        """The anchor is over already."""

    def elapsed_time(self, end_event: Any) -> float:
        assert self.at_ms is not None
        return float(end_event.at_ms - self.at_ms)


def issued(enter_ns: int) -> CollectiveRecord:
    return CollectiveRecord(
        group="dp", seq=0, op="all_reduce", payload_bytes=8, enter_ns=enter_ns, step=0, segment=None
    )


def test_a_collective_ends_when_the_device_reaches_its_end() -> None:
    device = FakeDevice()
    clock = DeviceClock(device.event, device.anchor)
    host_ms = time.monotonic_ns() / 1e6  # the fake device counts from the host's zero, so its times are known
    device.now_ms = host_ms + 2.0
    record = issued(enter_ns=round(host_ms * 1e6))
    mark = clock.mark()
    assert not mark.read(record)
    device.now_ms = host_ms + 5.5
    mark.stop()
    device.now_ms = host_ms + 99.0
    mark.stop()
    assert not mark.read(record)
    device.done_ms = host_ms + 6.0
    assert mark.read(record)
    assert record.device_us == pytest.approx(3500.0)
    assert record.end_ns == pytest.approx((host_ms + 5.5) * 1e6, abs=5e6)  # the anchor is read back by this host
    assert collective_line(record)["device_us"] == record.device_us


def test_an_anchor_serves_many_events_and_is_renewed_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    clock = DeviceClock(device.event, device.anchor)
    event = device.event()
    event.record()
    for _ in range(10):
        clock.host_ns(event)
    assert device.anchors == 1
    monkeypatch.setattr("narrows.instruments.devices.ANCHOR_NS", -1)
    clock.host_ns(event)
    assert device.anchors == 2


def test_a_call_is_read_by_name_whatever_way_it_was_written() -> None:
    def function(tensor: Any, group: Any = None, *, async_op: bool = False) -> None: ...

    parameters = Parameters(function)
    assert Call(parameters, ("t",), {})["tensor"] == "t"
    assert Call(parameters, ("t", "g"), {"async_op": True})["group"] == "g"
    assert Call(parameters, (), {"tensor": "t"})["async_op"] is False
    assert Call(parameters, (), {})["nothing"] is None


def test_bytes_of_nested_lists_add_up_and_unknown_sizes_stay_unknown() -> None:
    tensor = SimpleNamespace(nbytes=6)
    assert tensor_bytes([[tensor, tensor], [tensor]]) == 18
    assert tensor_bytes([tensor, object()]) is None
