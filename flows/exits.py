"""What a command's exit code says; docs/case-file.md and `narrows --help` list them."""

from __future__ import annotations

DONE, ERROR, USAGE, INCONCLUSIVE, FOUND, INTERRUPTED = 0, 1, 2, 3, 4, 130
NOBODY_READS = 141
"""128 + SIGPIPE, as a shell says it of a tool whose output nobody reads any more."""
