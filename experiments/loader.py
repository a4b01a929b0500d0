"""A data loader that needs a given time for a batch, and loads ahead on its own thread."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from narrows.experiments.timing import sharpen_timers, wait_until

Item = TypeVar("Item")
Loaded = TypeVar("Loaded")
_POLL_S = 0.1


class Loader(Generic[Item, Loaded]):
    """Hands out loaded batches in order. With `depth` 0 a batch is loaded when it is asked for.

    Loading takes `load_ns` or as long as `load` really needs, whichever is more; at most `depth` batches wait.
    """

    def __init__(self, items: Iterable[Item], load: Callable[[Item], Loaded], *, load_ns: int, depth: int) -> None:
        self._items = iter(items)
        self._load = load
        self._load_ns = load_ns
        self._ready: queue.Queue[Loaded | None] = queue.Queue(max(1, depth))
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        if depth:
            self._thread = threading.Thread(target=self._run_ahead, name="narrows-loader", daemon=True)
            self._thread.start()

    def take(self) -> Loaded:
        """The next batch; blocks until it is loaded. Raises RuntimeError: loading it failed."""
        if self._thread is None:
            return self._load_next(next(self._items))
        loaded = self._ready.get()
        if loaded is None:
            raise RuntimeError("the loader thread ended before its batches did; its own traceback is above")
        return loaded

    def close(self) -> None:
        """Loads nothing more, and drops what was loaded ahead."""
        self._stopped.set()
        if self._thread is not None:
            while self._thread.is_alive():
                self._drain()
                self._thread.join(_POLL_S / 10)

    def _run_ahead(self) -> None:
        sharpen_timers()
        try:
            for item in self._items:
                if self._stopped.is_set():
                    return
                self._ready.put(self._load_next(item))
        finally:
            if not self._stopped.is_set():
                self._ready.put(None)

    def _load_next(self, item: Item) -> Loaded:
        begin = time.monotonic_ns()
        loaded = self._load(item)
        wait_until(begin + self._load_ns)
        return loaded

    def _drain(self) -> None:
        while not self._ready.empty():
            self._ready.get_nowait()
