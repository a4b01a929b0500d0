"""Flow runs whose process is gone: Prefect would show them as running for ever."""

from __future__ import annotations

from collections.abc import Callable


def crash_dead_runs(tag: str, note: Callable[[str], None]) -> int:
    """Marks every unfinished flow run with ``tag`` as crashed, and returns how many there were.

    To be called by a process that holds the case: then whoever ran them is gone. A run that waits for approval of a
    deployment is paused, not dead, and is left alone.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterState,
        FlowRunFilterStateType,
        FlowRunFilterTags,
    )
    from prefect.client.schemas.objects import StateType
    from prefect.states import Crashed

    unfinished = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]
    wanted = FlowRunFilter(
        tags=FlowRunFilterTags(all_=[tag]), state=FlowRunFilterState(type=FlowRunFilterStateType(any_=unfinished))
    )
    with get_client(sync_client=True) as client:
        found = client.read_flow_runs(flow_run_filter=wanted)
        for run in found:
            message = "its process is gone; the investigation was continued from its docket"
            client.set_flow_run_state(run.id, Crashed(message=message), force=True)
            note(f"{run.name}: was left unfinished by a process that is gone; marked as crashed")
    return len(found)
