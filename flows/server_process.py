"""The process of narrows' own Prefect server: ``python -m narrows.flows.server_process server start ...``

Prefect begins its transactions on SQLite as readers. One that reads before it writes fails at once where another writer
came between, whatever the time limit: the server answers 503, and Prefect's client waits 2 s before it asks again, one
to three times an investigation (Prefect 3.9). Begun as writers, they wait for each other, for milliseconds.
"""

from __future__ import annotations

import contextlib
import runpy
from collections.abc import AsyncIterator
from typing import Any


def begin_as_writers() -> None:
    """Makes every transaction of this process on SQLite one that holds the write lock from its beginning."""
    from prefect.server.database.configurations import AioSqliteConfiguration

    as_prefect_does = AioSqliteConfiguration.begin_transaction

    @contextlib.asynccontextmanager
    async def begin_transaction(self: Any, session: Any, **_reader_or_writer: bool) -> AsyncIterator[Any]:
        async with as_prefect_does(self, session, with_for_update=True) as transaction:
            yield transaction

    AioSqliteConfiguration.begin_transaction = begin_transaction  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    begin_as_writers()
    runpy.run_module("prefect", run_name="__main__", alter_sys=True)
