"""The body of `narrows canary-rollout`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from narrows.flows.approval import Answer, ApprovalRequest
from narrows.flows.approval import ask as ask_person
from narrows.flows.canary_rollout_baseline import find_baseline
from narrows.flows.canary_rollout_report import finish
from narrows.flows.canary_rollout_run import held, known_hosts, open_rollout, take_steps
from narrows.flows.canary_rollout_sets import Wanted, rollout_of
from narrows.flows.commands import launcher_of, print_json
from narrows.flows.exits import DONE, FOUND, INCONCLUSIVE
from narrows.flows.fingerprint import state_folder
from narrows.flows.progress import Progress
from narrows.flows.session import Session
from narrows.inquiry.rollout import Admission, Rollout
from narrows.inquiry.steps import Ask
from narrows.templates.canary_rollout import report_text

_EXITS = {Admission.ADMIT.value: DONE, Admission.REGRESSED.value: FOUND}


def canary_rollout(
    wanted: Wanted, *, baseline: Sequence[Path], workspace: Path | None, state: Path | None, yes: bool, no_ui: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Measures, judges and reports a roll-out; 0 where the upgrade is admitted, 4 where it is slower, 3 undecided."""
    with Progress(quiet=as_json) as progress:
        place = workspace_of(wanted, workspace)
        with held(place):
            session, rollout = opened(wanted, place, baseline, state, say=progress.say, show_line=progress.line)
            session.ask = _asker(rollout, progress, yes=yes)
            if no_ui:
                take_steps(session, rollout)
                record = finish(session, rollout)
            else:
                record = _with_board(session, rollout, progress)
    if as_json:
        print_json(record)
    else:
        print()
        print(report_text(record), end="")
    return exit_code(record)


def workspace_of(wanted: Wanted, given: Path | None) -> Path:
    """Where roll-outs are kept: given, else beside the case file, else here."""
    return (given or (wanted.case.parent if wanted.case else Path())).resolve()


def opened(
    wanted: Wanted, workspace: Path, baseline: Sequence[Path], state: Path | None, **given: Any
) -> tuple[Session, Rollout]:
    """The roll-out with its baseline and its hosts' fingerprints on record. Raises ``NarrowsError``."""
    rollout, left_out = rollout_of(wanted)
    found = find_baseline(rollout, baseline, workspace)
    hosts = known_hosts(rollout, state_folder(state))
    launcher = launcher_of(rollout.as_case())
    session = open_rollout(workspace, rollout, hosts, found, left_out, launcher=launcher, **given)
    return session, rollout


def exit_code(record: Mapping[str, Any]) -> int:
    """A baseline is no gate: it is done once there are pairs."""
    if record["before"]:
        return DONE if record["pairs"] else INCONCLUSIVE
    return _EXITS.get(record["outcome"], INCONCLUSIVE)


def _asker(rollout: Rollout, progress: Progress, *, yes: bool) -> Callable[[Ask], Answer]:
    def ask(step: Ask) -> Answer:
        progress.pause()
        text = f"{step.question}\n\n{rollout.question}"
        request = ApprovalRequest(key=step.gate, title=f"Approve {step.gate}?", text=text)
        return ask_person(request, auto_yes=yes, note=progress.say)

    return ask


def _with_board(session: Session, rollout: Rollout, progress: Progress) -> dict[str, Any]:
    from narrows.flows.server import connected

    with connected(note=progress.say) as server:
        from narrows.flows.canary_rollout import run_on_board

        return run_on_board(session, rollout, server)
