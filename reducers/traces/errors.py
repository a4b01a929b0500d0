"""What can be wrong with a trace file as a whole. Damage inside one is repaired or counted, never raised."""

from __future__ import annotations

from narrows.inquiry.errors import NarrowsError


class TraceError(NarrowsError):
    """The file is no profiler trace, or nothing of it can be read. Names the file, what it is, and the next move."""
