"""Read a Kineto trace: exact times, bounded memory, any layout, and an account of what was damaged.

In the layouts that break lines, a raw line break cannot stand inside a string, so the line that closes a record is
certain; only records of a wanted category are cut out and decoded, the other nine tenths are never looked at. In the
others the whole is decoded in pieces: ``[`` + piece + ``]`` is valid JSON exactly if both cuts lie between elements.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, field

from narrows.reducers.traces.device_work import Columns
from narrows.reducers.traces.events import DECODE_ERRORS, AnyEvent, decode_list, decode_one, first_readable
from narrows.reducers.traces.launches import launch_columns
from narrows.reducers.traces.source import Source
from narrows.reducers.traces.table import Table
from narrows.reducers.traces.times import Ints, loses_digits
from narrows.reducers.traces.wanted import anywhere, phase_and_separator, regular
from narrows.reducers.traces.window import Layout, Opening, Window, find_events, sniff

CHUNK_BYTES = 2 << 20
_TRIES = 12  # boundaries guessed before a piece counts as damaged

_PIECE = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|args|pid|tid|ts)")')
_EMPTY_END = re.compile(rb"\s*\]")
_ARRAY_END = re.compile(rb"\}\s*,?\s*\](?=\s*(?:,|\}|$))")


class Quality(Struct, frozen=True, kw_only=True):
    """What was wrong with the file, and how much was lost by it."""

    layout: str
    bytes: int  # after inflating
    truncated: bool  # it ends before its end, or its compressed stream does
    repaired: int  # records read after a repair
    dropped: int  # records of interest lost: unreadable, or with an impossible duration
    dropped_for: dict[str, int]  # the same, by reason


class Trace(Struct, frozen=True, kw_only=True):
    """A trace as it was read. Times in integer nanoseconds on the trace's own clock, plus ``base_ns``."""

    path: Path
    metadata: dict[str, Any]
    base_ns: int | None  # what makes times absolute (since 1970); 0 when they are; None when it is not known
    columns: Columns
    launches: Ints  # (launches, 2): start in ns, correlation; by correlation
    table: Table
    quality: Quality


def read_trace(path: Path | str, *, chunk_bytes: int = CHUNK_BYTES) -> Trace:
    """The trace in a .json or .json.gz file. A damaged one gives what is whole in it, and ``quality`` says so.

    Raises TraceError for a file that is no profiler trace.
    """
    with Source(Path(path)) as source:
        window = Window(source, chunk_bytes)
        opening = find_events(window)
        reader = _Reader(window=window, opening=opening, layout=sniff(window))
        reader.read()
        return reader.result()


class _Reader(Struct, kw_only=True):
    window: Window
    opening: Opening
    layout: Layout
    table: Table = field(default_factory=Table)
    usual: re.Pattern[bytes] | None = None  # finds records that are written as usual, and cuts them out
    digits: bool = False
    closed: bool = False  # the end of the array was seen
    tail: bytes = b""
    repaired: int = 0
    unreadable: int = 0

    def read(self) -> None:
        if self.layout.by_lines:
            window = self.window
            found = phase_and_separator(self.layout.opens).search(window.buffer, window.start, window.end)
            self.usual = regular(self.layout.opens, self.layout.closes, found[1], found[2]) if found else None
        read_next, finish = (
            (self._read_lines, self._finish_lines) if self.layout.by_lines else (self._read_pieces, self._finish_pieces)
        )
        while not self.window.ended:
            read_next()
            self.window.fill()
        finish()

    # -- layouts that break lines

    def _last_record(self) -> int:
        """Where the last event begins; the window's start when that is the only one in sight."""
        window = self.window
        mark = window.buffer.rfind(b'"ph"', window.start, window.end)
        start = window.buffer.rfind(self.layout.opens, window.start, mark) if mark >= 0 else -1
        return max(start, window.start)

    def _read_lines(self) -> None:
        end = self._last_record()
        self._scan(self.window.start, end)
        self.window.start = end

    def _finish_lines(self) -> None:
        window, closes = self.window, self.layout.closes
        last = self._last_record()
        pattern = re.compile(re.escape(closes) + rb"\s*,?\s*\]")
        array_end = pattern.search(window.buffer, last, window.end)
        if array_end:
            self.closed = True
            self.tail = window.text(array_end.end(), window.end)
            self._scan(window.start, array_end.end())
        else:
            self._scan(window.start, window.end)

    def _scan(self, start: int, end: int) -> None:
        """Keep the wanted records between two places where records begin or end."""
        if self.usual is None or not self._scan_usual(self.usual, start, end):
            self._scan_anything(start, end)

    def _scan_usual(self, usual: re.Pattern[bytes], start: int, end: int) -> bool:
        """False if a record in sight is damaged, or not written as usual: then nothing was kept."""
        rows = usual.findall(self.window.buffer, start, end)
        if any(odd for _, _, odd, _ in rows):
            self.usual = None
            return False
        records = [b'{"cat":"' + record for _, _, _, record in rows if record]
        try:
            events = self._decode(b"[" + b",".join(records) + b"]")
        except DECODE_ERRORS:
            return False
        if not all(event.name and event.ts is not None for event in events):  # they may stand before the category
            self.usual = None
            return False
        self.table.add(events)
        self._add_launches([(time, number) for time, number, _, _ in rows if time])
        return True

    def _scan_anything(self, start: int, end: int) -> None:
        """The same, record by record, whatever the order of the keys."""
        buffer, opens, closes = self.window.buffer, self.layout.opens, self.layout.closes
        records: list[bytearray] = []
        launches: list[tuple[bytes, bytes]] = []
        cut = cut_end = -1
        for match in anywhere().finditer(buffer, start, end):
            if match.lastindex:
                launches.append(match.groups())  # type: ignore[arg-type]  # the pattern has two groups
                continue
            begin = buffer.rfind(opens, start, match.start())
            finish = buffer.find(closes, match.end(), end)
            if begin < 0 or finish < 0:
                continue
            if begin == cut:  # seen already; or the line that opens this record is damaged, and it cannot be cut out
                self.unreadable += finish != cut_end
                continue
            cut, cut_end = begin, finish
            records.append(buffer[begin + len(opens) - 1 : finish + len(closes)])
        self._add_launches(launches)
        self._keep(records)

    def _add_launches(self, launches: list[tuple[bytes, bytes]]) -> None:
        if launches:
            self.table.add_launches(*launch_columns(launches))

    def _keep(self, records: list[bytearray]) -> None:
        if not records:
            return
        try:
            self.table.add(self._decode(b"[" + b",".join(records) + b"]"))
        except DECODE_ERRORS:
            self._salvage([bytes(record) for record in records])

    def _decode(self, text: bytes | bytearray) -> list[AnyEvent]:
        events = decode_list(text, digits=self.digits)
        if not self.digits and any(loses_digits(event.ts) for event in events[:3] + events[-3:]):
            self.digits = True
            events = decode_list(text, digits=True)
        return events

    def _salvage(self, records: list[bytes], *, last_may_be_cut: bool = False) -> None:
        """Keep what can be read of records among which some are damaged."""
        events: list[AnyEvent] = []
        for index, record in enumerate(records):
            found = decode_one(record, digits=self.digits)
            if found is not None:
                events.append(found[0])
                self.repaired += found[1]
            elif not (last_may_be_cut and index == len(records) - 1):
                self.unreadable += 1
        self.table.add(events)

    # -- layouts that do not

    def _read_pieces(self) -> None:
        window = self.window
        cut = window.end
        for _ in range(_TRIES):
            found = self._boundary(window.start, cut)
            if found is None:
                break
            cut = found
            try:
                events = self._decode(b"[" + window.buffer[window.start : cut + 1] + b"]")
            except DECODE_ERRORS:
                continue
            self.table.add(events)
            window.start = window.buffer.index(b"{", cut)
            return
        # No boundary held, so something is damaged: take the pieces one by one, up to a boundary that is likely.
        found = self._boundary(window.start, window.end)
        if found is not None:
            self._salvage(_PIECE.sub(b"}\0", window.text(window.start, found + 1)).split(b"\0"))
            window.start = window.buffer.index(b"{", found)

    def _boundary(self, start: int, end: int) -> int | None:
        """The place of the last closing brace that may end an event, before ``end``."""
        low = end
        while low > start:
            low = max(start, low - 65536)
            found = None
            for match in _PIECE.finditer(self.window.buffer, low, end):
                found = match.start()
            if found is not None:
                return found
        return None

    def _finish_pieces(self) -> None:
        window = self.window
        last = max(window.buffer.rfind(b'"ph"', window.start, window.end), window.start)
        if _EMPTY_END.match(window.buffer, window.start, window.end):  # no event at all
            self.closed = True
            self.tail = window.text(window.buffer.index(b"]", window.start) + 1, window.end)
            return
        ends = list(_ARRAY_END.finditer(window.buffer, last, window.end))
        for match in ends:
            try:
                events = self._decode(b"[" + window.buffer[window.start : match.start() + 1] + b"]")
            except DECODE_ERRORS:
                continue
            self.table.add(events)
            self.closed, self.tail = True, window.text(match.end(), window.end)
            return
        for match in ends:
            tail = window.text(match.end(), window.end)
            records = _split(window.text(window.start, match.start() + 1))
            # A file cut behind a nested array ends the same way; then its last record is not whole.
            if _tail_closes(tail, bare=self.opening.bare) and decode_one(records[-1], digits=self.digits):
                self.closed, self.tail = True, tail
                self._salvage(records)
                return
        self._salvage(_split(window.text(window.start, window.end).rstrip(b", \t\r\n")), last_may_be_cut=True)

    # -- the whole

    def result(self) -> Trace:
        self.window.buffer = bytearray()
        launches, columns = self.table.launches(), self.table.work.columns()
        metadata = _metadata(self.opening.head, self.tail)
        dropped = dict(self.table.dropped)
        if self.unreadable:
            dropped["unreadable"] = self.unreadable
        source = self.window.source
        return Trace(
            path=source.path,
            metadata=metadata,
            base_ns=_base_ns(metadata, columns),
            columns=columns,
            launches=launches,
            table=self.table,
            quality=Quality(
                layout=self.layout.name,
                bytes=source.num_bytes,
                truncated=source.torn or not self.closed or not _tail_closes(self.tail, bare=self.opening.bare),
                repaired=self.repaired,
                dropped=sum(dropped.values()),
                dropped_for=dropped,
            ),
        )


def _split(text: bytes) -> list[bytes]:
    return _PIECE.sub(b"}\0", text.strip()).split(b"\0")


def _tail_closes(tail: bytes, *, bare: bool) -> bool:
    """Whether the file goes on to its end after the events. A bare array has nothing behind it."""
    return tail.strip() == b"" if bare else tail.rstrip(b" \t\r\n\0").endswith(b"}")


def _metadata(head: bytes, tail: bytes) -> dict[str, Any]:
    """What stands beside the events at the top level, before and after them."""
    before = head.strip().rstrip(b",")
    after = tail.strip().lstrip(b",").strip()
    texts = [before + b"}" if before.startswith(b"{") else b"", b"{" + after if after.startswith(b'"') else b""]
    found: dict[str, Any] = {}
    for text in filter(None, texts):
        decoded = first_readable(text, msgspec.json.decode)
        if isinstance(decoded, dict):
            found |= decoded
    return found


_YEAR_2001_NS = 10**18


def _base_ns(metadata: dict[str, Any], columns: Columns) -> int | None:
    base = metadata.get("baseTimeNanoseconds")
    if len(columns.start) and int(np.min(columns.start)) > _YEAR_2001_NS:
        return 0  # older traces write the time since 1970 itself
    return base if isinstance(base, int) else None
