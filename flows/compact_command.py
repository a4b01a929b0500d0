"""The body of `narrows compact`: the lines of finished runs as one columnar file a rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from narrows.reducers.compaction import compact_run

_MB = 1e6


def compact_runs(paths: Sequence[Path], *, pack_lines: bool) -> int:
    """0 when all were compacted.

    Raises ValueError where no run is given, and RunDirectoryError for the first that cannot be compacted.
    """
    if not paths:
        raise ValueError("nothing to compact: give the run directories of finished runs")
    for path in paths:
        done = compact_run(path, pack_lines=pack_lines)
        beside = "lines packed to .jsonl.gz" if pack_lines else "lines kept"
        print(
            f"{path}: {done.num_ranks} ranks, {done.bytes_before / _MB:.1f} MB of lines, "
            f"now {done.bytes_after / _MB:.1f} MB with the columns; {beside}"
        )
    return 0
