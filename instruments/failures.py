"""What a process leaves behind when it dies of an exception: the chain, and where every thread was."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

from narrows.instruments.files import SCHEMA, clock_pair, replace
from narrows.instruments.records import collective_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

    from narrows.instruments.recorder import Recorder

_watched: list[Callable[[], list[Recorder]]] = []


def watch(recorders: Callable[[], list[Recorder]]) -> None:
    """From now on an uncaught exception is written to ``failure.json`` of these recorders, then handled as before."""
    if _watched:
        return
    _watched.append(recorders)
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        for recorder in recorders():
            write_failure(recorder, error)
        previous(kind, error, trace)

    sys.excepthook = hook


def write_failure(recorder: Recorder, error: BaseException) -> None:
    """``failure.json`` of the recorder's rank holds the exception chain, all stacks and the open collectives."""
    path = recorder.run / "ranks" / f"{recorder.rank:05d}" / "failure.json"
    record = {
        "schema": SCHEMA,
        "kind": "failure",
        "rank": recorder.rank,
        "host": recorder.facts.placement.host,
        "pid": os.getpid(),
        **clock_pair(),
        "step": recorder.steps_seen,
        "exceptions": exception_chain(error),
        "threads": thread_stacks(),
        "open_collectives": [collective_line(token.record) for token in list(recorder._issued)],
    }
    try:
        replace(path, record)
    except OSError as refused:
        print(f"narrows: {path}: {refused}; the failure is not recorded", file=sys.stderr)


def exception_chain(error: BaseException) -> list[dict[str, Any]]:
    """The exceptions from the one that ended the process back to the first: type, message, stack (outermost first)."""
    chain: list[dict[str, Any]] = []
    seen: set[int] = set()
    link: BaseException | None = error
    relation = "raised"
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        chain.append(
            {
                "type": f"{type(link).__module__}.{type(link).__qualname__}",
                "message": str(link),
                "relation": relation,
                "stack": _frames(traceback.extract_tb(link.__traceback__)),
            }
        )
        relation = "caused by" if link.__cause__ is not None else "while handling"
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return chain


def thread_stacks() -> list[dict[str, Any]]:
    """Every Python thread with its stack, outermost frame first."""
    names = {thread.ident: thread for thread in threading.enumerate()}
    stacks = []
    for ident, frame in sys._current_frames().items():
        thread = names.get(ident)
        stacks.append(
            {
                "name": thread.name if thread is not None else str(ident),
                "daemon": thread.daemon if thread is not None else None,
                "stack": _frames(_extract(frame)),
            }
        )
    return stacks


def _extract(frame: FrameType) -> traceback.StackSummary:
    return traceback.extract_stack(frame)


def _frames(summary: traceback.StackSummary) -> list[str]:
    return [f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line or ''}".rstrip(": ") for frame in summary]
