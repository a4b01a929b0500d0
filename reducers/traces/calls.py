"""The collectives of one rank's trace: from device kernels with their metadata, or from the host's annotations."""

from __future__ import annotations

from narrows.reducers.traces.accounts import Timeline
from narrows.reducers.traces.events import Args, Loose, whole_number
from narrows.reducers.traces.kinds import ELEMENT_BYTES, HOST_COLLECTIVE, POINT_TO_POINT, operation_of
from narrows.reducers.traces.linking import Links, step_at
from narrows.reducers.traces.reader import Trace
from narrows.reducers.traces.reduced import Collective

HOST = "host"


def device_collectives(trace: Trace, events: Timeline, links: Links) -> list[Collective]:
    """Every communication kernel in order of its start, with what its metadata says."""
    devices = list(trace.table.work.devices)
    base = trace.base_ns or 0
    found = []
    for row, args in trace.table.work.collectives.items():
        place = int(links.place[row])
        kernel = trace.table.work.names[int(events.columns.name[row])]
        found.append(
            _collective(
                args,
                op=operation_of(args.collective or kernel),
                start_ns=int(events.columns.start[row]) + base,
                end_ns=int(events.ends[row]) + base,
                on=devices[int(events.columns.device[row])],
                step=links.steps[place][0] if place >= 0 else None,
            )
        )
    return sorted(found, key=lambda call: (call.start_ns, call.end_ns))


def host_collectives(trace: Trace, links: Links) -> list[Collective]:
    """Collectives that ran on the host (gloo), in order of their start. They name no group and no sequence."""
    base = trace.base_ns or 0
    found = []
    for span, args in trace.table.host_collectives:
        named = HOST_COLLECTIVE.match(span.name)
        assert named, "only spans named so are collected"
        found.append(
            _collective(
                args or Args(),
                op=operation_of(named[2]),
                start_ns=span.start_ns + base,
                end_ns=span.end_ns + base,
                on=HOST,
                step=step_at(span.start_ns, links.steps),
            )
        )
    return sorted(found, key=lambda call: (call.start_ns, call.end_ns))


def _collective(args: Args, *, op: str, start_ns: int, end_ns: int, on: str, step: int | None) -> Collective:
    p2p = op in POINT_TO_POINT
    peer = whole_number(args.target if op == "send" else args.source) if p2p else None
    return Collective(
        op=op,
        start_ns=start_ns,
        end_ns=end_ns,
        on=on,
        group=_text(args.group),
        group_role=_text(args.group_role),
        group_ranks=_text(args.group_ranks),
        group_size=whole_number(args.group_size),
        seq=whole_number(args.seq),
        payload_bytes=_payload_bytes(args),
        dtype=args.dtype,
        step=step,
        p2p=p2p,
        peer=peer,
    )


def _text(value: Loose) -> str | None:
    return None if value is None or value == "" else str(value)


def _payload_bytes(args: Args) -> int | None:
    """The larger of what went in and what came out, in bytes; None when the metadata does not say."""
    size = ELEMENT_BYTES.get((args.dtype or "").lower())
    counts = [count for count in map(whole_number, (args.in_elements, args.out_elements)) if count is not None]
    return max(counts) * size if size and counts else None
