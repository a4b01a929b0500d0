"""What the two sets of a roll-out measured before the upgrade: a record in the workspace, or run directories."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from narrows.inquiry.design import CONTROL
from narrows.inquiry.docket import Docket
from narrows.inquiry.errors import CaseError, DocketError, in_words
from narrows.inquiry.fingerprint import Fields
from narrows.inquiry.rollout import EXPERIMENT, UPGRADED, Rollout
from narrows.inquiry.state import State
from narrows.reducers.evidence import ArmRuns, build_evidence
from narrows.reducers.rundir import read_run

FOLDER = "rollouts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The evidence of the two sets before the upgrade, where it comes from, and the hosts' fingerprints of then."""

    source: str
    evidence: dict[str, Any]
    hosts: Mapping[str, Fields] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return str(self.evidence["digest"])


def find_baseline(rollout: Rollout, given: Sequence[Path], workspace: Path) -> Baseline | None:
    """The baseline that is ``given``, else the newest one of the same sets and the same work in ``workspace``.

    Raises ``CaseError`` for a given one that does not fit, and ``RunDirectoryError`` for runs that cannot be read.
    """
    if rollout.before:
        if given:
            raise CaseError("--before measures a baseline, so it takes none; leave --baseline out")
        return None
    if len(given) == 1 and (given[0] / "docket.jsonl").is_file():
        return _given_record(rollout, given[0])
    return _of_runs(rollout, given) if given else _newest(rollout, workspace)


def _newest(rollout: Rollout, workspace: Path) -> Baseline | None:
    found: list[tuple[int, Path, State]] = []
    for path in (workspace / FOLDER).glob("*/docket.jsonl"):
        try:
            docket = Docket.open(path, repair=False)
        except DocketError:
            continue  # whoever wants it can name it, and is told what is wrong with it
        state = State.of(docket)
        fits = state.opened.get("before") and state.opened.get("sets_digest") == rollout.sets_digest()
        if fits and state.pairs(EXPERIMENT):
            found.append((docket.entries[0].at_ns, path.parent, state))
    if not found:
        return None
    _, folder, state = max(found, key=lambda one: one[0])
    return _of_record(folder, state, f"{FOLDER}/{folder.name}")


def _given_record(rollout: Rollout, folder: Path) -> Baseline:
    state = State.of(Docket.open(folder / "docket.jsonl", repair=False))
    if state.opened.get("sets_digest") != rollout.sets_digest():
        raise CaseError(
            f"--baseline {folder}: is of other hosts, or of other work; a baseline has the same two sets, in the same "
            "order, with the same program, settings and steps"
        )
    if not state.pairs(EXPERIMENT):
        raise CaseError(f"--baseline {folder}: holds no pair; measure it again with --before")
    return _of_record(folder, state, str(folder))


def _of_record(folder: Path, state: State, source: str) -> Baseline:
    path = folder / "evidence" / f"{EXPERIMENT}.json"
    try:
        evidence = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CaseError(
            f"{path}: the baseline cannot be read ({in_words(error)}); restore it, or measure it again"
        ) from None
    hosts = state.findings.get("hosts", {}).get("fields") or state.opened.get("hosts") or {}
    return Baseline(source=source, evidence=evidence, hosts=hosts)


def _of_runs(rollout: Rollout, paths: Sequence[Path]) -> Baseline:
    """Run directories of either set, told apart by the hosts that they ran on."""
    sets = {CONTROL: set(rollout.control), UPGRADED: set(rollout.upgraded)}
    arms: dict[str, list[Path]] = {CONTROL: [], UPGRADED: []}
    for path in paths:
        hosts = {records.host for records in read_run(path).ranks.values()}
        arm = next((name for name, wanted in sets.items() if hosts == wanted), None)
        if arm is None:
            raise CaseError(
                f"--baseline {path}: ran on {', '.join(sorted(hosts))}; expected a run on all upgraded hosts "
                f"({', '.join(rollout.upgraded)}) or on all control hosts ({', '.join(rollout.control)})"
            )
        arms[arm].append(path)
    empty = [name for name, own in arms.items() if not own]
    if empty:
        raise CaseError(f"--baseline: no run of the {' and the '.join(empty)} hosts; give runs of both sets")
    runs = tuple(ArmRuns(name=name, paths=tuple(own)) for name, own in arms.items())
    evidence = build_evidence(
        "baseline", (runs[0], runs[1]), statistic=rollout.judging.statistic, mode="given",
        washout=rollout.judging.washout,
    )  # fmt: skip
    if evidence["device"] not in (None, rollout.device):
        raise CaseError(
            f"--baseline: was made on device {evidence['device']}, not {rollout.device}; compare like with like"
        )
    if evidence["pairs"] < 2:
        raise CaseError(
            f"--baseline: {evidence['pairs']} pairs of runs say nothing of their own error; give at least 2 runs of "
            "each set that took turns, or measure one with --before"
        )
    return Baseline(source=f"{len(paths)} given runs", evidence=evidence)
