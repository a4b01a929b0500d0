"""Become a command that gets SIGTERM when the process that started it dies, however it dies.

Run as ``python -I -S tether.py PARENT_PID COMMAND...``. The death signal survives the exec. Doing it here, in a
fresh interpreter, keeps Python code out of the gap between fork and exec of a parent that runs threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def become(parent_pid: int, argv: list[str]) -> None:
    """Does not return, unless the command cannot be executed: then raises ``OSError``."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent_pid:  # it died before the call above: that signal will never come
        sys.exit(128 + signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())  # the parent may have started us with its signals held back
    os.execvp(argv[0], argv)  # noqa: S606  # the command is the caller's own


if __name__ == "__main__":
    try:
        become(int(sys.argv[1]), sys.argv[2:])
    except OSError as error:
        sys.exit(f"cannot execute {sys.argv[2]}: {error.strerror}")
