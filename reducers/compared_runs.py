"""The comparison of run directories: their evidence, and what the pictures need of the first run of each arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from narrows.inquiry.errors import RunDirectoryError
from narrows.reducers.compared import compared
from narrows.reducers.compared_parts import ArmExtras, Comparison, Sources
from narrows.reducers.compared_scan import Arrivals, Places, arrivals_of, merged
from narrows.reducers.evidence import ArmRuns, build_evidence
from narrows.reducers.ledger import build_ledger
from narrows.reducers.rundir import read_run
from narrows.reducers.snapshots import arrivals, group_services, slowest_position, typical_step
from narrows.reducers.topology import Topology, with_topology
from narrows.reducers.traces.labels import BT_1, Thresholds

MANIFEST = "manifest.json"


def run_directories(path: Path) -> tuple[Path, ...]:
    """``path`` itself where it is a run directory, else the run directories in it; none where it holds none."""
    if (path / MANIFEST).is_file():
        return (path,)
    if not path.is_dir():
        return ()
    return tuple(sorted(one for one in path.iterdir() if (one / MANIFEST).is_file()))


def compare_runs(
    healthy: Sequence[Path],
    regressed: Sequence[Path],
    *,
    statistic: str = "mean",
    names: tuple[str, str] = ("healthy", "regressed"),
    topology: Topology | None = None,
    thresholds: Thresholds = BT_1,
) -> Comparison:
    """The comparison of two sets of run directories, paired by their pair numbers, else by the order of their start.

    ``topology`` tells where hosts and ranks sit, instead of what was recorded; ``thresholds`` decide the labels.

    Raises ``RunDirectoryError`` for a run that cannot be read or has no steady step, or one that is in both arms;
    ``ValueError`` for arms of different rank counts.
    """
    shared = {path.resolve() for path in healthy} & {path.resolve() for path in regressed}
    if shared:
        raise RunDirectoryError(f"{min(shared)} is in both arms; give two different runs")
    arms = (ArmRuns(name="healthy", paths=tuple(healthy)), ArmRuns(name="regressed", paths=tuple(regressed)))
    evidence = build_evidence("compare", arms, statistic=statistic, mode="given", first_pair=0, replay=True)
    positions = _slowest(evidence)
    last = read_run(regressed[0])
    paths = {arm.name: arm.paths for arm in arms}
    places = Places(
        groups=last.groups, manifest=with_topology(last.manifest, topology), arrivals=lambda arm: _arrivals(paths[arm])
    )
    extras = {arm.name: _extras(arm.paths[0], positions) for arm in arms}
    return compared(
        evidence, Sources(source="run directories", names=names, places=places, thresholds=thresholds), extras
    )


def _arrivals(paths: Sequence[Path]) -> Arrivals:
    """Read again, and only where the scan needs them: most losses are not in the collectives."""
    runs = [read_run(path) for path in paths]
    return merged([arrivals_of(build_ledger(run), str(run.launch or run.path.parent.name)) for run in runs])


def _slowest(evidence: Mapping[str, Any]) -> int | None:
    """The position whose own time grew most, to be looked at in both arms; None where own times are not known."""
    changes = evidence["difference"]["local_ms"]
    if not changes or not changes[0]:
        return None
    growth = [sum(row[at] for row in changes) for at in range(len(changes[0]))]
    return max(range(len(growth)), key=lambda at: abs(growth[at]))


def _extras(path: Path, position: int | None) -> ArmExtras:
    run = read_run(path)
    ledger = build_ledger(run)
    at = position if position is not None and position < len(ledger.ranks) else slowest_position(ledger)
    return ArmExtras(typical=typical_step(run, ledger, at), arrivals=arrivals(ledger), services=group_services(ledger))
