"""The bodies of the commands: open, run, print. What they print for people, and for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from narrows.flows import demo as demos
from narrows.flows import engine
from narrows.flows.approval import Answer, ApprovalRequest, Decision, Waiting
from narrows.flows.approval import ask as ask_person
from narrows.flows.exits import DONE, FOUND, INCONCLUSIVE
from narrows.flows.launching import Launcher
from narrows.flows.local_launcher import LocalLauncher
from narrows.flows.postmortem import write_postmortem
from narrows.flows.progress import Progress
from narrows.flows.session import Session, case_directory, open_session
from narrows.inquiry.codec import plain
from narrows.inquiry.conclusion import report
from narrows.inquiry.errors import CaseError
from narrows.inquiry.scopes import Rung
from narrows.inquiry.steps import Ask, Stop, StopReason
from narrows.inquiry.verdict import Verdict

EXITS = {StopReason.EXPLAINED: DONE, StopReason.NO_REGRESSION: DONE, StopReason.UNTIL: DONE}


def launcher_of(_session_or_case: object = None) -> Launcher:
    """The launcher for ``cluster.launcher: local``, the only one that a case file may name."""
    return LocalLauncher()


def list_demos(*, as_json: bool = False) -> int:
    """Prints the worked cases with the comment that heads each file."""
    if as_json:
        print_json({"schema": 1, "demos": {name: demos.headline(name) for name in demos.names()}})
        return DONE
    for name in demos.names():
        print(f"{name:14} {demos.headline(name)}")
    return DONE


def demo(name: str, *, out: Path | None, seed: int | None, no_ui: bool, as_json: bool) -> int:
    """Lays out a worked case, records its runs, investigates it."""
    folder = out or Path("narrows-demo") / name
    case_file = demos.lay_out(name, folder, seed=seed)
    with Progress(quiet=as_json) as progress:
        progress.say(f"worked case {name}: {demos.headline(name)}")
        progress.say(f"recording a healthy and a regressed run at full scale into {folder / 'runs'}")
        try:
            demos.record(case_file, launcher_of(), on_line=progress.line)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("nothing is kept: the same command starts over") from None
    return investigate(case_file, yes=True, resume=False, fresh=False, until=None, no_ui=no_ui, as_json=as_json)


def investigate(
    case_file: Path, *, yes: bool, resume: bool, fresh: bool, until: Rung | None, no_ui: bool, as_json: bool
) -> int:
    """Opens the case and takes its steps, on the Prefect board or without it."""
    with Progress(quiet=as_json) as progress:
        session = open_session(case_file, launcher_of(), resume=resume, fresh=fresh)
        session.say, session.show_line = progress.say, progress.line
        try:
            if no_ui:
                session.ask = _asker(session, yes=yes, progress=progress)
                stop = _plainly(session, until)
            else:
                stop = _with_board(session, case_file, until, progress, yes=yes)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"`narrows investigate {case_file} --resume` goes on from here") from None
    if as_json:
        print_json(_report(session))
    return EXITS.get(stop.reason, INCONCLUSIVE)


def _plainly(session: Session, until: Rung | None) -> Stop:
    stop = engine.run(session, until)
    for line in write_postmortem(session):
        session.say(line)
    return stop


def _with_board(session: Session, case_file: Path, until: Rung | None, progress: Progress, *, yes: bool) -> Stop:
    from narrows.flows.followed import run_on_board
    from narrows.flows.server import connected

    with connected(note=progress.say) as server:
        return run_on_board(session, case_file, until, server, approve_all=yes)


def _asker(session: Session, *, yes: bool, progress: Progress) -> Callable[[Ask], Answer]:
    def ask(step: Ask) -> Answer:
        text = f"{step.question}\n\n{session.case.question}"
        request = ApprovalRequest(key=step.gate, title=f"Approve {step.gate}?", text=text)
        progress.pause()
        return ask_person(request, auto_yes=yes, note=progress.say)

    return ask


def _report(session: Session) -> dict[str, Any]:
    postmortem = str(session.postmortem) if session.postmortem.exists() else None
    return report(session.case, session.docket, postmortem)


def print_json(value: object) -> None:
    """One JSON object on standard output."""
    json.dump(plain(value), sys.stdout, indent=2, allow_nan=False)
    print()


def find_case(text: str) -> Session:
    """The case that ``text`` names: its file, its folder, or its name under ./cases. Raises ``CaseError``."""
    path = Path(text)
    if path.is_file():
        return open_session(path, launcher_of(), resume=True, exclusive=False)
    for folder in (path, Path("cases") / text):
        if (folder / "docket.jsonl").is_file():
            return _session_of(folder)
    raise CaseError(
        f"{text}: no case file, no case folder, and no case of this name in ./cases; give the case file's path"
    )


def _session_of(folder: Path) -> Session:
    """The session of a case folder, found back through the case file two levels up."""
    for candidate in sorted(folder.resolve().parent.parent.glob("*.yaml")):
        try:
            from narrows.flows.casefile import load_case

            case = load_case(candidate)
        except CaseError:
            continue
        if case_directory(candidate, case.name) == folder.resolve():
            return open_session(candidate, launcher_of(), resume=True, exclusive=False)
    raise CaseError(f"{folder}: its case file is not in {folder.resolve().parent.parent}; give the case file's path")


def show(text: str, *, as_json: bool) -> int:
    """The board of a case."""
    session = find_case(text)
    if as_json:
        print_json(_report(session))
        return DONE
    from rich.console import Console

    from narrows.flows.board import board_table
    from narrows.flows.board_rows import rows_of

    done = session.state.concluded
    Console().print(board_table(session.case.question, rows_of(session.state)))
    print(done["reason"] if done else "not concluded yet; continue with --resume")
    if session.postmortem.exists():
        print(f"postmortem: {session.postmortem}")
    return DONE


def check(case_file: Path, *, as_json: bool) -> int:
    """Loads the case and its runs; says what it found."""
    from narrows.flows.casefile import UNKNOWN_DIFFERENCE, load_case
    from narrows.flows.session import read_given
    from narrows.inquiry.design import ArmKind

    case = load_case(case_file)
    evidence = read_given(case, case_file.resolve().parent)
    steps = {arm: one["step_ms"] for arm, one in evidence["arms"].items()}
    if as_json:
        print_json({"schema": 1, "case": case.name, "arms": case.workload.kind, "scopes": case.scopes(),
                    "step_ms": steps, "pairs": evidence["pairs"], "losses": evidence["losses"]})  # fmt: skip
        return DONE
    print(f"{case_file}: {case.name}: a {case.workload.kind.value} comparison, {evidence['pairs']} pairs")
    print(
        f"  step: healthy {steps['healthy']:.4g} ms, regressed {steps['regressed']:.4g} ms ({case.judging.statistic})"
    )
    scopes = ", ".join(scope.words for scope in case.scopes())
    print(f"  scopes: {scopes}; budget {case.budget.device_hours:g} device-hours")
    if case.workload.kind is ArmKind.HISTORICAL:
        print(f"  {UNKNOWN_DIFFERENCE}")
    for loss in evidence["losses"]:
        print(f"  lost while reading: {loss}")
    return DONE


def manifest(run: Path, other: Path | None, *, as_json: bool) -> int:
    """One manifest, or the differences of two."""
    from narrows.reducers.manifest_rules import DifferenceKind
    from narrows.reducers.manifests import diff_manifests
    from narrows.reducers.rundir import read_run

    first = read_run(run).manifest
    if other is None:
        print_json(first)
        return DONE
    differences = diff_manifests(first, read_run(other).manifest)
    if as_json:
        print_json({"schema": 1, "differences": [plain(one) for one in differences]})
    else:
        for one in differences:
            print(f"{one.kind.value:10} {one.words()}")
            print(f"{'':10} {one.why}")
        print(f"{len(differences)} differences" if differences else "no difference that was recorded")
    return FOUND if any(one.kind is not DifferenceKind.HARMLESS for one in differences) else DONE


def approve(which: str | None, *, decision: str, reason: str, by: str | None, as_json: bool) -> int:
    """Lists what waits for a decision, or answers it."""
    import getpass
    import os

    from narrows.flows.approval import answer, waiting_runs
    from narrows.flows.client_settings import client_settings
    from narrows.flows.server import ensure_server, running_server

    server = ensure_server() if os.environ.get("PREFECT_API_URL") else running_server()
    waiting: list[Waiting] = []
    if server is not None:
        with client_settings(server.client_environment()):
            waiting = waiting_runs()
            if which is not None:
                chosen = _chosen(which, waiting)
                answer(
                    chosen.flow_run_id, Answer(decision=Decision(decision), by=by or getpass.getuser(), reason=reason)
                )
                _say_answer(chosen, decision, as_json=as_json)
                return DONE
    if which is not None:
        raise CaseError(f"{which}: no server is running here, so nothing waits; is PREFECT_API_URL set?")
    if as_json:
        print_json({"schema": 1, "waiting": [plain(one) for one in waiting]})
        return DONE
    for one in waiting:
        print(f"{one.flow_run_id}  {one.name}\n    {one.text.strip()}")
    if not waiting:
        print("nothing waits for a decision")
    return DONE


def _say_answer(chosen: Waiting, decision: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"schema": 1, "flow_run_id": chosen.flow_run_id, "name": chosen.name, "decision": decision})
    else:
        print(f"{chosen.name}: {decision}")


def _chosen(which: str, waiting: list[Waiting]) -> Waiting:
    found = [one for one in waiting if which in (one.flow_run_id, one.name, one.name.rpartition(" ")[2])]
    if len(found) != 1:
        names = ", ".join(f"{one.name} ({one.flow_run_id})" for one in waiting) or "nothing"
        raise CaseError(f"{which}: {len(found)} runs of this name wait for a decision; waiting: {names}")
    return found[0]


def reproduce(text: str, *, as_json: bool) -> int:
    """The smallest reproducer, once more."""
    from narrows.flows.reproduce import reproduce as run_again

    session = find_case(text)
    with Progress(quiet=as_json) as progress:
        session.show_line = progress.line
        progress.say(f"{session.case.name}: running the smallest experiment that showed the loss")
        found = run_again(session)
    if as_json:
        print_json({"schema": 1, **plain(found)})
    else:
        recorded = "" if found.recorded_ms is None else f"; recorded was {found.recorded_ms:.3g} ms"
        print(f"{found.verdict.value.upper()} at {found.scope}: {found.reason}{recorded}")
        print(f"written to {session.directory / found.folder}")
    return {Verdict.SUPPORTED: DONE, Verdict.REJECTED: FOUND}.get(found.verdict, INCONCLUSIVE)
