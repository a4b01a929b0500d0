"""One reusable buffer over a trace's bytes, and where in it the events begin."""

from __future__ import annotations

import re

import msgspec
from msgspec import Struct

from narrows.reducers.traces.errors import TraceError
from narrows.reducers.traces.source import Source

_HEAD_LIMIT = 64 << 20  # metadata before the events; the largest seen is well under 1 MB
_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST = re.compile(rb"\s*\{")
_BARE_ARRAY = re.compile(rb"\s*\[(?=\s*(?:\{|\]|$))")


class Window:
    """The unread bytes of a source are ``buffer[start:end]``; ``ended`` once the source has no more."""

    def __init__(self, source: Source, chunk_bytes: int) -> None:
        self.source = source
        self.buffer = bytearray(chunk_bytes)
        self.start = 0
        self.end = 0
        self.ended = False

    def fill(self) -> None:
        """More bytes behind the unread ones, which move to the front. The buffer grows only for a giant record."""
        unread = self.end - self.start
        if self.start:
            self.buffer[:unread] = self.buffer[self.start : self.end]
            self.start, self.end = 0, unread
        if len(self.buffer) - unread < len(self.buffer) // 2:
            self.buffer.extend(bytes(len(self.buffer)))
        while self.end < len(self.buffer) and not self.ended:
            with memoryview(self.buffer) as whole, whole[self.end :] as free:
                count = self.source.read_into(free)
            self.end += count
            self.ended = count == 0

    def text(self, start: int, end: int) -> bytes:
        return bytes(memoryview(self.buffer)[start:end])


class Opening(Struct, frozen=True, kw_only=True):
    """What stands before the first event."""

    head: bytes  # the metadata before the events, without their key
    bare: bool  # the file is the array of events itself


def find_events(window: Window) -> Opening:
    """What stands before the events; afterwards the window starts right behind their opening bracket.

    Raises TraceError for a file that has none, and says what it is instead.
    """
    window.fill()
    path = window.source.path
    if window.end == 0:
        raise TraceError(f"{path}: the file is empty{_torn(window)}; write the trace again")
    bare = _BARE_ARRAY.match(window.buffer, 0, window.end)
    if bare:
        window.start = bare.end()
        _require_events(window)
        return Opening(head=b"", bare=True)
    if not _FIRST.match(window.buffer, 0, window.end):
        raise TraceError(f"{path}: {_what_it_is(window.text(0, min(window.end, 4096)))}")
    searched = 0
    while not (found := _KEY.search(window.buffer, searched, window.end)):
        if window.ended or window.end > _HEAD_LIMIT:
            raise TraceError(f"{path}: {_what_it_is(window.text(0, window.end))}{_torn(window)}")
        searched = max(0, window.end - 64)
        window.fill()
    window.start = found.end()
    return Opening(head=window.text(0, found.start()), bare=False)


def _torn(window: Window) -> str:
    return " (the compressed stream is damaged at its start)" if window.source.torn else ""


def _require_events(window: Window) -> None:
    """A bare array of objects is a trace when they look like events."""
    sample = window.text(window.start, min(window.end, window.start + 65536))
    if sample.strip()[:1] not in (b"]", b"") and b'"ph"' not in sample:
        raise TraceError(f'{window.source.path}: a JSON array, but its objects have no "ph" key: no profiler trace')


def _what_it_is(text: bytes) -> str:
    """The sentence for a file that is no profiler trace: what it is, and the next move."""
    stripped = text.lstrip()
    if stripped.startswith((b"[[", b"[ [")):
        return "a memory timeline (lists of time, action, size), no profiler trace; give the trace that it belongs to"
    if text[257:262] == b"ustar" or re.match(rb"[ -~]{1,100}\0+[0-7]{6,7} ?\0", text):
        return "a tar archive; unpack it and give the traces in it"
    if b'"nodes"' in text and b'"schema"' in text:
        return "a PyTorch execution trace (operators without times on the device); give the profiler's trace"
    if b'"device_traces"' in text or b'"segments"' in text:
        return "a CUDA memory snapshot, no profiler trace"
    if stripped.startswith(b"{"):
        return 'JSON without a "traceEvents" array, no profiler trace'
    if stripped[:2] in (b"PK", b"\x28\xb5", b"\x80\x02", b"\x80\x04"):
        return "a compressed or pickled file of another kind; give .json or .json.gz"
    return "not JSON; expected a profiler trace as .json or .json.gz"


class Layout(Struct, frozen=True, kw_only=True):
    """How the writer broke lines. With ``opens`` and ``closes``, records are found by line; else by trying."""

    name: str
    opens: bytes = b""
    closes: bytes = b""

    @property
    def by_lines(self) -> bool:
        return bool(self.opens)


def sniff(window: Window) -> Layout:
    """The layout, learnt from the first event: one of kineto, kineto-lines, indented, compact, minified."""
    found = _FIRST.match(window.buffer, window.start, window.end)
    if not found:
        return Layout(name="empty")
    gap = window.text(window.start, found.end() - 1)
    newline = gap.rfind(b"\n")
    if newline >= 0:
        indent = gap[newline:].replace(b"\r", b"")
        lines = _by_lines(window, indent, found.end() - 1)
        if lines:
            return lines
    sample = window.text(found.start(), min(window.end, found.start() + 4096))
    return Layout(name="compact" if re.search(rb'"\w+": ', sample) else "minified")


def _by_lines(window: Window, indent: bytes, at: int) -> Layout | None:
    """The layout when the first event ends on a line of its own, at the indentation where it began."""
    opens, closes = indent + b"{", indent + b"}"
    end = window.buffer.find(closes, at, window.end)
    if end < 0:
        return None
    record = window.text(at, end + len(closes))
    if b"\n" not in record.rstrip(b"}").strip():
        return None
    name = _line_layout_name(record, len(indent) - 1)
    try:
        msgspec.json.decode(record)
    except (msgspec.DecodeError, UnicodeDecodeError):
        if b'"ph"' not in record:
            return None
    return Layout(name=name, opens=opens, closes=closes)


def _line_layout_name(record: bytes, indent: int) -> str:
    inner = re.match(rb"\{\s*\n([ \t]*)([^\n]*)", record)
    if inner is None or inner[2].count(b'": ') > 1:
        return "kineto"
    step = len(inner[1]) - indent
    return "indented" if indent == 2 * step or step != 2 else "kineto-lines"
