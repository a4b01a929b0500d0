"""The body of `narrows reduce`: traces in, a few kilobytes of JSON a rank out, and a table for people."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from narrows.flows.thresholds import thresholds_of
from narrows.inquiry.errors import NarrowsError
from narrows.reducers.traces.errors import TraceError
from narrows.reducers.traces.labels import Thresholds
from narrows.reducers.traces.memory_files import memory_kind, with_memory_files
from narrows.reducers.traces.reduce import reduce_file
from narrows.reducers.traces.reduced import Reduced, encode_reduced

if TYPE_CHECKING:
    from narrows.reducers.traces.ranks import AcrossRanks

# Matching ranks costs time to import, and scipy where hosts are several: functions import it where ranks are several.

_SUFFIX = ".reduced.json"
Outcome = tuple[Path, Reduced | None, str]


def reduce_traces(
    paths: Sequence[Path], out: Path | None, as_json: bool, workers: int, thresholds: Path | None = None
) -> int:
    """0 when every trace was reduced, 1 when one could not be read.

    A folder stands for the traces in it. With ``out``, each goes to OUT/NAME.reduced.json. The JSON of one trace is
    the reduced trace itself; of several, ``traces`` by path, ``across_ranks`` and ``failed``.
    """
    if not paths:
        raise ValueError("nothing to reduce: give profiler traces, or folders of them")
    limits = thresholds_of(thresholds)
    found = list(_traces(paths))
    outcomes = _reduce_all(found, limits, workers)
    failed = {str(path): message for path, reduced, message in outcomes if reduced is None}
    reduced = {path: trace for path, trace, _ in outcomes if trace is not None}
    if failed and len(outcomes) == 1:
        raise TraceError(next(iter(failed.values())))
    across, why_not = _across(list(reduced.values()))
    if across:
        from narrows.reducers.traces.ranks import with_sublabel

        reduced = {path: with_sublabel(trace, across) for path, trace in reduced.items()}
    if out is not None:
        _write(reduced, out)
    if as_json:
        print(_json(reduced, across, failed))
    else:
        for line in _report(reduced, across, why_not):
            print(line)
    for message in failed.values():
        print(f"narrows: {message}", file=sys.stderr)
    return 1 if failed else 0


def _traces(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        names = sorted(entry for entry in path.iterdir() if entry.name.endswith((".json", ".json.gz")))
        traces = [entry for entry in names if not entry.name.endswith(_SUFFIX) and not memory_kind(entry)]
        if not traces:
            raise TraceError(f"{path}: no .json or .json.gz file in this folder")
        yield from traces


def _reduce_all(paths: list[Path], limits: Thresholds, workers: int) -> list[Outcome]:
    if workers < 1:
        raise ValueError(f"--workers {workers}: expected at least 1")
    if workers == 1 or len(paths) == 1:
        return [_reduce(path, limits) for path in paths]
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(max_workers=min(workers, len(paths))) as pool:
        return list(pool.map(_reduce, paths, [limits] * len(paths)))


def _reduce(path: Path, limits: Thresholds) -> Outcome:
    try:
        return path, with_memory_files(reduce_file(path, limits=limits), path), ""
    except NarrowsError as error:
        return path, None, str(error)


def _across(traces: list[Reduced]) -> tuple[AcrossRanks | None, str]:
    if len(traces) < 2:
        return None, ""
    from narrows.reducers.traces.ranks import across_ranks

    try:
        return across_ranks(traces), ""
    except TraceError as error:
        return None, str(error)


def _write(reduced: dict[Path, Reduced], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    taken: set[Path] = set()
    for path, trace in reduced.items():
        stem = path.name.removesuffix(".gz").removesuffix(".json")
        target = out / f"{stem}{_SUFFIX}"
        if target in taken:
            raise TraceError(f"{path}: another trace of this name was given; {target} holds that one's result")
        taken.add(target)
        target.write_bytes(encode_reduced(trace) + b"\n")


def _json(reduced: dict[Path, Reduced], across: AcrossRanks | None, failed: dict[str, str]) -> str:
    if len(reduced) == 1 and not failed:
        return encode_reduced(next(iter(reduced.values()))).decode()
    from narrows.reducers.traces.ranks import encode_all

    return encode_all({str(path): trace for path, trace in reduced.items()}, across, failed).decode()


def _report(reduced: dict[Path, Reduced], across: AcrossRanks | None, why_not: str) -> Iterator[str]:
    yield " rank device    span ms    busy  compute  exposed comm  exposed copy    idle  label"
    for path, trace in reduced.items():
        yield from _rows(path, trace)
    yield from _across_lines(across, why_not)


def _rows(path: Path, trace: Reduced) -> Iterator[str]:
    rank = "?" if trace.rank is None else str(trace.rank)
    for device, entry in trace.devices.items():
        span = entry.span_ns or 1
        shares = [entry.busy_ns, entry.compute_ns, entry.exposed_communication_ns, entry.exposed_copy_ns, entry.idle_ns]
        busy, compute, communication, copy, idle = (f"{100 * part / span:.1f} %" for part in shares)
        yield (
            f"{rank:>5} {device:>6} {entry.span_ns / 1e6:>10.3f} {busy:>7} {compute:>8} {communication:>13} "
            f"{copy:>13} {idle:>7}  {_label_words(trace)}"
        )
    if trace.host:
        host = trace.host
        yield (
            f"{rank:>5} {'host':>6} {host.span_ns / 1e6:>10.3f}  {host.num_collectives} collectives on the host, "
            f"{host.communication_ns / 1e6:.3f} ms"
        )
    elif not trace.devices:
        yield f"{rank:>5}   no work on a device and no collective in this trace"
    yield from (f"{'':>5} {path.name}: {line}" for line in _quality_lines(trace))


def _label_words(trace: Reduced) -> str:
    label = trace.label
    if label is None:
        return ""
    extra = [label.sublabel or "", "inferred" if label.inferred else "", "borderline" if label.borderline else ""]
    words = ", ".join(filter(None, extra))
    return f"{label.label} ({words})" if words else label.label


def _quality_lines(trace: Reduced) -> Iterator[str]:
    quality = trace.quality
    if quality.truncated:
        yield "the file ends before its end; what is whole in it was read"
    if quality.repaired:
        yield f"{quality.repaired} damaged records were repaired"
    if quality.dropped:
        reasons = ", ".join(f"{number} {reason}" for reason, number in sorted(quality.dropped_for.items()))
        yield f"{quality.dropped} records were dropped: {reasons}"
    if quality.unlinked:
        yield f"{quality.unlinked} device events have no launch in the trace; they count, but in no step"
    if quality.clipped_ns:
        yield f"{quality.clipped_ns:,} ns of overlap inside one stream were cut off"


def _across_lines(across: AcrossRanks | None, why_not: str) -> Iterator[str]:
    if why_not:
        yield f"across ranks: {why_not}"
    if across is None:
        return
    if across.collectives:
        often = ", ".join(f"rank {rank}: {number}" for rank, number in sorted(across.last_arrivals.items()))
        yield (
            f"across ranks: {len(across.collectives)} collectives matched by {across.matched_by} "
            f"({across.coverage:.0%}); last to arrive: {often}"
        )
        waits = max(across.wait_ns.values())
        yield (
            f"              rank {across.waits_most} waits most, {waits / 1e6:.3f} ms; a mean rank waits "
            f"{across.skew_ns / 1e6:.3f} ms, and {across.transfer_ns / 1e6:.3f} ms pass after the last arrivals"
        )
    yield from (f"across ranks: {note}" for note in across.notes)
