"""The emulated accelerator's clock: waits of computed length that burn no CPU."""

from __future__ import annotations

import ctypes
import sys
import time

_PR_SET_TIMERSLACK = 29
_NEAR_NS = 50_000


def sharpen_timers() -> None:
    """Lets this thread, and the threads that it starts, wake within microseconds of a deadline.

    Linux delays a sleeper by 50 us to batch wake-ups (prctl(2), PR_SET_TIMERSLACK); elsewhere this does nothing.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1_000))


def wait_until(deadline_ns: int) -> int:
    """The monotonic time, never before `deadline_ns`. Sleeps short of it and then again: no spinning."""
    while (left := deadline_ns - time.monotonic_ns()) > 0:
        time.sleep((left if left <= _NEAR_NS else left - _NEAR_NS // 2) / 1e9)
    return time.monotonic_ns()


class Timeline:
    """A stream of an emulated accelerator: what is put on it runs back to back, in computed time.

    Waking late does not delay a kernel that a host would have queued before: the stream's time is computed, and the
    host catches up. A host that is later than `slack_ns` has let the stream run dry, and then its lateness counts.
    """

    def __init__(self, slack_ns: int = 15_000_000) -> None:
        self._slack_ns = slack_ns
        self.end_ns = time.monotonic_ns()

    def restart(self) -> None:
        """The stream is idle, and its time is now."""
        self.end_ns = time.monotonic_ns()

    def resume(self, no_earlier_than_ns: int) -> None:
        """The stream goes on where it ended, after what it had to wait for; later if the host came too late."""
        self.end_ns = max(self.end_ns, no_earlier_than_ns, time.monotonic_ns() - self._slack_ns)

    def run(self, length_ns: float) -> tuple[int, int]:
        """Start and end of a kernel of this length, in monotonic nanoseconds; returns when it has ended."""
        start = self.end_ns
        self.end_ns = start + max(0, round(length_ns))
        wait_until(self.end_ns)
        return start, self.end_ns
