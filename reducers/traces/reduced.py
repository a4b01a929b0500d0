"""The reduced trace: what is kept of a rank's trace, a few kilobytes of JSON, and its schema.

Schema history: 1, the first.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from narrows.reducers.traces.errors import TraceError

SCHEMA = 1
KIND = "reduced_trace"


class Accounts(Struct, frozen=True, kw_only=True):
    """Where a device's time went. Unions of intervals: a nanosecond counts once in each account.

    ``busy + idle == span`` and ``compute + exposed_communication + exposed_copy == busy``, exactly.
    """

    span_ns: int
    busy_ns: int
    idle_ns: int
    compute_ns: int
    communication_ns: int
    exposed_communication_ns: int
    copy_ns: int
    exposed_copy_ns: int


class Gaps(Struct, frozen=True, kw_only=True):
    """A device's idle time between its first and last work, by what the next work waited for; adds up to idle."""

    num: int
    host_ns: int  # the host had not launched it yet, and was not waiting for data
    input_ns: int  # the same, while the host waited in the data loader
    launch_ns: int  # launched, on its way
    dependency_ns: int  # launched before the device fell idle: it waited for something else
    queue_ns: int  # gaps under 1 us
    unlinked_ns: int  # its launch is not in the trace

    @property
    def total_ns(self) -> int:
        """The idle time that they add up to."""
        return self.host_ns + self.input_ns + self.launch_ns + self.dependency_ns + self.queue_ns + self.unlinked_ns


class Step(Struct, frozen=True, kw_only=True):
    """One profiler step: its window on the host, and the device work that was launched inside."""

    step: int
    start_ns: int
    host_ns: int  # length of the window; windows tile, so the time between two annotations is the earlier's
    devices: dict[str, Accounts]


class Collective(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One collective on this rank. What the trace does not say is absent."""

    op: str
    start_ns: int
    end_ns: int
    on: str  # the device, or "host"
    group: str | None = None
    group_role: str | None = None
    group_ranks: str | None = None
    group_size: int | None = None
    seq: int | None = None
    payload_bytes: int | None = None
    dtype: str | None = None
    step: int | None = None
    p2p: bool = False
    peer: int | None = None


class Kernel(Struct, frozen=True, kw_only=True):
    """All launches of one kernel (or copy) together."""

    name: str
    work: str  # compute, communication, copy
    num: int
    total_ns: int


class MemoryByCategory(Struct, frozen=True, kw_only=True):
    """A memory timeline of PyTorch. ``at_peak_bytes`` adds up to ``peak_bytes``, as does the growth."""

    peak_bytes: int
    peak_ns: int | None  # since 1970; null where the peak was there from the start
    at_peak_bytes: dict[str, int]
    growth_bytes: int  # what the window allocated and did not free
    growth_by_category: dict[str, int]


class AllocatorState(Struct, frozen=True, kw_only=True):
    """A snapshot of the caching allocator, at the time at which it was written."""

    reserved_bytes: int  # taken from the driver
    allocated_bytes: int  # in tensors
    inactive_bytes: int  # free, in the cache
    fragmented_bytes: int  # of these, in segments of which a part is used
    largest_free_bytes: int  # the largest allocation that needs no new segment
    retries_at_most: int  # times that cached segments went back right before a new one was taken
    num_out_of_memory: int


class Memory(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The most that an allocator held inside the trace; 0 of 0 events where the trace did not record it.

    ``by_category`` and ``snapshot`` are of files beside the trace, where there are any.
    """

    peak_allocated_bytes: int = msgspec.field(default_factory=int)
    peak_reserved_bytes: int = msgspec.field(default_factory=int)
    num_events: int = msgspec.field(default_factory=int)
    by_category: MemoryByCategory | None = None
    snapshot: AllocatorState | None = None


class Label(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a rank's step time mostly goes to, with what decided it. A label says what is largest, not what changed."""

    version: str
    label: str
    sublabel: str | None = None
    inferred: bool = False  # no span of the host says that it waited for data: concluded from the rest
    measurements: dict[str, float]
    margins: dict[str, float]  # measurement minus threshold, for each threshold
    stability: float | None = None  # share of resampled steps that get the same label; absent below 3 steps
    borderline: bool = False


class Damage(Struct, frozen=True, kw_only=True):
    """What was wrong with the file, and what was left out."""

    layout: str
    bytes: int
    truncated: bool
    repaired: int
    dropped: int
    dropped_for: dict[str, int]
    unlinked: int  # device events whose launch is not in the trace
    clipped_ns: int  # overlaps inside one stream, cut off


class Host(Struct, frozen=True, kw_only=True):
    """A rank without a device: the steps' span and what its collectives cover of it."""

    span_ns: int
    communication_ns: int
    num_collectives: int


class Reduced(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rank's trace, reduced. Times are nanoseconds since 1970 where ``clock`` is unix_ns, else of the trace alone."""

    schema: int
    kind: str
    rank: int | None
    world_size: int | None
    host_name: str | None
    backend: str | None
    clock: str  # unix_ns or trace_ns
    devices: dict[str, Accounts]
    steps: list[Step]
    outside: dict[str, dict[str, Accounts]]  # work launched before the trace, after the last step, or unlinked
    gaps: dict[str, Gaps]
    collectives: list[Collective]
    top_kernels: list[Kernel]
    memory: dict[str, Memory]
    memory_files: dict[str, str] = {}  # files beside the trace, by name: what each is, or why it was not read
    host: Host | None
    label: Label | None
    quality: Damage


def encode_reduced(reduced: Reduced) -> bytes:
    """The reduced trace as one line of JSON."""
    return msgspec.json.encode(reduced)


def read_reduced(path: Path) -> Reduced:
    """A reduced trace from its file.

    Raises TraceError for another file, or for a newer schema.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Reduced)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: no reduced trace ({error}); make one with narrows reduce TRACE --out DIR") from error
    if found.kind != KIND or found.schema != SCHEMA:
        raise TraceError(f"{path}: kind {found.kind!r}, schema {found.schema}; this version reads {KIND} {SCHEMA}")
    return found
