"""The revalidation as a served deployment: by cron, and by the automation that waits for changed hosts."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from narrows.flows.claims_store import ClaimStore
from narrows.flows.fingerprint import state_folder
from narrows.flows.revalidate import revalidate
from narrows.flows.watch import EVENT


def serve_flow(
    store: ClaimStore, *, state: Path | None, cron: str | None, within_s: float, settle_s: float
) -> None:  # fmt: skip
    """Serves the flow until interrupted, with its cron and its automation: of the hosts of a cluster that change within
    ``within_s`` seconds, the first one starts a run."""
    from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
    from prefect.events import DeploymentEventTrigger
    from prefect.events.schemas.automations import Posture
    from prefect.types.entrypoint import EntrypointType

    trigger = DeploymentEventTrigger(
        name="revalidate when a host changed",
        expect={EVENT},
        match={"prefect.resource.id": "narrows.host.*"},
        for_each={"narrows.cluster"},
        posture=Posture.Reactive,
        threshold=1,
        within=timedelta(seconds=within_s),
        parameters={"reason": "{{ event.resource.id }} changed"},
    )
    parameters = {
        "folder": str(store.folder.resolve()),
        "state": str(state_folder(state).resolve()),
        "settle_s": settle_s,
    }
    revalidate.serve(
        name="revalidate",
        cron=cron,
        triggers=[trigger],
        parameters=parameters,
        tags=["narrows"],
        # One at a time: two revalidations on the same machines would measure each other.
        global_limit=ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.ENQUEUE),
        print_starting_message=False,
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
