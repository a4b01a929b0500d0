"""Flow runs whose process died: the server notices their silence, and marks them as crashed.

Prefect alone shows such a run as running for ever. Every run of narrows sends a heartbeat; an automation on the server
waits for it. Any event of the run counts as a sign of life, so that a run which waits for approval, and sends none
while its process is gone, is left alone: its pause was the last event, and no heartbeat followed.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Self
from uuid import UUID

from narrows.inquiry.errors import NarrowsError

TAG = "narrows"
"""On every flow run of narrows; the automation looks at no other run of a shared server."""
SILENCE_S = 600.0
"""Longer than three intervals of the slowest client: Prefect's own default interval is 180 s."""
SILENCE_VARIABLE = "NARROWS_SILENCE_S"
LEAST_SILENCE_S = 10.0
"""The server looks every 5 s, and an event may be on its way for as long (Prefect 3.9)."""
BEATS = 5
"""Heartbeats of a run within the time limit: one that comes late, or two that are lost, must not kill it."""
AUTOMATION = "narrows: a run without a heartbeat has crashed"
_SIGNS = {f"prefect.flow-run.{event}" for event in ("Pending", "Running", "heartbeat")}
"""After each of these another event must follow; a process may die before its first heartbeat."""
MESSAGE = (
    "no heartbeat: its process is gone. The docket keeps what was found: `narrows investigate CASE --resume`, or the "
    "same `narrows revalidate` or `narrows canary-rollout` again, goes on from there"
)


def silence_s(environ: Mapping[str, str] = os.environ) -> float:
    """How long a run may be silent before it counts as dead: NARROWS_SILENCE_S, else ten minutes.

    Raises ``NarrowsError`` for a value that is no number of seconds, or too short for a run that lives.
    """
    text = environ.get(SILENCE_VARIABLE)
    if not text:
        return SILENCE_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not LEAST_SILENCE_S <= seconds < float("inf"):
        raise NarrowsError(f"{SILENCE_VARIABLE} is {text!r}; give a number of seconds, {LEAST_SILENCE_S:g} or more")
    return seconds


def ensure_reaper(limit_s: float | None = None) -> bool:
    """Whether the server had to be told to crash silent runs of narrows; it knows it now in any case.

    ``limit_s`` is the silence that counts as death, by default ``silence_s()``. Raises what Prefect's client raises
    where the server refuses automations.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    within = timedelta(seconds=silence_s() if limit_s is None else limit_s)
    wanted = AutomationCore(
        name=AUTOMATION,
        description="Marks flow runs tagged 'narrows' as crashed when they fall silent. Made by narrows.",
        trigger=EventTrigger.model_validate(
            {
                "after": _SIGNS,
                "expect": {"prefect.flow-run.*"},
                "match": {"prefect.resource.id": ["prefect.flow-run.*"]},
                "match_related": {"prefect.resource.id": f"prefect.tag.{TAG}", "prefect.resource.role": "tag"},
                "for_each": {"prefect.resource.id"},
                "posture": Posture.Proactive,
                "threshold": 1,
                "within": within,
            }
        ),
        actions=[ChangeFlowRunState(name=None, state=StateType.CRASHED, message=MESSAGE, force=False)],
    )
    with get_client(sync_client=True) as client:
        there = [one for one in client.read_automations_by_name(AUTOMATION) if one.enabled]
        if any(
            (getattr(one.trigger, "within", None), getattr(one.trigger, "after", None)) == (within, _SIGNS)
            for one in there
        ):
            return False
        for old in there:
            client.delete_automation(old.id)
        client.create_automation(wanted)
    return True


class Pulse:
    """Heartbeats of a run and of its subflow that is open. Used in ``with``, inside the root run.

    A subflow's own heartbeat costs it a second at its end, ten times in an investigation; this one thread beats for
    whichever subflow is open, and for the root, whose own heartbeat may be slower than the time limit allows.
    """

    def __init__(self, interval_s: float | None = None) -> None:
        self._interval_s = silence_s() / BEATS if interval_s is None else interval_s
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._open: list[tuple[UUID, str, tuple[str, ...]]] = []
        context = contextvars.copy_context()  # Prefect's settings live in it
        self._thread = threading.Thread(target=context.run, args=(self._beat,), daemon=True, name="pulse")

    @contextmanager
    def of(self, run_id: str, name: str, tags: Sequence[str]) -> Iterator[None]:
        """Beats for the flow run ``run_id`` while it is open, beginning now."""
        one = (UUID(run_id), name, tuple(tags))
        with self._lock:
            self._open.append(one)
            _emit(*one)
        try:
            yield
        finally:
            with self._lock:
                self._open.remove(one)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _beat(self) -> None:
        while not self._over.wait(self._interval_s):
            with self._lock:  # never for a run that has ended meanwhile: it would be taken for silent
                for one in self._open:
                    _emit(*one)


@contextmanager
def beating(tags: Sequence[str]) -> Iterator[Pulse]:
    """The current flow run beats while it lasts, on a server that crashes it when it falls silent."""
    from prefect.runtime import flow_run

    ensure_reaper()
    with Pulse() as pulse, pulse.of(str(flow_run.id), str(flow_run.name), tags):
        yield pulse


def _emit(run_id: UUID, name: str, tags: tuple[str, ...]) -> None:
    from prefect.events import emit_event

    related: list[Any] = [
        {"prefect.resource.id": f"prefect.tag.{tag}", "prefect.resource.role": "tag"} for tag in sorted({*tags, TAG})
    ]
    resource = {"prefect.resource.id": f"prefect.flow-run.{run_id}", "prefect.resource.name": name}
    emit_event(event="prefect.flow-run.heartbeat", resource=resource, related=related)
