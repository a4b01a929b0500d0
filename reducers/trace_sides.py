"""One side of a comparison of traces: each rank's mean step by account, in ms, and what the ranks say together.

Shape legend: R ranks, in order of rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, median

from narrows.reducers.snapshots import MOST_COLLECTIVES, ArrivalTable, GroupService, TypicalStep
from narrows.reducers.traces.errors import TraceError
from narrows.reducers.traces.ranks import AcrossRanks, across_ranks, communication_parts
from narrows.reducers.traces.reduced import Accounts, Gaps, Label, Reduced

NS_PER_MS = 1e6
_KERNELS_SHOWN = 4
_NAME_SHOWN = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStep:
    """A rank's mean step: ``accounts_ms`` add up to ``step_ms``; residual is negative where the device's work of a
    step is longer than the host's window."""

    rank: int
    host: str
    step_ms: float
    steps_ms: tuple[float, ...]
    accounts_ms: Mapping[str, float]
    hidden_ms: float
    trace: Reduced

    @property
    def local_ms(self) -> float:
        """All of the step but exposed communication."""
        return self.step_ms - sum(self.accounts_ms[name] for name in ("transfer", "skew", "pipeline"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The traces of one arm."""

    steps: tuple[RankStep, ...]
    across: AcrossRanks | None
    limits: tuple[str, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(one.rank for one in self.steps)

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(one.host for one in self.steps)

    @property
    def local_ms(self) -> tuple[float, ...]:
        return tuple(one.local_ms for one in self.steps)

    @property
    def mean_step_ms(self) -> float:
        return fmean(one.step_ms for one in self.steps)

    @property
    def hidden_ms(self) -> float:
        return fmean(one.hidden_ms for one in self.steps)

    @property
    def coverage(self) -> float | None:
        return None if self.across is None else self.across.coverage

    @property
    def steps_ms(self) -> tuple[float, ...]:
        """Means over ranks of the steps that all ranks have, in order."""
        common = min(len(one.steps_ms) for one in self.steps)
        return tuple(fmean(one.steps_ms[at] for one in self.steps) for at in range(common))

    @property
    def losses(self) -> tuple[str, ...]:
        """What was damaged in the files."""
        found = []
        for one in self.steps:
            damage = one.trace.quality
            if damage.truncated or damage.dropped or damage.repaired:
                torn = "ends early, " if damage.truncated else ""
                found.append(f"trace of rank {one.rank}: {torn}{damage.repaired} repaired, {damage.dropped} dropped")
        return tuple(found)

    def view(self, name: str) -> Mapping[str, float]:
        """The accounts of one view: means over ranks, the rank with most time of its own, or the least waiting."""
        if name == "critical_path":
            return max(self.steps, key=lambda one: one.local_ms).accounts_ms
        if name == "least_waiting_rank":
            return min(self.steps, key=lambda one: (one.accounts_ms["skew"], one.accounts_ms["transfer"])).accounts_ms
        return {key: fmean(one.accounts_ms[key] for one in self.steps) for key in self.steps[0].accounts_ms}

    def label_at(self, at: int) -> Label | None:
        return self.steps[at].trace.label

    def typical(self, at: int) -> TypicalStep:
        """The mean step of the rank at position ``at``, for its rings; a reduced trace holds no lanes."""
        one = self.steps[at]
        kept = {name: ms for name, ms in one.accounts_ms.items() if ms > 0}
        parts = _kernels(one.trace, kept.get("compute", 0.0))
        return TypicalStep(rank=one.rank, host=one.host, step=0, step_ms=one.step_ms, own=(), communication=(),
                           accounts_ms=kept, parts_ms=parts)  # fmt: skip

    def arrivals(self) -> ArrivalTable | None:
        """How late each rank was at each collective of the whole trace."""
        calls = self.across.collectives[:MOST_COLLECTIVES] if self.across is not None else []
        if not calls or any(set(call.wait_ns) != set(self.ranks) for call in calls):
            return None
        assert self.across is not None
        rows = tuple(tuple((call.skew_ns - call.wait_ns[rank]) / NS_PER_MS for call in calls) for rank in self.ranks)
        return ArrivalTable(ranks=self.ranks, lateness_ms=rows, more=len(self.across.collectives) - len(calls))

    def services(self) -> dict[str, GroupService]:
        """Each group's median time after the last arrival."""
        host_of = dict(zip(self.ranks, self.hosts, strict=True))
        by_group: dict[str, list[int]] = {}
        crosses: dict[str, bool] = {}
        for call in self.across.collectives if self.across is not None and self.across.conclusive else []:
            name = call.group or "collectives"
            by_group.setdefault(name, []).append(call.transfer_ns)
            crosses[name] = len({host_of[rank] for rank in call.wait_ns}) > 1
        return {
            name: GroupService(group=name, crosses_hosts=crosses[name], service_ms=median(times) / NS_PER_MS)
            for name, times in by_group.items()
        }


def side_of(traces: list[Reduced], name: str) -> Side:
    """One side's traces. A single trace that does not say its rank is taken for rank 0.

    Raises ``ValueError`` for no trace at all, or one without any time in it; ``TraceError`` for two of one rank.
    """
    if not traces:
        raise ValueError(f"{name}: no trace was given")
    limits = []
    across: AcrossRanks | None = None
    if len(traces) > 1:
        across = across_ranks(traces)
        limits += across.notes
    split = across is not None and across.conclusive
    if not split:
        limits.append("exposed communication is all called transfer: who came last is not known")
    if not all(trace.steps for trace in traces):
        limits.append("a trace without step marks: its whole span is taken for one step")
    ordered = sorted(traces, key=lambda trace: trace.rank or 0)
    known = across if split else None
    steps = tuple(_rank_step(trace, known, name) for trace in ordered)
    return Side(steps=steps, across=across, limits=tuple(limits))


def _rank_step(trace: Reduced, across: AcrossRanks | None, name: str) -> RankStep:
    device = max(trace.devices, key=lambda one: trace.devices[one].busy_ns) if trace.devices else None
    if device is None and trace.host is None:
        raise TraceError(f"{name}: the trace of rank {trace.rank} holds no work of a device and no collective")
    windows = [step.host_ns for step in trace.steps]
    if not windows:
        windows = [trace.devices[device].span_ns if device is not None else _host_span(trace)]
    count, step_ms = len(windows), fmean(windows) / NS_PER_MS
    sums = _sums(trace, device, count)
    communication = sums["communication"]
    exposed = sums["exposed_communication"]
    waits = _waiting(trace, across, communication * NS_PER_MS * count)
    known = {"compute": sums["compute"], "transfer": exposed * (1 - sum(waits.values())), "copy": sums["exposed_copy"]}
    known |= {account: exposed * share for account, share in waits.items()}
    known |= _idle(step_ms - sum(known.values()), trace.gaps.get(device) if device is not None else None)
    return RankStep(
        rank=trace.rank or 0,
        host=trace.host_name or "",
        step_ms=step_ms,
        steps_ms=tuple(one / NS_PER_MS for one in windows),
        accounts_ms=known,
        hidden_ms=max(0.0, communication - exposed),
        trace=trace,
    )


def _waiting(trace: Reduced, across: AcrossRanks | None, communication_ns: float) -> dict[str, float]:
    """The shares of a rank's communication in which it waited: for the last to arrive, and for its neighbour."""
    parts = communication_parts(across, trace.rank or 0) if across is not None else {"skew": 0, "pipeline": 0}
    waits = {account: parts[account] for account in ("skew", "pipeline")}
    # Calls that lie beside each other may wait at once: together no longer than the communication.
    whole = max(communication_ns, float(sum(waits.values())))
    return {account: ns / whole if whole else 0.0 for account, ns in waits.items()}


def _host_span(trace: Reduced) -> int:
    assert trace.host is not None, "checked by the caller"
    return trace.host.span_ns


def _sums(trace: Reduced, device: str | None, count: int) -> dict[str, float]:
    """Means over steps of the device's accounts, in ms; of a rank without a device, what its host recorded."""
    names = ("compute", "communication", "exposed_communication", "exposed_copy")
    if device is None:
        assert trace.host is not None, "checked by the caller"
        blocked = trace.host.communication_ns / NS_PER_MS / count
        return dict.fromkeys(names, 0.0) | {"communication": blocked, "exposed_communication": blocked}
    entries = [step.devices[device] for step in trace.steps if device in step.devices]
    if not trace.steps:
        entries = [trace.devices[device]]
    return {name: sum(_field(entry, name) for entry in entries) / NS_PER_MS / count for name in names}


def _field(entry: Accounts, name: str) -> int:
    return int(getattr(entry, f"{name}_ns"))


def _idle(idle_ms: float, gaps: Gaps | None) -> dict[str, float]:
    """Idle time by the causes of the gaps between the device's work; what they do not explain is residual."""
    if gaps is None or idle_ms <= 0 or gaps.total_ns <= 0:
        return {"input": 0.0, "host": 0.0, "residual": idle_ms}
    scale = idle_ms / gaps.total_ns
    found = {"input": scale * gaps.input_ns, "host": scale * (gaps.host_ns + gaps.launch_ns)}
    return found | {"residual": idle_ms - sum(found.values())}


def _kernels(trace: Reduced, compute_ms: float) -> dict[str, float]:
    """Compute by its largest kernels, scaled to the step; the rest together."""
    kernels = [one for one in trace.top_kernels if one.work == "compute"]
    whole = sum(entry.compute_ns for entry in trace.devices.values())
    if not kernels or not whole:
        return {}
    found: dict[str, float] = {}
    for one in kernels[:_KERNELS_SHOWN]:
        short = one.name if len(one.name) <= _NAME_SHOWN else one.name[: _NAME_SHOWN - 2] + ".."
        found[short] = found.get(short, 0.0) + compute_ms * min(1.0, one.total_ns / whole)
    rest = compute_ms - sum(found.values())
    return found | ({"other kernels": rest} if rest > 0 else {})
