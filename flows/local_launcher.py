"""Jobs on this machine: one torchrun agent for each node of the plan, so that two nodes are two agents."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

from narrows.flows.failures import read_failures, tail_text
from narrows.flows.launching import (
    Handle,
    LaunchCancelledError,
    LaunchPlan,
    LaunchResult,
    LaunchSilenceError,
    LaunchTimeoutError,
    LineSink,
    StoppedLaunchError,
)
from narrows.flows.processes import GRACE_S, Ending, Job, Limits, LineTail, supervise
from narrows.inquiry.errors import LaunchError

_CLASH = "address already in use"
_STOPPED: dict[Ending, tuple[type[StoppedLaunchError], str]] = {
    Ending.TIMED_OUT: (LaunchTimeoutError, "was stopped after {seconds:.0f} s, its limit is {timeout_s:.0f} s"),
    Ending.SILENT: (LaunchSilenceError, "gave no sign of life for {silence_s:.0f} s and was stopped: a hang?"),
    Ending.CANCELLED: (LaunchCancelledError, "was cancelled after {seconds:.0f} s"),
}


class LocalLauncher:
    """Runs plans with the Python that runs us; torchrun need not be on PATH."""

    def __init__(self, *, grace_s: float = GRACE_S, cwd: Path | None = None) -> None:
        self._grace_s, self._cwd = grace_s, cwd

    def submit(self, plan: LaunchPlan, *, on_line: LineSink | None = None) -> Handle:
        """The job, started in ``plan.log_dir``. Raises ``LaunchError`` when that folder cannot be written."""
        plan = replace(plan, host_env=share_gpus(plan, os.environ, _num_gpus()))
        return LocalHandle(plan, on_line=on_line, grace_s=self._grace_s, cwd=self._cwd)


class LocalHandle:
    """A job of ``LocalLauncher``. Not for several threads, and only for the main one."""

    def __init__(self, plan: LaunchPlan, *, on_line: LineSink | None, grace_s: float, cwd: Path | None) -> None:
        self._plan, self._grace_s, self._cwd = plan, grace_s, cwd
        self._lines = _RankZero(plan, on_line) if on_line else None
        self._log_dir = Path(plan.log_dir)
        self._retried = False
        if (self._log_dir / "launch.json").exists():
            raise LaunchError(
                f"{plan.name}: {self._log_dir} holds another launch; give each launch a folder of its own"
            )
        self._result: LaunchResult | None = None
        self._job = self._start()

    def _start(self) -> Job:
        port = self._plan.master_port or free_port()
        plan_file = self._log_dir / "launch.json"
        try:
            self._log_dir.mkdir(parents=True, exist_ok=True)
            plan_file.write_text(replace(self._plan, master_port=port).to_json())
        except OSError as error:
            raise LaunchError(
                f"{self._plan.name}: cannot write the launch plan {plan_file}: {error.strerror}"
            ) from error
        job = Job()
        try:
            for host, _ in self._plan.hosts:
                argv = [sys.executable, "-m", "narrows.flows.node_agent", str(plan_file), host]
                job.start(host, argv, env=os.environ, log_file=self._agent_log(host), cwd=self._cwd)
        except BaseException:
            job.stop(0.0)
            raise
        return job

    def _agent_log(self, host: str) -> Path:
        return self._log_dir / host / "agent.log"

    def poll(self) -> int | None:
        """0 when all agents ended well, the first bad exit code as soon as there is one, else None."""
        if self._result:
            return self._result.returncode
        exits = self._job.exits()
        bad = [code for code in exits.values() if code != 0]
        if bad:
            return bad[0]
        return 0 if len(exits) == len(self._plan.hosts) else None

    def logs(self) -> tuple[Path, ...]:
        """The files under the plan's log folder."""
        return tuple(sorted(path for path in self._log_dir.rglob("*") if path.is_file()))

    def cancel(self) -> None:
        """Leaves no process of the job."""
        self._job.stop(self._grace_s)

    def result(self, timeout_s: float | None = None, *, cancelled: Callable[[], bool] | None = None) -> LaunchResult:
        """How the job ended. Raises a ``StoppedLaunchError`` when it had to be stopped; nothing of it is left."""
        if self._result:
            return self._result
        limits = self._limits(timeout_s, cancelled)
        started = time.monotonic()
        show = self._lines.show if self._lines else None
        ending = supervise(self._job, limits, show)
        if ending is Ending.EXITED and self._port_clashed():
            self._start_again()
            ending = supervise(self._job, limits, show)
        if self._lines:
            self._lines.show(last=True)
        result = self._outcome(ending, time.monotonic() - started)
        if ending in _STOPPED:
            kind, words = _STOPPED[ending]
            text = words.format(
                seconds=result.seconds, timeout_s=limits.timeout_s or 0, silence_s=limits.silence_s or 0
            )
            raise kind(f"{self._plan.name} on {self._places()} {text} (logs: {self._log_dir})", result)
        self._result = result
        return result

    def _start_again(self) -> None:
        for host, _ in self._plan.hosts:  # what the first try said must not be read as the second's
            self._agent_log(host).rename(self._agent_log(host).with_name("agent.port-clash.log"))
        self._job = self._start()

    def _limits(self, timeout_s: float | None, cancelled: Callable[[], bool] | None) -> Limits:
        return Limits(
            timeout_s=timeout_s if timeout_s is not None else self._plan.timeout_s,
            silence_s=self._plan.silence_s,
            grace_s=self._grace_s,
            watch=(self._log_dir, *map(Path, self._plan.watch)),
            cancelled=cancelled,
        )

    def _places(self) -> str:
        return ", ".join(host for host, _ in self._plan.hosts)

    def _port_clashed(self) -> bool:
        first, _ = self._plan.hosts[0]
        failed = self._job.own_exits.get(first, 0) != 0
        return failed and not self._plan.master_port and _CLASH in tail_text(self._agent_log(first)).lower()

    def _outcome(self, ending: Ending, seconds: float) -> LaunchResult:
        exits = self._job.own_exits if ending is Ending.EXITED else {}
        failures = read_failures(self._plan, {host: code for host, code in exits.items() if code != 0})
        code = failures[0].exit_code if failures else (0 if ending is Ending.EXITED else -1)
        return LaunchResult(
            name=self._plan.name,
            returncode=code,
            seconds=seconds,
            failures=failures,
            log_files=tuple(str(path) for path in self.logs()),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()


class _RankZero:
    """Hands on what rank 0 prints: its standard output, then its standard error, as they grow."""

    def __init__(self, plan: LaunchPlan, on_line: LineSink) -> None:
        self._folder = Path(plan.log_dir) / plan.hosts[0][0]
        self._on_line = on_line
        self._tails: dict[Path, LineTail] = {}

    def show(self, *, last: bool = False) -> None:
        for path in sorted(self._folder.glob("*/attempt_0/0/std*.log"), reverse=True):
            tail = self._tails.setdefault(path, LineTail(path))
            for line in tail.lines(last=last):
                self._on_line(line)


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listened on a moment ago."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def share_gpus(plan: LaunchPlan, inherited: Mapping[str, str], num_gpus: int) -> dict[str, dict[str, str]]:
    """``plan.host_env`` with each node's own GPUs, where this machine has one for every rank of several nodes.

    Every torchrun counts its local ranks from 0, so two nodes on one machine would both take the first GPU.
    """
    own = {host: dict(env) for host, env in plan.host_env.items()}
    key = "CUDA_VISIBLE_DEVICES"
    given = plan.env.get(key, inherited.get(key))
    devices = given.split(",") if given else [str(index) for index in range(num_gpus)]
    if len(plan.hosts) > 1 and plan.world_size <= len(devices):
        for host, ranks in plan.hosts:
            own.setdefault(host, {}).setdefault(key, ",".join(devices[rank] for rank in ranks))
    return own


def _num_gpus() -> int:
    return len(list(Path("/dev").glob("nvidia[0-9]*")))
