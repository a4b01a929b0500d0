"""Carries out the steps that the ladder asks for, and puts what happened on record."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from narrows.flows.approval import Decision
from narrows.flows.found import Found
from narrows.flows.judging import judge
from narrows.flows.launching import LaunchCancelledError, launch
from narrows.flows.plan_files import jobs
from narrows.flows.postmortem import rehearse_meanwhile
from narrows.flows.session import Session
from narrows.inquiry.codec import plain
from narrows.inquiry.conclusion import conclude
from narrows.inquiry.docket import Kind
from narrows.inquiry.errors import DeclinedError, LaunchError, RunDirectoryError
from narrows.inquiry.hypotheses import Registration
from narrows.inquiry.ladder import next_step
from narrows.inquiry.scopes import Rung
from narrows.inquiry.steps import Ask, Judge, Launch, Register, Skip, Step, Stop, StopReason
from narrows.reducers.curve_evidence import build_curves
from narrows.reducers.evidence import ArmRuns, build_evidence, merge_evidence

if TYPE_CHECKING:
    from narrows.flows.feed import Feed


def perform(session: Session, step: Step) -> None:
    """Does what ``step`` says and appends it to the docket. Raises ``LaunchCancelledError`` when told to cancel."""
    if isinstance(step, Register):
        _register(session, step)
    elif isinstance(step, Launch):
        _launch(session, step)
    elif isinstance(step, Judge):
        _judge(session, step)
    elif isinstance(step, Ask):
        _ask(session, step)
    elif isinstance(step, Skip):
        session.note(Kind.SKIPPED, {"rung": step.rung.value, "reason": step.reason})
        session.say(f"{step.rung.label}: nothing to do; {step.reason}")
    else:
        finish(session, step)


def run(session: Session, until: Rung | None = None, feed: Feed | None = None) -> Stop:
    """Takes steps until there are none left, or until the rung after ``until`` would begin; ``feed`` is told of each.

    Raises what the feed raises instead of taking the next step.
    """
    while True:
        step = next_step(session.case, session.docket)
        if not isinstance(step, Stop) and until is not None and step.rung.number > until.number:
            step = Stop(reason=StopReason.UNTIL)
        if feed is not None:
            feed.begins(step)
        if isinstance(step, Stop):
            if step.reason is not StopReason.UNTIL:
                perform(session, step)
            return step
        if isinstance(step, Launch):
            rehearse_meanwhile(session)
        perform(session, step)
        if feed is not None:
            feed.did(step)


def _register(session: Session, step: Register) -> None:
    known = len(session.docket.of(Kind.REGISTERED))
    for number, hypothesis in enumerate(step.hypotheses, start=known + 1):
        record = Registration(id=f"H{number:02d}", hypothesis=hypothesis, created_ns=time.time_ns()).sealed()
        session.docket.append(Kind.REGISTERED, plain(record), record.created_ns)
        session.say(f"{step.rung.label}: {record.id} registered ({record.sha256[:12]}): {hypothesis.claim}")
        session.say(f"    predicts {hypothesis.prediction.words()}; rejected if {hypothesis.reject_if.words()}")


def _ask(session: Session, step: Ask) -> None:
    """Puts the question, and the answer, on record. No answer is no approval, and the question stays open."""
    if session.ask is None:
        raise DeclinedError(f"{step.question}; nobody is there to approve it. Pass --yes, or run it at a terminal")
    session.note(Kind.ASKED, {"gate": step.gate, "question": step.question, "device_hours": step.device_hours})
    answer = session.ask(step)
    if answer.decision not in (Decision.APPROVE, Decision.SKIP, Decision.ABORT):
        raise DeclinedError(f"{step.question}; not approved: {answer.reason}. Continue with --resume")
    body = {"gate": step.gate, "decision": answer.decision.value, "by": answer.by, "reason": answer.reason}
    session.note(Kind.ANSWERED, body)
    why = f": {answer.reason}" if answer.reason else ""
    session.say(f"{step.rung.label}: {step.gate}: {answer.decision.value} by {answer.by}{why}")


def _launch(session: Session, step: Launch) -> None:
    experiment = step.experiment
    folder = session.directory / "experiments" / experiment.key / f"launch-{step.launch}"
    if folder.exists():  # a launch that was killed before the docket knew of it
        shutil.rmtree(folder)
    session.note(
        Kind.LAUNCHED,
        {
            "experiment": experiment.key,
            "launch": step.launch,
            "plan_digest": experiment.spec_digest(),
            "folder": str(folder.relative_to(session.directory)),
            "hosts": experiment.placement.names,
            "first_pair": step.first_pair,
            "pairs": step.pairs,
            "device_hours_planned": step.device_hours,
        },
    )
    arms = " and ".join(arm.name for arm in experiment.arms)
    ranks = f"{experiment.world_size} rank{'s' * (experiment.world_size > 1)}"
    where = f"{ranks} on {', '.join(experiment.placement.names)}"
    mode = experiment.mode.value.replace("_", " ")
    session.say(f"{step.rung.label}: {experiment.key}: {step.pairs} pairs of {arms}, {mode}, {where}")
    began_ns, began = time.time_ns(), time.monotonic()

    def device_hours() -> float:
        return (time.monotonic() - began) * experiment.world_size / 3600

    try:
        runs = _run_jobs(session, step, folder)
        _keep(session, step, runs, began_ns, device_hours())
    except LaunchCancelledError:
        raise
    except (LaunchError, RunDirectoryError) as error:
        body = {"experiment": experiment.key, "launch": step.launch, "reason": str(error)}
        session.note(Kind.FAILED, body | {"device_hours": device_hours()})
        session.say(f"{step.rung.label}: {experiment.key}: could not run: {error}")


def _run_jobs(session: Session, step: Launch, folder: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for job in jobs(step.experiment, folder, first_pair=step.first_pair, pairs=step.pairs, base=session.base):
        if session.show_line is not None and len(job.runs) == 1:  # a script of the user's own may print nothing
            session.show_line(f"{step.experiment.key} pair {job.pairs[0] + 1}: {next(iter(job.runs))}")
        session.waits.set()
        try:
            launch(session.launcher, job.plan, on_line=session.show_line, cancelled=session.cancelled)
        finally:
            session.waits.clear()
        for arm, path in job.runs.items():
            found.setdefault(arm, []).append(path)
    return found


def _keep(session: Session, step: Launch, runs: dict[str, list[Path]], began_ns: int, device_hours: float) -> None:
    """Reduces a launch to its evidence file, seals it in the docket, and refreshes the experiment's merged file."""
    experiment = step.experiment
    part = _reduce(session, step, [ArmRuns(name=arm.name, paths=tuple(runs[arm.name])) for arm in experiment.arms])
    if not part["pairs"]:
        raise RunDirectoryError(f"{experiment.key}, launch {step.launch}: holds no pair; nothing can be compared")
    name = f"{experiment.key}-{step.launch}"
    path = session.write_json(f"evidence/parts/{name}.json", part)
    parts = [session.directory / one["file"] for one in session.state.evidence.get(experiment.key, ())]
    merged = merge_evidence(experiment.key, [*parts, path]) if parts else part
    session.write_json(f"evidence/{experiment.key}.json", merged)
    session.cache.pop(experiment.key, None)
    session.note(
        Kind.EVIDENCE,
        {
            "experiment": experiment.key,
            "launch": step.launch,
            "file": str(path.relative_to(session.directory)),
            "digest": part["digest"],
            "runs": [run for arm in part["arms"].values() for run in arm["runs"]],
            "pairs": part["pairs"],
            "started_ns": began_ns,
            "device_hours": device_hours,
            "load_1m": os.getloadavg()[0],
        },
    )


def _reduce(session: Session, step: Launch, arms: list[ArmRuns]) -> dict[str, Any]:
    experiment = step.experiment
    if experiment.sizes_bytes:
        return build_curves(
            experiment.key,
            (arms[0], arms[1]),
            mode=experiment.mode.value,
            root=session.directory,
            declared=experiment.differs,
        )
    return build_evidence(
        experiment.key,
        arms,
        statistic=session.case.judging.statistic,
        mode=experiment.mode.value,
        root=session.directory,
        declared=experiment.differs,
        first_pair=step.first_pair,
        washout=experiment.washout,
        replay=experiment.rung is Rung.MANIFEST,  # the given runs measured again: the loss is taken from these
    )


def _judge(session: Session, step: Judge) -> None:
    for found in judge(session, step):
        record(session, step, found)


def record(session: Session, step: Judge, found: Found) -> None:
    """Puts one judgement on record: its findings, then the verdict, or that more pairs are wanted."""
    for topic, numbers in found.findings.items():
        session.note(Kind.FINDING, {"rung": step.rung.value, "topic": topic, "numbers": numbers, "file": found.file})
        if topic.startswith("pending:"):
            why = f"a delay of {numbers['delay_ms']:.3g} ms must be seen there before it is rejected"
            session.say(f"{step.rung.label}: {numbers['hypothesis']}: {numbers['reason']}; {why}")
    if found.wanted_pairs is not None:
        session.note(
            Kind.LOOK,
            {
                "hypothesis": found.hypothesis,
                "experiment": step.experiment,
                "pairs": found.pairs,
                "wanted_pairs": found.wanted_pairs,
                "reason": found.reason,
            },
        )
        more = f"{found.wanted_pairs} pairs wanted"
        session.say(f"{step.rung.label}: {found.hypothesis}: not decided yet ({found.reason}); {more}")
        return
    if found.hypothesis is None or found.verdict is None:
        return
    evidence = [
        {"experiment": step.experiment, "launch": one["launch"]}
        for one in session.state.evidence.get(step.experiment or "", ())
    ]
    session.note(
        Kind.VERDICT,
        {
            "hypothesis": found.hypothesis,
            "verdict": found.verdict.value,
            "effect_ms": found.effect_ms,
            "interval_ms": found.interval_ms,
            "reason": found.reason,
            "numbers": found.numbers,
            "file": found.file,
            "evidence": evidence,
        },
    )
    session.say(f"{step.rung.label}: {found.hypothesis} {found.verdict.value.upper()}: {found.reason}")


def finish(session: Session, stop: Stop) -> None:
    """Puts the conclusion on record, once."""
    state = session.state
    if state.concluded is not None:
        return
    session.note(
        Kind.CONCLUDED,
        {"status": "stopped" if stop.reason is StopReason.ABORTED else "concluded", "reason": stop.reason.value,
         "conclusion": conclude(state)},
    )  # fmt: skip
    session.say(stop.reason.value)
