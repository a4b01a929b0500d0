"""The bodies of `narrows claims` and `narrows revalidate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from narrows.flows.approval import Answer, ApprovalRequest
from narrows.flows.approval import ask as ask_person
from narrows.flows.claims_store import ClaimStore, store_at
from narrows.flows.commands import launcher_of, print_json
from narrows.flows.exits import DONE, FOUND, INCONCLUSIVE, USAGE
from narrows.flows.progress import Progress
from narrows.flows.revalidating import Due, Revalidated, find_due_or_damaged, revalidate_one
from narrows.flows.revalidating_nodes import nodes_of
from narrows.flows.revalidating_report import damaged_rows, keep_report, rows_of, tell
from narrows.inquiry.claim import Claim, Outcome
from narrows.inquiry.errors import CaseError
from narrows.inquiry.steps import Ask
from narrows.templates.revalidation import report_text


def revalidate(
    names: Sequence[str], *, claims: Path | None, hosts: Sequence[str], state: Path | None, run: Path | None,
    every: bool, yes: bool, no_ui: bool, as_json: bool,
) -> int:  # fmt: skip
    """Runs the claims that are due again and prints the report; 0 where none moved, 4 where one did, 2 where one
    could not be read, 3 undecided."""
    store = store_at(claims)
    if state is not None and not state.is_dir():
        raise CaseError(f"--state {state}: there is no such folder; `narrows watch --once --state {state}` begins it")
    with Progress(quiet=as_json) as progress, store.held():
        nodes = nodes_of(hosts=hosts, state=state, run=run)
        found, damaged = find_due_or_damaged(store, names, nodes, every=every)
        left_out = damaged_rows(damaged)
        for problem in damaged.values():
            progress.say(f"left out: {problem}")
        for one in found:
            progress.say(_due_line(one))
        if no_ui or not any(one.reasons for one in found):
            ended = {one.claim.name: _plainly(store, one, progress, yes=yes) for one in found if one.reasons}
            rows = [*rows_of(found, ended), *left_out]
            keep_report(store, rows, reason="the command line")
            tell(store, rows, progress.say)
        else:
            rows = _with_board(store, found, progress, left_out, yes=yes)
    if as_json:
        print_json({"schema": 1, "claims": rows})
    else:
        print(report_text(rows), end="")
    return exit_code(rows)


def exit_code(rows: Sequence[Mapping[str, Any]]) -> int:
    outcomes = {row["outcome"] for row in rows}
    if outcomes & {Outcome.GONE.value, Outcome.MOVED.value}:
        return FOUND
    if any(row.get("problem") for row in rows):
        return USAGE
    return INCONCLUSIVE if Outcome.INCONCLUSIVE.value in outcomes else DONE


def _due_line(one: Due) -> str:
    if not one.reasons:
        return f"claim {one.claim.name}: not due"
    return f"claim {one.claim.name}: due: " + "; ".join(reason.words for reason in one.reasons)


def _plainly(store: ClaimStore, one: Due, progress: Progress, *, yes: bool) -> Revalidated:
    given = {"launcher": launcher_of(), "say": progress.say, "show_line": progress.line}
    return revalidate_one(store, one, ask=_asker(one.claim, progress, yes=yes), **given)


def _asker(claim: Claim, progress: Progress, *, yes: bool) -> Callable[[Ask], Answer]:
    def ask(step: Ask) -> Answer:
        progress.pause()
        text = f"{step.question}\n\nRevalidation of claim {claim.name}."
        request = ApprovalRequest(key=step.gate, title=f"Approve {step.gate}?", text=text)
        return ask_person(request, auto_yes=yes, note=progress.say)

    return ask


def _with_board(
    store: ClaimStore, found: Sequence[Due], progress: Progress, left_out: Sequence[dict[str, Any]], *, yes: bool
) -> list[dict[str, Any]]:
    from narrows.flows.server import connected

    with connected(note=progress.say) as server:
        from narrows.flows.revalidate import run_on_board

        return run_on_board(store, found, progress, server, left_out, approve_all=yes)


def serve(
    *, claims: Path | None, state: Path | None, cron: str | None, within_s: float, settle_s: float
) -> int:  # fmt: skip
    """Serves the flow on the server until it is interrupted: by cron, and when a host changed."""
    from narrows.flows.server import connected

    store = store_at(claims)
    if cron is not None:
        _check_cron(cron)  # before the server starts, which takes its time
    with connected(note=print) as server:
        from narrows.flows.revalidating_serve import serve_flow

        print(f"serving revalidate of {store.folder.resolve()} on {server.ui_url} (Ctrl-C to leave)", flush=True)
        serve_flow(store, state=state, cron=cron, within_s=within_s, settle_s=settle_s)
    return DONE


def _check_cron(cron: str) -> None:
    from prefect.client.schemas.schedules import CronSchedule

    try:
        CronSchedule(cron=cron)
    except ValueError:
        raise ValueError(f"--cron {cron}: expected the five fields of a crontab line, such as '0 5 * * 1'") from None
