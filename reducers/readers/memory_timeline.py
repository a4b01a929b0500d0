"""PyTorch's exported memory timelines: bytes by category over time, as single events (raw) or as sizes at each time.

A raw timeline (``export_memory_timeline`` to ``.raw.json.gz``) is a list of time in ns, action, signed bytes, category;
the other (``.json``) is a list of times in us and a list of the categories' sizes behind a leading 0. Neither says
which device it is of.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from narrows.reducers.readers.common import NotUnderstood, UnreadableError, UnreadList

# In the order of their numbers in the file. Source: PyTorch 2.1 to 2.13, torch/profiler/_memory_profiler.py.
CATEGORIES = (
    "parameter", "optimizer_state", "input", "temporary", "activation", "gradient", "autograd_detail", "unknown",
)  # fmt: skip
_PREEXISTING = 1
_ACTIONS = (1, 2, 3, 4)  # held before, created, written in place, freed
_HEAD = re.compile(rb"\s*\[\s*\[\s*-?\d+\s*(?:,\s*-?\d+\s*)*(?:,?\s*$|\]\s*(?:,\s*(?:$|\[\s*(?:$|\[|-?\d))|\]))")
_ROWS = msgspec.json.Decoder(list[tuple[int, int, int, int]])
_SIZES = msgspec.json.Decoder(tuple[list[int], list[list[int]]])
_LAST_ROW = re.compile(rb"\]\s*,[^\]]*$")

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTimeline:
    """Bytes that tensors held on one device. ``at_peak_bytes`` adds up to ``peak_bytes``, ``growth_by_category`` to
    ``growth_bytes``. Times are nanoseconds since 1970; ``peak_ns`` is absent where the peak was there from the start.
    """

    form: str  # raw or sizes
    events: int
    start_ns: int | None = None
    end_ns: int | None = None
    start_bytes: int  # held before the first event
    end_bytes: int
    growth_bytes: int  # from the start to the end: what the window allocated and did not free
    growth_by_category: dict[str, int]
    peak_bytes: int
    peak_ns: int | None = None
    at_peak_bytes: dict[str, int]
    category_peaks_bytes: dict[str, int]  # the most of each category, each at a time of its own
    not_understood: NotUnderstood = field(default_factory=NotUnderstood)


def looks_like(head: bytes) -> bool:
    """Whether a file that begins so is a memory timeline: an array of arrays of whole numbers."""
    return bool(_HEAD.match(head[:4096]))


def read_memory_timeline(data: bytes, name: str = "input") -> MemoryTimeline:
    """The timeline in ``data``. Of a raw one that is cut, what is whole is read, and the cut is listed.

    Raises:
        UnreadableError: it is no memory timeline, or holds no event.
    """
    unread = UnreadList()
    try:
        times, sizes = _SIZES.decode(data)
    except msgspec.DecodeError:
        return _raw(_rows(data, name, unread), name, unread)
    width = len(CATEGORIES)
    if not times or len(times) != len(sizes) or {len(row) for row in sizes} != {width + 1}:
        raise UnreadableError(f"{name}: {len(times)} times and {len(sizes)} rows; expected {width + 1} sizes for each")
    held = np.array(sizes, np.int64)[:, 1:]
    return _timeline("sizes", 1000 * np.array(times, np.int64), held, held[0], unread)


def _rows(data: bytes, name: str, unread: UnreadList) -> Ints:
    try:
        rows = _ROWS.decode(data)
    except msgspec.DecodeError as error:
        cut = _LAST_ROW.search(data)
        if cut is None:
            raise UnreadableError(f"{name}: is no memory timeline ({error}); export it again") from None
        try:
            rows = _ROWS.decode(data[: cut.start() + 1] + b"]")
        except msgspec.DecodeError:
            raise UnreadableError(f"{name}: is no whole memory timeline ({error}); export it again") from None
        unread.add(0, "the end of the file", "the file ends before its end; what is whole was read")
    for at, row in enumerate(rows):
        if row[1] not in _ACTIONS or not 0 <= row[3] < len(CATEGORIES):
            unread.add(
                0, f"event {at}: {list(row)}", f"action 1 to 4 and category 0 to {len(CATEGORIES) - 1} are known"
            )
    known = [row for row in rows if row[1] in _ACTIONS and 0 <= row[3] < len(CATEGORIES)]
    return np.array(known, np.int64).reshape(-1, 4)


def _raw(rows: Ints, name: str, unread: UnreadList) -> MemoryTimeline:
    if not len(rows):
        raise UnreadableError(f"{name}: a memory timeline without an event; profile with profile_memory=True")
    changes = np.zeros((len(rows), len(CATEGORIES)), np.int64)
    changes[np.arange(len(rows)), rows[:, 3]] = rows[:, 2]
    held = changes.cumsum(axis=0)
    before = int((rows[:, 1] != _PREEXISTING).argmax()) if (rows[:, 1] != _PREEXISTING).any() else len(rows)
    start = held[before - 1] if before else np.zeros(len(CATEGORIES), np.int64)
    return _timeline("raw", rows[:, 0], held, start, unread)


def _timeline(form: str, times_ns: Ints, held: Ints, start: Ints, unread: UnreadList) -> MemoryTimeline:
    total = held.sum(axis=1)
    at = int(total.argmax())
    timed = times_ns[times_ns > 0]
    return MemoryTimeline(
        form=form,
        events=len(held),
        start_ns=int(timed.min()) if len(timed) else None,
        end_ns=int(timed.max()) if len(timed) else None,
        start_bytes=int(start.sum()),
        end_bytes=int(total[-1]),
        growth_bytes=int(total[-1] - start.sum()),
        growth_by_category=_by_category(held[-1] - start),
        peak_bytes=int(total[at]),
        peak_ns=int(times_ns[at]) if times_ns[at] > 0 else None,
        at_peak_bytes=_by_category(held[at]),
        category_peaks_bytes=_by_category(held.max(axis=0)),
        not_understood=unread.done(),
    )


def _by_category(sizes: Ints) -> dict[str, int]:
    """Categories that are not 0."""
    return {name: int(size) for name, size in zip(CATEGORIES, sizes, strict=True) if size}
