"""One Prefect server for all the tests that need one, with a home of its own and nothing left at the end."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator

import pytest

from narrows.flows.server import ServerHandle, connected


@pytest.fixture(scope="session")
def narrows_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerHandle]:
    home = tmp_path_factory.mktemp("narrows-home")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PREFECT_API_URL", raising=False)
        with connected(home) as handle:
            from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

            # The heartbeat's thread sleeps a second at the end of every flow run.
            with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
                yield handle


Background = Callable[[Callable[[], None]], threading.Thread]


@pytest.fixture
def in_background() -> Iterator[Background]:
    """Runs functions beside the test, with its Prefect settings; what they raise fails the test."""
    threads: list[threading.Thread] = []
    errors: list[BaseException] = []

    def start(function: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                function()
            except BaseException as error:  # noqa: BLE001  # handed to the test's own thread below
                errors.append(error)

        thread = threading.Thread(target=contextvars.copy_context().run, args=(guarded,), daemon=True)
        threads.append(thread)
        thread.start()
        return thread

    yield start
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
