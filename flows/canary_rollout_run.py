"""One canary roll-out from its docket to its end: opened, carried out step by step, concluded."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from narrows.flows import engine
from narrows.flows.canary_rollout_baseline import FOLDER, Baseline
from narrows.flows.canary_rollout_judge import BASELINE, judge_rollout
from narrows.flows.fingerprint import kept, take_fingerprint
from narrows.flows.revalidating import dated_folder
from narrows.flows.session import Session
from narrows.inquiry.codec import plain
from narrows.inquiry.docket import Docket, Kind
from narrows.inquiry.errors import CaseError, LaunchError
from narrows.inquiry.fingerprint import Fields, host_fields
from narrows.inquiry.hypotheses import ANALYSIS_VERSION
from narrows.inquiry.rollout import EXPERIMENT, Admission, Rollout, next_step, outcome
from narrows.inquiry.state import State
from narrows.inquiry.steps import Ask, Judge, Launch, Register
from narrows.reducers.rundir import read_run


def known_hosts(rollout: Rollout, folder: Path) -> dict[str, Fields]:
    """The kept fingerprint of each host. The local launcher plays all hosts on this machine, so it stands for others.

    A host of which nothing is kept is left out; what its run records of it is added later.
    """
    found: dict[str, Fields] = {}
    for host in (*rollout.control, *rollout.upgraded):
        fields = kept(folder, host)
        if fields is not None:
            found[host] = fields
    missing = [host for host in (*rollout.control, *rollout.upgraded) if host not in found]
    if missing and rollout.launcher == "local":
        here = take_fingerprint()
        found |= dict.fromkeys(missing, here)
    return found


@contextmanager
def held(workspace: Path) -> Iterator[None]:
    """Only one roll-out at a time in a workspace. Raises ``CaseError`` when another process runs one."""
    (workspace / FOLDER).mkdir(parents=True, exist_ok=True)
    with (workspace / FOLDER / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CaseError(f"{workspace / FOLDER}: another process is measuring a roll-out; wait for it") from None
        yield


def open_rollout(
    workspace: Path,
    rollout: Rollout,
    hosts: Mapping[str, Fields],
    baseline: Baseline | None,
    left_out: Sequence[str] = (),
    **given: Any,
) -> Session:
    """A docket of its own for this roll-out; one that was cut short on the same hosts is continued."""
    opened = {
        "case": rollout.name,
        "question": rollout.question,
        "rollout_digest": rollout.digest(),
        "sets_digest": rollout.sets_digest(),
        "rollout": plain(rollout),
        "before": rollout.before,
        "left_out": list(left_out),
        "hosts": {host: dict(fields) for host, fields in hosts.items()},
        "baseline_digest": baseline.digest if baseline else None,
        "analysis_version": ANALYSIS_VERSION,
        "healthy_step_ms": rollout.step_ms,
    }
    directory = _unfinished(workspace, opened) or dated_folder(workspace / FOLDER, rollout.name)
    docket = Docket.open(directory / "docket.jsonl")
    session = Session(case=rollout.as_case(), directory=directory, docket=docket, **given)
    if len(docket) == 0:
        session.note(Kind.OPENED, opened)
    if baseline is not None and BASELINE not in session.state.findings:
        _keep_baseline(session, baseline)
    return session


def _keep_baseline(session: Session, baseline: Baseline) -> None:
    path = session.write_json(f"evidence/{BASELINE}.json", baseline.evidence)
    numbers = {
        "source": baseline.source,
        "digest": baseline.digest,
        "d_ms": baseline.evidence["difference"]["step_ms"],
        "step_ms": {arm: one["step_ms"] for arm, one in baseline.evidence["arms"].items()},
        "hosts": {host: dict(fields) for host, fields in baseline.hosts.items()},
    }
    file = str(path.relative_to(session.directory))
    session.note(Kind.FINDING, {"topic": BASELINE, "numbers": numbers, "file": file})


def _unfinished(workspace: Path, opened: dict[str, Any]) -> Path | None:
    same = ("rollout_digest", "hosts", "baseline_digest", "analysis_version")
    for path in sorted((workspace / FOLDER).glob(f"{opened['case']}-[0-9]*/docket.jsonl"), reverse=True):
        state = State.of(Docket.open(path))
        if all(state.opened.get(key) == opened[key] for key in same):
            return path.parent if state.concluded is None else None
    return None


def perform(session: Session, step: Register | Launch | Judge | Ask) -> None:
    """Does what ``step`` says and appends it to the docket."""
    if isinstance(step, Judge):
        for found in judge_rollout(session, step):
            engine.record(session, step, found)
    else:
        engine.perform(session, step)


def take_steps(session: Session, rollout: Rollout) -> None:
    """Everything that the roll-out still has to do."""
    while (step := next_step(rollout, session.docket)) is not None:
        perform(session, step)


def conclude(session: Session) -> tuple[Admission, str]:
    """Puts the end of a roll-out on record, once. Raises ``LaunchError`` where it could not be run at all."""
    state = session.state
    if state.concluded is None and state.evidence.get(EXPERIMENT):
        session.note(Kind.FINDING, {"topic": "hosts", "numbers": {"fields": _measured_hosts(session)}, "file": None})
    ended, sentence = outcome(session.state)
    if state.concluded is None:
        session.note(
            Kind.CONCLUDED, {"status": "concluded", "reason": sentence, "conclusion": {"outcome": ended.value}}
        )
    failures = state.failures.get(EXPERIMENT)
    if failures and not state.evidence.get(EXPERIMENT):
        raise LaunchError(
            f"{session.case.name}: nothing could be measured: {failures[-1]['reason']}. See that every host of both "
            f"sets can be reached, or leave it out ({session.directory})"
        )
    return ended, sentence


def _measured_hosts(session: Session) -> dict[str, Fields]:
    """The hosts' fingerprints, those of hosts that had none from what the run recorded of them."""
    found = {host: dict(fields) for host, fields in session.state.opened["hosts"].items()}
    for arm in session.evidence(EXPERIMENT)["arms"].values():
        for run in arm["runs"]:
            recorded = read_run(session.directory / run["path"]).manifest.get("hosts") or {}
            for host, facts in recorded.items():
                found.setdefault(host, host_fields(facts))
    return found
