"""The training loop as the hooks see it, shared by all of them."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from narrows.instruments.recorder import Recorder
    from narrows.instruments.session import Session

_here = threading.get_ident


@dataclass(slots=True)
class Window:
    """What the current step has shown so far, on the training thread."""

    busy: bool = False  # inside a forward or a backward: nested calls are part of it
    loss_from_ns: int | None = None
    last_bucket_ns: int | None = None
    samples: int = 0
    losses: list[float] = field(default_factory=list)
    grad_norm: float | None = None
    gc_ns: int = 0


@dataclass(slots=True)
class Loop:
    """The training loop as the hooks see it."""

    session: Session
    window: Window = field(default_factory=Window)
    roots: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    boundary: Any = None  # a weak reference to the optimizer whose step ends the step
    optimizers_ns: dict[int, int] = field(default_factory=dict)
    input_depth: int = 0
    checkpoint_depth: int = 0

    def recorder(self) -> Recorder | None:
        """The recorder, when this is the training thread and it records."""
        return self.session.recorder() if _here() == self.session.thread else None


_loops: weakref.WeakKeyDictionary[Session, Loop] = weakref.WeakKeyDictionary()


def loop_of(session: Session) -> Loop:
    """The loop of a session: one for all hooks."""
    return _loops.setdefault(session, Loop(session))
