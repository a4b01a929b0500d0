"""What is going on, for a person: lines that stay, and one that is replaced while something runs."""

from __future__ import annotations

import sys
import threading
import time
from typing import Self, TextIO

EVERY_S = 5.0
"""Where the output is no terminal, a running program's own lines are passed on this often at most."""


class Progress:
    """Lines on standard output; on a terminal the running program's last line is shown below them and replaced."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._stream = stream or (sys.stderr if quiet else sys.stdout)
        self._quiet = quiet
        self._shown = ""
        self._last = 0.0
        self._lock = threading.RLock()  # whoever shows the investigation says things as well

    def say(self, text: str) -> None:
        """One line that stays."""
        if self._quiet:
            return
        with self._lock:
            self.pause()
            print(text, file=self._stream, flush=True)

    def line(self, text: str) -> None:
        """One line of the running program."""
        if self._quiet:
            return
        if self._stream.isatty():
            self._replace(text)
        elif time.monotonic() - self._last >= EVERY_S:
            self._last = time.monotonic()
            print(f"    {text}", file=self._stream, flush=True)

    def pause(self) -> None:
        """Takes the replaced line away, before something else is printed."""
        with self._lock:
            if self._shown:
                print("\r" + " " * len(self._shown) + "\r", end="", file=self._stream, flush=True)
                self._shown = ""

    def _replace(self, text: str) -> None:
        shown = "    " + text.replace("\r", " ")[:110]
        with self._lock:
            print("\r" + shown.ljust(len(self._shown)), end="", file=self._stream, flush=True)
            self._shown = shown

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pause()
