"""Flow runs whose process died: the server notices their silence, and marks them as crashed.

Prefect alone shows such a run as running for ever. Every run of narrows sends a heartbeat; an automation on the server
waits for it. Any event of the run counts as a sign of life, so that a run which waits for approval, and sends none
while its process is gone, is left alone: its pause was the last event, and no heartbeat followed.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Self
from uuid import UUID

TAG = "narrows"
"""On every flow run of narrows; the automation looks at no other run of a shared server."""
BEAT_S = 60
SILENCE_S = 600
"""Longer than three intervals of the slowest client: Prefect's own default interval is 180 s."""
AUTOMATION = "narrows: a run without a heartbeat has crashed"
MESSAGE = "no heartbeat: its process is gone. `narrows investigate CASE --resume` goes on from the docket"


def ensure_reaper(silence_s: int = SILENCE_S) -> bool:
    """Whether the server had to be told to crash silent runs of narrows; it knows it now in any case.

    Raises what Prefect's client raises where the server refuses automations.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    wanted = AutomationCore(
        name=AUTOMATION,
        description="Marks flow runs tagged 'narrows' as crashed when they fall silent. Made by narrows.",
        trigger=EventTrigger.model_validate(
            {
                "after": {"prefect.flow-run.heartbeat"},
                "expect": {"prefect.flow-run.*"},
                "match": {"prefect.resource.id": ["prefect.flow-run.*"]},
                "match_related": {"prefect.resource.id": f"prefect.tag.{TAG}", "prefect.resource.role": "tag"},
                "for_each": {"prefect.resource.id"},
                "posture": Posture.Proactive,
                "threshold": 1,
                "within": timedelta(seconds=silence_s),
            }
        ),
        actions=[ChangeFlowRunState(name=None, state=StateType.CRASHED, message=MESSAGE, force=False)],
    )
    with get_client(sync_client=True) as client:
        there = [one for one in client.read_automations_by_name(AUTOMATION) if one.enabled]
        if any(getattr(one.trigger, "within", None) == timedelta(seconds=silence_s) for one in there):
            return False
        for old in there:
            client.delete_automation(old.id)
        client.create_automation(wanted)
    return True


class Pulse:
    """Heartbeats of the subflows of a run. Used in ``with``.

    A subflow's own heartbeat costs it a second at its end, ten times in an investigation; this one thread beats for
    whichever subflow is open.
    """

    def __init__(self, interval_s: float = BEAT_S) -> None:
        self._interval_s = interval_s
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._open: tuple[UUID, str, tuple[str, ...]] | None = None
        context = contextvars.copy_context()  # Prefect's settings live in it
        self._thread = threading.Thread(target=context.run, args=(self._beat,), daemon=True, name="pulse")

    @contextmanager
    def of(self, run_id: str, name: str, tags: list[str]) -> Iterator[None]:
        """Beats for the flow run ``run_id`` while it is open, beginning now."""
        with self._lock:
            self._open = (UUID(run_id), name, tuple(tags))
            _emit(*self._open)
        try:
            yield
        finally:
            with self._lock:
                self._open = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _beat(self) -> None:
        while not self._over.wait(self._interval_s):
            with self._lock:  # never for a run that has ended meanwhile: it would be taken for silent
                if self._open:
                    _emit(*self._open)


def _emit(run_id: UUID, name: str, tags: tuple[str, ...]) -> None:
    from prefect.events import emit_event

    related: list[Any] = [
        {"prefect.resource.id": f"prefect.tag.{tag}", "prefect.resource.role": "tag"} for tag in sorted({*tags, TAG})
    ]
    resource = {"prefect.resource.id": f"prefect.flow-run.{run_id}", "prefect.resource.name": name}
    emit_event(event="prefect.flow-run.heartbeat", resource=resource, related=related)
