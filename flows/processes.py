"""Processes that cannot outlive their owner.

Every process that a job starts inherits a mark in its environment. Killing a job means killing what bears the mark,
not only the process group: torchrun gives each rank a session of its own (torch 2.13), so a signal to torchrun's
group does not reach the ranks of a torchrun that was itself killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

MARK = "NARROWS_JOB_MARK"
POLL_S = 0.25  # short waits let signals and asynchronous exceptions reach the main thread
GRACE_S = 15.0  # torchrun needs 1 to 4 s to stop its ranks; it waits 30 s for a rank that ignores SIGTERM
_TAIL_BYTES = 1 << 20
_TETHER = str(Path(__file__).with_name("tether.py"))
_BACKGROUND_WRITES = {"heartbeat.json", "clock.jsonl"}  # written by a thread that outlives a hung step


class Ending(StrEnum):
    """Why a job is over."""

    EXITED = "exited"
    TIMED_OUT = "timed out"
    SILENT = "silent"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When to give a job up. ``watch`` are files and folders whose growth counts as a sign of life, beside logs."""

    timeout_s: float | None = None
    silence_s: float | None = None
    grace_s: float = GRACE_S
    settle_s: float = 2.0  # after a first bad exit: the cause may sit in a member that ends a moment later
    watch: tuple[Path, ...] = ()
    cancelled: Callable[[], bool] | None = None


def tethered(argv: Sequence[str]) -> list[str]:
    """``argv`` behind the shim that ties its life to this process."""
    return [sys.executable, "-I", "-S", _TETHER, str(os.getpid()), *argv]


def require_main_thread(what: str) -> None:
    """Raises ``ValueError`` elsewhere: the death signal follows the thread that forked, not its process."""
    if threading.current_thread() is not threading.main_thread():
        raise ValueError(f"{what} must be called from the main thread, not from {threading.current_thread().name!r}")


class Member:
    """One started process, leader of its own session, with all that it prints in ``log_file``.

    It prints into the file and not into a pipe: whatever becomes of us, it never blocks on us or dies of us.
    """

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path | None, log_file: Path) -> None:
        require_main_thread("starting a job")
        log_file.parent.mkdir(parents=True, exist_ok=True)
        self.log_file = log_file
        with log_file.open("ab") as log:
            self._process = subprocess.Popen(
                tethered(argv),
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """The exit status (negative: the signal), or None while it runs."""
        return self._process.poll()


class LineTail:
    """The whole lines that a growing file has gained since they were last asked for; the file may come later."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._partial = b""

    def lines(self, *, last: bool = False) -> list[str]:
        """The new lines, at most a mebibyte of them at a time; with ``last`` all, and a torn line too."""
        found: list[str] = []
        while chunk := self._read():
            *whole, self._partial = (self._partial + chunk).split(b"\n")
            if len(self._partial) > _TAIL_BYTES:  # not text, or one endless progress bar
                whole, self._partial = [*whole, self._partial], b""
            found += [line.decode("utf-8", "replace").rstrip("\r") for line in whole]
            if not last:
                break
        if last and self._partial:
            found.append(self._partial.decode("utf-8", "replace"))
            self._partial = b""
        return found

    def _read(self) -> bytes:
        try:
            with self.path.open("rb") as stream:
                stream.seek(self._offset)
                chunk = stream.read(_TAIL_BYTES)
        except FileNotFoundError:
            return b""
        self._offset += len(chunk)
        return chunk


class Job:
    """Several processes with one fate. Used in ``with``, none of them is left, whatever ends the block."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self.members: dict[str, Member] = {}
        self.started = time.monotonic()
        self.own_exits: dict[str, int] = {}  # of the members that were over before we stopped the rest
        self._stopped = False

    def start(
        self, name: str, argv: Sequence[str], *, env: Mapping[str, str], log_file: Path, cwd: Path | None = None
    ) -> Member:
        """The new member ``name``; its environment is ``env`` and the job's mark."""
        marks = f"{env.get(MARK, '')}:{self.mark}"  # a job inside a job belongs to both
        member = Member(argv, env={**env, MARK: marks}, cwd=cwd, log_file=log_file)
        self.members[name] = member
        return member

    def exits(self) -> dict[str, int]:
        """The exit status of each member that is over."""
        return {name: code for name, member in self.members.items() if (code := member.poll()) is not None}

    def pids(self) -> list[int]:
        """Everything alive that descends from this job, in whatever session; zombies are not alive."""
        return marked_pids(self.mark)

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Leaves nothing alive: SIGTERM to the members, ``grace_s`` to obey, SIGKILL to whatever is still there."""
        if not self._stopped:
            self._stopped, self.own_exits = True, self.exits()
        try:
            self._terminate(grace_s)
        finally:  # also after a second Ctrl-C in the middle of the grace
            self._kill()

    def _terminate(self, grace_s: float) -> None:
        end = time.monotonic() + grace_s
        # The leaders first and alone: torchrun stops its own ranks, and says so in their logs.
        send([member.pid for member in self.members.values() if member.poll() is None], signal.SIGTERM)
        wait_until(self.over, grace_s)
        if orphans := self.pids():
            send(orphans, signal.SIGTERM)
            wait_until(lambda: not self.pids(), end - time.monotonic())

    def over(self) -> bool:
        """Whether every member has ended."""
        return all(member.poll() is not None for member in self.members.values())

    def _kill(self) -> None:
        end = time.monotonic() + 10.0
        while (left := self.pids()) and time.monotonic() < end:  # a dying process may still have forked
            send(left, signal.SIGKILL)
            time.sleep(0.05)
        wait_until(self.over, 5.0)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def supervise(job: Job, limits: Limits, on_tick: Callable[[], None] | None = None) -> Ending:
    """How the job ended: all members over, or one of them badly, or a limit reached, or cancelled.

    Nothing of the job is alive on return, nor when this raises (``KeyboardInterrupt`` and Prefect's
    ``TerminationSignal`` included). ``on_tick`` is called in this thread about four times a second, and once after
    the end; what it raises ends the job.
    """
    life = _SignsOfLife(job, limits)
    try:
        while True:
            if on_tick:
                on_tick()
            if ending := _ending(job, limits, life):
                break
            time.sleep(POLL_S)
        if ending is Ending.EXITED:
            wait_until(job.over, limits.settle_s)
        return ending
    finally:
        job.stop(limits.grace_s)
        if on_tick:
            on_tick()


def _ending(job: Job, limits: Limits, life: _SignsOfLife) -> Ending | None:
    exits = job.exits()
    if len(exits) == len(job.members) or any(code != 0 for code in exits.values()):
        return Ending.EXITED
    if limits.cancelled and limits.cancelled():
        return Ending.CANCELLED
    if limits.timeout_s is not None and time.monotonic() - job.started > limits.timeout_s:
        return Ending.TIMED_OUT
    if limits.silence_s is not None and life.silent_s() > limits.silence_s:
        return Ending.SILENT
    return None


class _SignsOfLife:
    """The time since a log or a watched file changed its size; they are looked at once a second."""

    def __init__(self, job: Job, limits: Limits) -> None:
        self._watch = (*limits.watch, *(member.log_file for member in job.members.values()))
        self._sizes = dict(_sizes(self._watch))
        self._looked = self._grew = time.monotonic()

    def silent_s(self) -> float:
        now = time.monotonic()
        if now - self._looked >= 1.0:
            self._looked = now
            sizes = dict(_sizes(self._watch))
            if sizes != self._sizes:
                self._sizes, self._grew = sizes, now
        return now - self._grew


def _sizes(paths: Iterable[Path]) -> Iterable[tuple[str, int]]:
    for path in paths:
        files = path.rglob("*") if path.is_dir() else [path]
        for file in files:
            if file.name not in _BACKGROUND_WRITES:
                try:
                    yield str(file), file.stat().st_size
                except OSError:  # gone since it was listed
                    continue


def marked_pids(mark: str) -> list[int]:
    """The live processes whose environment bears ``mark``."""
    return [pid for pid in _all_pids() if mark in _mark_of(pid) and is_alive(pid)]


def _all_pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208  # a name is all we need


def _mark_of(pid: int) -> str:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # gone, or somebody else's
        return ""
    return next((line.decode() for line in variables if line.startswith(MARK.encode())), "")


def is_alive(pid: int) -> bool:
    """Whether ``pid`` is a process that still runs; a zombie does not."""
    return process_state(pid) not in ("", "Z", "X")


def process_state(pid: int) -> str:
    """The kernel's letter for the state of ``pid``, or an empty string when there is no such process."""
    fields = _stat(pid)
    return fields[0] if fields else ""


def process_start(pid: int) -> int | None:
    """When ``pid`` started, in clock ticks since boot: with the pid it names one process for ever."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def _stat(pid: int) -> list[str]:
    # proc(5): the fields after the command's closing bracket; the command itself may hold brackets and spaces
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def send(pids: Iterable[int], signum: signal.Signals) -> None:
    """Sends ``signum`` to each of ``pids`` that is still there."""
    for pid in pids:
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            continue


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether ``condition`` came true within ``timeout_s``."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(0.05)
    return True
