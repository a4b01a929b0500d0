"""Flow runs whose process is gone: Prefect would show them as running for ever."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.client.schemas.objects import FlowRun

_MESSAGE = "its process is gone; the investigation was continued from its docket"


def docket_tag(directory: Path) -> str | None:
    """The tag of all flow runs that wrote the docket in ``directory``; None where there is no docket.

    A case's name is no identity: on a shared server somebody else may investigate a case of the same name.
    """
    try:
        with (directory / "docket.jsonl").open(encoding="utf-8") as lines:
            return f"docket:{json.loads(next(lines))['sha256'][:12]}"
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        return None


def crash_dead_runs(directory: Path, note: Callable[[str], None], *, own_run: object = None) -> int:
    """Marks the unfinished flow runs of the case kept in ``directory`` as crashed, and returns how many there were.

    Those of the investigations that ``--fresh`` moved aside are among them. To be called by a process that holds the
    case, ``own_run`` being its own flow run: then whoever ran the others is gone. A deployment's run that is paused
    waits for approval without any process, and is left alone.
    """
    from prefect.client.orchestration import get_client
    from prefect.states import Crashed

    folders = [directory, *directory.parent.glob(f"{directory.name}.*")]
    tags = {tag for tag in map(docket_tag, folders) if tag}
    with get_client(sync_client=True) as client:
        found = {run.id: run for tag in tags for run in client.read_flow_runs(flow_run_filter=_unfinished(tag))}
        dead = [run for run in found.values() if str(run.id) != str(own_run) and not _waits_without_process(run)]
        for run in dead:
            client.set_flow_run_state(run.id, Crashed(message=_MESSAGE), force=True)
            note(f"{run.name}: was left unfinished by a process that is gone; marked as crashed")
    return len(dead)


def _unfinished(tag: str) -> FlowRunFilter:
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.client.schemas.objects import StateType

    types = [StateType.RUNNING, StateType.PENDING, StateType.PAUSED, StateType.CANCELLING]
    return FlowRunFilter.model_validate({"tags": {"all_": [tag]}, "state": {"type": {"any_": types}}})


def _waits_without_process(run: FlowRun) -> bool:
    return run.deployment_id is not None and run.state is not None and run.state.is_paused()
