"""The recorder of a process that was not written for one: started at the first sign of training, given up at the
first word of a script that records itself."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time

from narrows.inquiry.errors import NarrowsError
from narrows.instruments.recorder import Recorder, current, start

PATIENCE_S = 300.0
"""After this long without a step the user is told how to mark one."""

NO_STEP = (
    "no step boundary was found, because no torch.optim.Optimizer has stepped: "
    "call narrows.instruments.current().step() at the end of each step"
)


class Session:
    """One process under ``narrows run``. Hooks ask it for the recorder at every call, so the answer is cheap."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self.thread = threading.main_thread().ident
        self._patience_s = patience_s
        self._process_id = os.getpid()
        self._recorder: Recorder | None = None
        self._asked = False
        self._told = False
        self._started_s = 0.0

    def recorder(self) -> Recorder | None:
        """This session's recorder, started now if this is the first sign of training; None where it cannot be, or
        where the script took recording into its own hands."""
        if not self._asked:
            self._start()
        return self.running()

    def running(self) -> Recorder | None:
        """This session's recorder where it records already; never starts it."""
        recorder = self._recorder
        return recorder if recorder is not None and recorder.automatic and current() is recorder else None

    def _start(self) -> None:
        self._asked = True
        if current() is not None or os.getpid() != self._process_id:
            return  # the script called start() before it trained; or this is a forked child, which is not the rank
        try:
            self._recorder = start()
        except (NarrowsError, OSError, ValueError) as error:
            print(f"narrows: {error}; this process is not recorded", file=sys.stderr)
            return
        self._recorder.automatic = True
        os.environ["NARROWS_RECORDING"] = str(os.getpid())  # children of this rank are not the rank
        self._started_s = time.monotonic()
        self._recorder.on_tick(self._look_for_steps)
        atexit.register(self._end)

    def _look_for_steps(self) -> None:
        if time.monotonic() - self._started_s > self._patience_s:
            self._tell_if_no_step()

    def _end(self) -> None:
        """Runs before the recorder closes, because it was registered after."""
        self._tell_if_no_step()

    def _tell_if_no_step(self) -> None:
        recorder = self._recorder
        if recorder is None or self._told or recorder.closed or recorder.steps_seen:
            return
        self._told = True
        print(f"narrows: rank {recorder.rank}: {NO_STEP}", file=sys.stderr)
        recorder.event("no_step_boundary", NO_STEP)
