"""Noticing that somebody pressed Cancel.

Prefect tells only the runs that a worker or a runner started; a run started as a script stays "Cancelling" for ever
unless it looks for itself.
"""

from __future__ import annotations

import contextvars
import threading
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from narrows.flows.launching import LaunchCancelledError
from narrows.inquiry.errors import DeclinedError, NarrowsError

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import State

POLL_S = 3.0


class CancelledRunError(NarrowsError):
    """The flow run was cancelled while nothing of it was running that could be stopped."""


class CancelWatch:
    """True, when called, once one of the flow runs that it watches was cancelled. Used in ``with``.

    It asks in a thread of its own: with the server away a request is retried for minutes, and the caller has time
    limits to keep.
    """

    def __init__(self, flow_run_ids: tuple[UUID, ...], *, poll_s: float = POLL_S) -> None:
        self._ids, self._poll_s = flow_run_ids, poll_s
        self._cancelled, self._over = threading.Event(), threading.Event()
        context = contextvars.copy_context()  # Prefect's settings live in it
        self._thread = threading.Thread(target=context.run, args=(self._watch,), daemon=True, name="cancel watch")

    @classmethod
    def of_current_run(cls, *, poll_s: float = POLL_S) -> Self:
        """Watches the flow run that calls this, and its root; outside of a flow run, nothing."""
        from prefect.runtime import flow_run

        ids = {UUID(str(text)) for text in (flow_run.id, flow_run.root_flow_run_id) if text}
        return cls(tuple(ids), poll_s=poll_s)

    def __call__(self) -> bool:
        return self._cancelled.is_set()

    def look(self) -> bool:
        """As a call, and asks the server now instead of relying on the last poll."""
        from prefect.client.orchestration import get_client

        with get_client(sync_client=True) as client:
            if any(_is_cancelled(client, run_id) for run_id in self._ids):
                self._cancelled.set()
        return self()

    def __enter__(self) -> Self:
        if self._ids:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(self._poll_s)

    def _watch(self) -> None:
        from prefect.client.orchestration import get_client

        with get_client(sync_client=True) as client:
            while not self._over.wait(self._poll_s):
                if any(_is_cancelled(client, run_id) for run_id in self._ids):
                    self._cancelled.set()
                    return


def ended_state(error: NarrowsError, watch: CancelWatch) -> State[Any]:
    """The state of a run that ``error`` ended: *Cancelled* where a person cancelled it, also while it waited for an
    answer, else *Failed*."""
    from prefect.states import Cancelled, Failed

    cancelled = isinstance(error, (LaunchCancelledError, CancelledRunError))
    if cancelled or (isinstance(error, DeclinedError) and watch.look()):
        return Cancelled(message=str(error))
    return Failed(message=str(error))


def _is_cancelled(client: SyncPrefectClient, run_id: UUID) -> bool:
    import httpx
    from prefect.exceptions import ObjectNotFound

    try:
        state = client.read_flow_run(run_id).state
    except (httpx.HTTPError, ObjectNotFound):  # away; or deleted, which is not a cancel
        return False
    return bool(state and (state.is_cancelling() or state.is_cancelled()))
