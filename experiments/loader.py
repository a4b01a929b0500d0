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
_JOIN_S = 0.01


class Loader(Generic[Item, Loaded]):
    """Hands out loaded batches in order, each with the time at which it was ready, in monotonic ns.

    With `depth` 0 a batch is loaded when it is asked for; else at most `depth` batches wait. Loading takes `load_ns`,
    or as long as `load` really needs, whichever is more.
    """

    def __init__(self, items: Iterable[Item], load: Callable[[Item], Loaded], *, load_ns: int, depth: int) -> None:
        self._items = iter(items)
        self._load = load
        self._load_ns = load_ns
        self._ready: queue.Queue[tuple[Loaded, int] | None] = queue.Queue(max(1, depth))
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        if depth:
            self._thread = threading.Thread(target=self._run_ahead, name="narrows-loader", daemon=True)
            self._thread.start()

    def take(self) -> tuple[Loaded, int]:
        """The next batch and when it was ready; blocks until then. Raises RuntimeError: loading it failed."""
        if self._thread is None:
            return self._load_next(next(self._items), time.monotonic_ns())
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
                self._thread.join(_JOIN_S)

    def _run_ahead(self) -> None:
        sharpen_timers()
        begin_ns = time.monotonic_ns()
        try:
            for item in self._items:
                if self._stopped.is_set():
                    return
                loaded = self._load_next(item, begin_ns)
                begin_ns = self._put(loaded)
        finally:
            if not self._stopped.is_set():
                self._ready.put(None)

    def _put(self, loaded: tuple[Loaded, int]) -> int:
        """When loading the next batch begins: at once, or when there is room for this one."""
        try:
            self._ready.put_nowait(loaded)
        except queue.Full:
            self._ready.put(loaded)
            return time.monotonic_ns()
        return loaded[1]

    def _load_next(self, item: Item, begin_ns: int) -> tuple[Loaded, int]:
        loaded = self._load(item)
        ready_ns = max(begin_ns + self._load_ns, time.monotonic_ns())
        wait_until(ready_ns)
        return loaded, ready_ns

    def _drain(self) -> None:
        while not self._ready.empty():
            self._ready.get_nowait()
