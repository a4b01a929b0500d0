"""Asking a person before device time is spent. Whatever goes wrong is a no: nothing fails open."""

from __future__ import annotations

import contextlib
import getpass
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TextIO
from uuid import UUID

from narrows.inquiry.errors import NarrowsError, ServerError

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State

DAY_S = 86_400
_POLL_S = 3.0
_ASKS = 20  # a gate that was asked this often in one run is not asked again

Note = Callable[[str], None]


class Decision(StrEnum):
    """What came of asking. Only ``APPROVE`` lets a launch happen."""

    APPROVE = "approve"
    SKIP = "skip"
    ABORT = "abort"
    DECLINED = "declined"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """One gate: ``key`` is the same each time the same launch is asked for; ``text`` is markdown."""

    key: str
    title: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A decision, who claims to have made it (the open-source server knows no users), and why."""

    decision: Decision
    by: str
    reason: str = ""


def ask(
    request: ApprovalRequest,
    *,
    auto_yes: bool = False,
    timeout_s: int = DAY_S,
    poll_s: float = _POLL_S,
    note: Note = print,
    pause: Callable[[float], None] = time.sleep,
) -> Answer:
    """The decision on ``request``: from the Prefect page inside a flow run, else from the terminal.

    ``pause`` waits so many seconds between two looks at the page; what it raises ends the question.

    Declined when nobody can be asked, nobody answers within ``timeout_s``, or the answer cannot be read. A deployed
    flow ends here and is started again once answered, so call it outside every other resource. Raises ``ValueError``
    in a subflow or a task: Prefect cannot wait for a person there.
    """
    if auto_yes:
        return Answer(decision=Decision.APPROVE, by="--yes", reason="approved beforehand on the command line")
    run = _flow_run()
    if run is None:
        return ask_terminal(request, sys.stdin, sys.stdout)
    return _ask_flow_run(request, run, timeout_s, poll_s, note, pause)


def ask_terminal(request: ApprovalRequest, stdin: TextIO, stdout: TextIO) -> Answer:
    """The decision typed at a terminal; declined where there is none, and at the end of input."""
    if not stdin.isatty():
        return _nobody("there is no terminal to ask at and no Prefect server; pass --yes to approve beforehand")
    print(f"\n{request.title}\n\n{request.text}\n", file=stdout)
    while True:
        print("approve, skip or abort? ", end="", file=stdout, flush=True)
        line = stdin.readline()
        if not line:
            return Answer(decision=Decision.DECLINED, by=_user(), reason="the input ended without an answer")
        word = line.strip().lower()
        if word in ("approve", "skip", "abort"):
            return Answer(decision=Decision(word), by=_user())
        print(f"{word!r} is none of them; there is no default", file=stdout)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "somebody at the terminal"


def _flow_run() -> FlowRun | None:
    """The root flow run that we are in, if any."""
    if "prefect" not in sys.modules:
        return None
    from prefect.context import FlowRunContext, TaskRunContext

    context = FlowRunContext.get()
    if TaskRunContext.get() or (context and context.flow_run and context.flow_run.parent_task_run_id):
        raise ValueError("approval is asked for in the root flow only; Prefect cannot wait in a subflow or a task")
    return context.flow_run if context else None


def _ask_flow_run(
    request: ApprovalRequest, run: FlowRun, timeout_s: int, poll_s: float, note: Note, pause: Callable[[float], None]
) -> Answer:
    from narrows.flows.approval_form import LaunchApproval

    key = "gate-" + re.sub(r"[^a-z0-9]+", "-", request.key.lower()).strip("-")  # Prefect takes no other characters
    form = LaunchApproval.with_initial_data(description=f"**{request.title}**\n\n{request.text}")
    if run.deployment_id:
        from prefect.flow_runs import suspend_flow_run

        return _answer_of(suspend_flow_run(wait_for_input=form, key=key, timeout=timeout_s))
    from prefect.client.orchestration import get_client

    note(f"waiting for approval: {request.title} (Resume on the run's page, or `narrows approve {run.id}`)")
    with get_client(sync_client=True) as client:
        return _Gate(client, run.id, form, timeout_s=timeout_s, poll_s=poll_s, pause=pause).ask(key)


def _answer_of(given: Any) -> Answer:
    if given is None:
        return _nobody("no answer was stored")
    return Answer(decision=Decision(given.decision), by=given.approver, reason=given.reason)


class _Gate:
    """Waits in the process for the page's answer, as ``pause_flow_run`` does.

    That function is not used because it sees nothing but "running": a run that is cancelled while it waits would wait
    on for its whole time-out, and a gate that was left by kill -9 could not be asked again under its key.
    """

    def __init__(
        self, client: SyncPrefectClient, run_id: UUID, form: Any,
        *, timeout_s: int, poll_s: float, pause: Callable[[float], None],
    ) -> None:  # fmt: skip
        self._client, self._run_id, self._form = client, run_id, form
        self._timeout_s, self._poll_s, self._pause = timeout_s, poll_s, pause

    def ask(self, key: str) -> Answer:
        from prefect.input import keyset_from_paused_state
        from prefect.states import Paused

        for ask in range(1, _ASKS + 1):
            pause_key = key if ask == 1 else f"{key}-{ask}"
            paused: State[Any] = Paused(timeout_seconds=self._timeout_s, pause_key=pause_key)
            keyset = keyset_from_paused_state(paused)
            paused.state_details.run_input_keyset = {str(name): value for name, value in keyset.items()}
            state = self._client.set_flow_run_state(self._run_id, paused).state
            if state and state.is_paused():
                self._form.save(keyset, self._run_id)
                return self._wait(keyset)
            if state and not state.is_running():
                return _given_up(state)
            if earlier := self._stored(keyset):  # this gate was answered before the run was started again
                return earlier
        return _nobody(f"it was asked {_ASKS} times without an answer")

    def _wait(self, keyset: Any) -> Answer:
        end = time.monotonic() + self._timeout_s
        while time.monotonic() < end:
            self._pause(min(self._poll_s, max(0.0, end - time.monotonic())))
            state = self._state()
            if state is None or state.is_paused():
                continue
            if state.is_running():
                return self._stored(keyset) or Answer(
                    decision=Decision.DECLINED, by="nobody", reason="no input was given"
                )
            return _given_up(state)
        self._go_on()
        return _nobody(f"nobody answered within {self._timeout_s / 3600:.3g} hours")

    def _state(self) -> State | None:
        import httpx

        try:
            return self._client.read_flow_run(self._run_id).state
        except httpx.HTTPError:  # the server is away; the question stands until the time-out
            return None

    def _stored(self, keyset: Any) -> Answer | None:
        import httpx

        try:
            raw = self._client.read_flow_run_input(self._run_id, keyset["response"])
            return _answer_of(self._form.model_validate_json(raw))
        except (httpx.HTTPError, ValueError):  # absent, or not what the form asks for
            return None

    def _go_on(self) -> None:
        from prefect.states import Running

        # The flow has work to do without the approval, and a paused run could still be "approved".
        self._client.set_flow_run_state(self._run_id, Running(), force=True)


def _given_up(state: State) -> Answer:
    if state.is_cancelled() or state.is_cancelling():
        return Answer(decision=Decision.CANCELLED, by="the Prefect page", reason="the run was cancelled")
    return _nobody(f"the run went to {state.name} while it waited")


def _nobody(reason: str) -> Answer:
    return Answer(decision=Decision.DECLINED, by="nobody", reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A flow run that waits for a decision."""

    flow_run_id: str
    name: str
    text: str


def waiting_runs() -> list[Waiting]:
    """The flow runs that wait for a decision, oldest first. Raises ``ServerError`` when the server is away."""
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.client.schemas.objects import StateType

    paused = FlowRunFilter.model_validate({"state": {"type": {"any_": [StateType.PAUSED]}}})
    with _client() as client:
        found = [(run.state.timestamp, run) for run in client.read_flow_runs(flow_run_filter=paused) if run.state]
        runs = [run for _, run in sorted(found, key=lambda pair: pair[0])]
        return [Waiting(flow_run_id=str(run.id), name=run.name, text=_description(client, run)) for run in runs]


def _description(client: SyncPrefectClient, run: FlowRun) -> str:
    import httpx

    keyset = (run.state.state_details.run_input_keyset or {}) if run.state else {}
    try:
        return str(json.loads(client.read_flow_run_input(run.id, keyset["description"])))
    except (httpx.HTTPError, KeyError, ValueError):
        return ""


def answer(flow_run_id: str, answered: Answer) -> None:
    """Hands ``answered`` to the waiting run. Raises ``NarrowsError`` when it does not wait, or refuses the answer."""
    try:
        run_id = UUID(flow_run_id)
    except ValueError:
        raise ValueError(f"{flow_run_id!r} is no flow run id; `narrows approve` lists what waits") from None
    given = {"decision": answered.decision.value, "approver": answered.by, "reason": answered.reason}
    with _client() as client:
        state = client.read_flow_run(run_id).state  # asked to resume a run that is not there, the server says 500
        if state is None or not state.is_paused():
            raise NarrowsError(f"flow run {flow_run_id} does not wait for an answer; `narrows approve` lists what does")
        response = client.resume_flow_run(run_id, run_input=given)
    if response.status.value != "ACCEPT":
        raise NarrowsError(f"flow run {flow_run_id} did not take the answer: {getattr(response.details, 'reason', '')}")


@contextlib.contextmanager
def _client() -> Iterator[SyncPrefectClient]:
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    try:
        with get_client(sync_client=True) as client:
            yield client
    except ObjectNotFound as error:
        raise NarrowsError("there is no such flow run on this server; `narrows approve` lists what waits") from error
    except httpx.HTTPError as error:
        raise ServerError(f"the Prefect server could not be asked: {error}") from error
