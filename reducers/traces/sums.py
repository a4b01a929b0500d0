"""What bottleneck labels are decided on, taken from one device's events: a row a step."""

from __future__ import annotations

import numpy as np

from narrows.reducers.traces.accounts import GapSums, Timeline
from narrows.reducers.traces.kinds import Work
from narrows.reducers.traces.labels import SHORT_KERNEL_NS, StepSums
from narrows.reducers.traces.linking import Links
from narrows.reducers.traces.reader import Trace
from narrows.reducers.traces.reduced import Accounts, Gaps, Reduced, Step
from narrows.reducers.traces.times import Ints


def busiest_device(trace: Trace, events: Timeline) -> str | None:
    """The device with most events: the one that this rank drives. None when there is none."""
    counts = {name: len(events.on(number)) for name, number in trace.table.work.devices.items()}
    counts = {name: count for name, count in counts.items() if count}
    return max(counts, key=lambda name: counts[name]) if counts else None


def step_sums(
    trace: Trace, events: Timeline, links: Links, device: str, idle: GapSums, whole: Accounts, steps: list[Step]
) -> StepSums | None:
    """A row for each step in which the device worked; one row for the whole when the trace has no steps.

    ``whole`` are the device's accounts; ``steps`` are those of ``links``, in their order.
    """
    number = trace.table.work.devices[device]
    if steps:
        table = []
        for place, step in enumerate(steps):
            if (entry := step.devices.get(device)) is not None:
                rows = links.rows(place)
                rows = rows[events.columns.device[rows] == number]
                table.append(_row(events, rows, step.host_ns, entry, idle.steps[place]))
    else:
        table = [_row(events, events.on(number), whole.span_ns, whole, idle.total)]
    if not table:
        return None
    return StepSums(**{name: np.array([row[name] for row in table], np.float64) for name in StepSums.__struct_fields__})


def _row(events: Timeline, rows: Ints, window_ns: int, entry: Accounts, idle: Gaps) -> dict[str, int]:
    kernels = rows[events.columns.work[rows] != Work.COPY]
    whole = window_ns or entry.span_ns
    return {
        "step": whole,
        "busy": min(entry.busy_ns, whole),
        "communication": entry.communication_ns,
        "exposed_communication": entry.exposed_communication_ns,
        "exposed_copy": entry.exposed_copy_ns,
        "kernels": len(kernels),
        "short_kernels": int((events.columns.dur[kernels] < SHORT_KERNEL_NS).sum()),
        "gaps": idle.total_ns,
        "launch_gaps": idle.host_ns + idle.launch_ns,
        "input_gaps": idle.input_ns,
    }


def sums_of(trace: Reduced) -> StepSums | None:
    """The same from a reduced trace, for the label of a difference; None without device work.

    A reduced trace keeps gaps and short kernels for the whole only: here each step has an equal part of them.
    """
    if trace.label is None or not trace.devices:
        return None
    device = max(trace.devices, key=lambda name: trace.devices[name].busy_ns)
    parts = [(step.host_ns, step.devices[device]) for step in trace.steps if device in step.devices]
    parts = parts or [(trace.devices[device].span_ns, trace.devices[device])]
    idle, num = trace.gaps[device], len(parts)
    table = {
        "step": [window for window, _ in parts],
        "busy": [min(entry.busy_ns, window) for window, entry in parts],
        "communication": [entry.communication_ns for _, entry in parts],
        "exposed_communication": [entry.exposed_communication_ns for _, entry in parts],
        "exposed_copy": [entry.exposed_copy_ns for _, entry in parts],
        "kernels": [1.0] * num,
        "short_kernels": [trace.label.measurements["short_kernel_share"]] * num,
        "gaps": [idle.total_ns / num] * num,
        "launch_gaps": [(idle.host_ns + idle.launch_ns) / num] * num,
        "input_gaps": [idle.input_ns / num] * num,
    }
    return StepSums(**{name: np.array(values, np.float64) for name, values in table.items()})
