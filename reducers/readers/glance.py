"""A reading in a few plain lines: what is in the file, and what in it is not as it should be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from narrows.reducers.readers.dcgm import Diag, Outcome
from narrows.reducers.readers.flight_reading import FlightReading
from narrows.reducers.readers.flight_recorder import Dump
from narrows.reducers.readers.logs import TrainingLog
from narrows.reducers.readers.nccl_pairs import PairReading
from narrows.reducers.readers.nccl_tests import NcclTests, Test
from narrows.reducers.readers.nccl_topology import NcclTopology
from narrows.reducers.readers.network import PortList
from narrows.reducers.readers.nsys import NsysReport
from narrows.reducers.readers.nvidia_smi import GpuFacts, SmiQuery
from narrows.reducers.readers.nvidia_topo import TopoMatrix
from narrows.reducers.readers.pipeline_reading import PipelineReading
from narrows.reducers.readers.reading import Reading
from narrows.reducers.readers.slurm import SlurmOutput
from narrows.reducers.readers.step_records import StepRecords

_SHOWN = 8
_UNTESTED = (Outcome.SKIP, Outcome.NOT_RUN)
# Reasons that are how the GPU is meant to run, not why it is slow.
_HARMLESS = frozenset(("idle", "applications clocks setting", "display clock setting", "display clocks setting"))


def glance(reading: Reading) -> list[str]:
    """At most some twenty lines."""
    return list(_GLANCES[type(reading.value)](reading.value))


def _some(items: Iterable[str]) -> str:
    """The first few, and how many more."""
    all_ = list(items)
    more = f" and {len(all_) - _SHOWN} more" if len(all_) > _SHOWN else ""
    return ", ".join(all_[:_SHOWN]) + more


def _nccl(value: NcclTests) -> Iterator[str]:
    if not value.tests:
        yield f"the launch failed, there is no result: {value.launch_failures[0].text}"
        return
    for test in value.tests:
        yield _test(test)
        yield from (f"  failed at line {one.line}: {one.text}" for one in test.failures[:1])
    yield from (f"failed at line {one.line}: {one.text}" for one in value.launch_failures[:1])


def _test(test: Test) -> str:
    best = max((row.busbw_gb_s for row in test.rows), default=None)
    parts = [
        f"{test.collective or 'a collective'}: {test.ending.value}",
        f"{len(test.devices)} ranks on {len(test.hosts)} hosts",
        f"{len(test.rows)} sizes",
    ]
    if best is not None:
        parts.append(f"bus bandwidth at most {best:.2f} GB/s")
    if test.avg_busbw_gb_s is not None:
        parts.append(f"average {test.avg_busbw_gb_s:g} GB/s")
    if test.out_of_bounds:
        parts.append(f"WRONG RESULTS: {test.out_of_bounds} values out of bounds")
    return ", ".join(parts)


def pairs_glance(value: PairReading) -> list[str]:
    """What a set of pairwise tests says."""
    lines = [f"{value.pairs} pairs of {len(value.hosts)} hosts"]
    lines += [f"{name}: median {busbw:.2f} GB/s" for name, busbw in value.median_busbw_gb_s.items()]
    lines += [f"{'-'.join(one.hosts)} {one.trouble.value}: {one.why[0]}" for one in value.bad_pairs]
    lines += [
        f"{one.host} is common to {one.bad} {one.trouble.value} pairs of its {one.pairs} (with {_some(one.with_hosts)})"
        for one in value.common
    ]
    lines += [f"{'-'.join(pair)}: no node in common with another" for pair in value.unexplained]
    if value.unplaced:
        lines.append(f"launch failed, hosts unknown: {_some(value.unplaced)}")
    return lines if value.bad_pairs or value.unplaced else [*lines, "no pair failed or is slow"]


def _dump(value: Dump) -> Iterator[str]:
    rank = f"rank {value.rank}" if value.rank is not None else "rank not known"
    yield f"{rank}, format {value.version}, {len(value.groups)} groups, {len(value.entries)} entries"
    pending = sorted(value.pending, key=lambda one: one.created_ns or 0)
    if pending:
        first = pending[0]
        yield f"{len(pending)} pending; the first is {first.op} number {first.sequence} of group {first.group}"
    else:
        yield "nothing pending"


def dumps_glance(value: FlightReading) -> list[str]:
    """What the dumps of several ranks say."""
    lines = [f"{len(value.ranks)} ranks; pending: {_some(f'{r}: {n}' for r, n in value.pending.items())}"]
    lines += [
        f"group {one.group} {one.description} {one.op} number {one.sequence}: missing {list(one.missing)}, "
        f"behind {list(one.behind)}, waiting {list(one.waiting)}"
        for one in value.groups
    ]
    if value.named:
        lines.append(f"look first at: {_some(f'rank {rank}' for rank in value.named)}")
    if value.no_dump:
        lines.append(f"no dump of: {_some(f'rank {rank}' for rank in value.no_dump)}; it may be one of them")
    if value.unplaced:
        lines.append(f"rank not known: {_some(value.unplaced)}")
    return lines if value.named or value.no_dump or value.groups else [*lines, "no rank is missing or behind"]


def _log(value: TrainingLog) -> Iterator[str]:
    what = f"format {value.format}" if value.format else "no known format"
    yield f"{what}: {value.lines_matched} of {value.lines} lines are steps, {value.distinct_steps} distinct steps"
    if value.steps and value.median_step_ms is not None:
        first, last = min(one.step for one in value.steps), max(one.step for one in value.steps)
        timed = sum(1 for one in value.steps if one.step_ms is not None)
        without = ", the first report left out" if timed >= 3 else ""
        yield f"steps {first} to {last}, median {value.median_step_ms:,.1f} ms ({value.timing}){without}"
    rates = sorted(one.tokens_per_s for one in value.steps if one.tokens_per_s is not None)
    if rates:
        yield f"median {rates[len(rates) // 2]:,.0f} tokens/s"
    if value.failures:
        first_named = next((one for one in value.failures if "Traceback" not in one.text), value.failures[0])
        yield f"{value.failure_lines} lines tell of errors; the first, line {first_named.line}: {first_named.text}"


def _records(value: StepRecords) -> Iterator[str]:
    who = "a rank without a number" if value.rank is None else f"rank {value.rank}"
    of = f" of {value.world_size}" if value.world_size is not None else ""
    on = f" on {value.host}" if value.host is not None else ""
    yield f"{who}{of}{on}: {len(value.steps)} steps, {value.steps[0].step} to {value.steps[-1].step}"
    yield f"median {value.median_step_ms:,.1f} ms; every record has {', '.join(('step_ms', *value.parts))}"


def _diag(value: Diag) -> Iterator[str]:
    counts = Counter(one.outcome.value for one in value.results)
    yield f"DCGM {value.version or '?'}, driver {value.driver or '?'}: {_some(f'{n} {k}' for k, n in counts.items())}"
    for one in value.failed[:_SHOWN]:
        kind = " (configuration only)" if one.configuration_only else ""
        yield f"{one.test} {one.entity} failed{kind}: {one.warnings[0].text if one.warnings else 'no reason given'}"
    skipped = [f"{one.test} {one.entity}".strip() for one in value.results if one.outcome in _UNTESTED]
    if skipped:
        yield f"skipped or not run, which is no pass: {_some(skipped)}"
    if value.error:
        yield f"the run stopped: {value.error}"


def _smi(value: SmiQuery) -> Iterator[str]:
    names = Counter(one.name or "?" for one in value.gpus)
    yield f"{_some(f'{n} x {k}' for k, n in names.items())}, driver {value.driver or '?'}, CUDA {value.cuda or '?'}"
    for gpu in value.gpus:
        notes = list(_gpu(gpu))
        if notes:
            yield f"{gpu.bus}: {', '.join(notes)}"


def _gpu(gpu: GpuFacts) -> Iterator[str]:
    yield from (reason for reason in gpu.slowdowns if reason not in _HARMLESS)
    if gpu.pcie_width and gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max:
        yield f"PCIe x{gpu.pcie_width:g} of x{gpu.pcie_width_max:g}"
    if gpu.power_limit_w and gpu.power_limit_max_w and gpu.power_limit_w < gpu.power_limit_max_w:
        yield f"power limit {gpu.power_limit_w:g} W of {gpu.power_limit_max_w:g} W"
    if gpu.ecc_uncorrectable:
        yield f"{gpu.ecc_uncorrectable:g} uncorrectable ECC errors"
    if gpu.remapped_uncorrectable:
        yield f"{gpu.remapped_uncorrectable:g} rows remapped for uncorrectable errors"
    if gpu.remap_pending == "Yes":
        yield "a row remap is pending"


def _topo(value: TopoMatrix) -> Iterator[str]:
    counts = Counter(link for row in value.links.values() for link in row.values())
    yield f"{len(value.devices)} devices; links counted from both ends: {_some(f'{n} {k}' for k, n in counts.items())}"


def _ports(value: PortList) -> Iterator[str]:
    yield f"{len(value.ports)} ports, {len(value.ports) - len(value.down)} up"
    if value.down:
        yield f"down: {_some(value.down)}"
    if value.slower:
        yield f"slower than most of their kind: {_some(value.slower)}"


def _topology(value: NcclTopology) -> Iterator[str]:
    groups = f" in {len(value.groups)} groups" if value.groups else ""
    yield f"{value.cpus} NUMA nodes, {len(value.gpus)} GPUs, {len(value.nics)} NICs{groups}"


def _slurm(value: SlurmOutput) -> Iterator[str]:
    for one in value.records[:_SHOWN]:
        state = one.facts.get("JobState") or one.facts.get("State") or "?"
        yield f"{one.kind} {one.name}: {state}, {len(one.hosts)} hosts, {len(one.facts)} facts"
    if value.rows:
        states = Counter(row.facts.get("State", "?").split()[0] for row in value.rows)
        yield f"{len(value.rows)} jobs and steps: {_some(f'{n} {k}' for k, n in states.items())}"
    if value.switches:
        hosts = sum(len(one.hosts) for one in value.switches)
        yield f"{len(value.switches)} switches or blocks, {hosts} hosts"


def _nsys(value: NsysReport) -> Iterator[str]:
    yield f"{value.product or 'nsys export'}, {value.nvtx_ranges} NVTX ranges, {len(value.nccl)} NCCL kernels"
    for device, one in value.devices.items():
        yield (
            f"device {device}: {one.span_ns / 1e6:.1f} ms, busy {one.busy_ns / 1e6:.1f}, "
            f"compute {one.compute_ns / 1e6:.1f}, "
            f"communication {one.communication_ns / 1e6:.1f} ({one.exposed_communication_ns / 1e6:.1f} exposed), "
            f"copy {one.copy_ns / 1e6:.1f}"
        )
    for kernel in value.kernels[:3]:
        yield f"  {kernel.name[:60]} on {kernel.device}: {kernel.count} times, {kernel.total_ns / 1e6:.1f} ms"
    if value.missing:
        yield f"not in the export: {_some(value.missing)}"


def _pipeline(value: PipelineReading) -> Iterator[str]:
    found = value.straggling
    yield f"{value.operations} operations, {found.steps} steps, {value.workers} workers in {value.stages} stages"
    yield (
        f"step {found.measured_s * 1e3:.1f} ms, replayed {found.replayed_s * 1e3:.1f} ms, "
        f"without stragglers {found.ideal_s * 1e3:.1f} ms: {found.slowdown:.3f} times as long as need be"
    )
    if not found.trusted:
        yield "the replay does not reproduce the measured steps within 3 %, so no cause is named"
        return
    yield f"what carries more than half of it: {value.culprit or 'nothing alone'}"
    tables: tuple[tuple[str, dict[Any, float]], ...] = (
        ("worker", found.of_worker), ("stage", found.of_stage), ("operation", found.of_operation),
    )  # fmt: skip
    for name, table in tables:
        ordered = sorted(table.items(), key=lambda item: -item[1])[:4]
        yield f"slowdown by {name} alone: " + "; ".join(f"{key}: {one:.3f}" for key, one in ordered)
    for name, one in (("worst workers", found.worker_shares), ("last stage", found.stage_shares)):
        if one is not None:
            yield f"share of the loss, {name}: {one.removal:.2f} when made ideal, {one.addition:.2f} when alone"


_GLANCES: dict[type[Any], Callable[[Any], Iterator[str]]] = {
    NcclTests: _nccl,
    Dump: _dump,
    TrainingLog: _log,
    Diag: _diag,
    SmiQuery: _smi,
    TopoMatrix: _topo,
    PortList: _ports,
    NcclTopology: _topology,
    SlurmOutput: _slurm,
    StepRecords: _records,
    NsysReport: _nsys,
    PipelineReading: _pipeline,
}
