"""A run whose process died is marked as crashed by the server; one that waits for a person, or is not ours, is not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from narrows.flows.processes import wait_until
from narrows.flows.server import ServerHandle
from narrows.flows.zombies import AUTOMATION, TAG, Pulse, ensure_reaper, silence_s
from narrows.flows.zombies import SILENCE_S as DEFAULT_S
from narrows.inquiry.errors import NarrowsError

SILENCE_S = 12


@pytest.fixture
def client(narrows_server: ServerHandle) -> Iterator[Any]:
    from prefect.client.orchestration import get_client

    assert narrows_server.url
    with get_client(sync_client=True) as found:
        yield found
        for one in found.read_automations_by_name(AUTOMATION):
            found.delete_automation(one.id)


def _run(client: Any, tags: list[str], *, beats: bool = True, paused: bool = False) -> UUID:
    """A flow run that began, beat once, and then fell silent, as after a kill of its process."""
    from prefect import flow
    from prefect.events.worker import EventsWorker
    from prefect.states import Paused, Pending, Running

    @flow(name="silent")
    def silent() -> None:
        return

    run = client.create_flow_run(silent, tags=tags, state=Pending())
    client.set_flow_run_state(run.id, Running(), force=True)
    if beats:
        with Pulse().of(str(run.id), "silent", [one for one in tags if one != TAG]):
            pass
    EventsWorker.drain_all(timeout=10)
    if paused:
        time.sleep(1)
        client.set_flow_run_state(run.id, Paused(timeout_seconds=600), force=True)
    return UUID(str(run.id))


def _state(client: Any, run: UUID) -> str:
    return str(client.read_flow_run(run).state.type.value)


def test_a_silent_run_is_crashed_and_a_waiting_one_is_not(client: Any) -> None:
    assert ensure_reaper(SILENCE_S)
    waiting, mute = _run(client, [TAG], paused=True), _run(client, [TAG], beats=False)
    dead, other = _run(client, [TAG, "case:x"]), _run(client, ["of somebody else"], beats=False)
    assert wait_until(lambda: {_state(client, one) for one in (dead, mute)} == {"CRASHED"}, 120)
    assert "no heartbeat" in client.read_flow_run(dead).state.message
    assert _state(client, other) == "RUNNING"
    time.sleep(5)
    assert _state(client, waiting) == "PAUSED"


def test_the_automation_is_made_once_and_brought_up_to_date(client: Any) -> None:
    assert ensure_reaper(SILENCE_S)
    assert not ensure_reaper(SILENCE_S)
    assert ensure_reaper(2 * SILENCE_S)
    assert len(client.read_automations_by_name(AUTOMATION)) == 1


def test_the_time_limit_is_ten_minutes_or_what_the_variable_says() -> None:
    assert silence_s({}) == silence_s({"NARROWS_SILENCE_S": ""}) == DEFAULT_S == 600
    assert silence_s({"NARROWS_SILENCE_S": "45.5"}) == 45.5
    for wrong in ("9", "-60", "soon", "nan", "inf"):
        with pytest.raises(NarrowsError, match="give a number of seconds, 10 or more"):
            silence_s({"NARROWS_SILENCE_S": wrong})


def test_a_run_and_its_open_subflow_beat_until_they_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    from narrows.flows import zombies

    beats: list[str] = []
    monkeypatch.setattr(zombies, "_emit", lambda _run, name, _tags: beats.append(name))
    root, rung = str(UUID(int=1)), str(UUID(int=2))
    with Pulse(interval_s=0.05) as pulse, pulse.of(root, "root", ()):
        with pulse.of(rung, "rung", ()):
            assert wait_until(lambda: min(beats.count("root"), beats.count("rung")) >= 3, 10)
        left = beats.count("rung")
        seen = beats.count("root")
        assert wait_until(lambda: beats.count("root") >= seen + 3, 10)
        assert beats.count("rung") == left
    over = len(beats)
    time.sleep(0.2)
    assert len(beats) == over
