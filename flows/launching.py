"""What a launcher is given, what it gives back, and the errors that say why a job is not what was asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from narrows.inquiry.errors import LaunchError

PLAN_SCHEMA = 1
OWN_VARIABLES = ("NARROWS_HOST", "TORCHELASTIC_ERROR_FILE")  # set for each node by its agent
_KEYS = {
    "schema", "kind", "name", "hosts", "argv", "env", "host_env", "timeout_s", "silence_s", "log_dir",
    "watch", "master_addr", "master_port",
}  # fmt: skip

LineSink = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """One job: which ranks on which hosts run what. Ranks are 0..n-1, host after host, in the order of node ranks.

    ``argv`` is what torchrun is given after its own options: a script or ``-m module``, and its arguments.
    ``silence_s`` is the longest time without output and without growth of a file in ``log_dir`` or ``watch``.
    """

    name: str
    hosts: tuple[tuple[str, tuple[int, ...]], ...]
    argv: tuple[str, ...]
    log_dir: str
    env: Mapping[str, str] = field(default_factory=dict)
    host_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    timeout_s: float | None = None
    silence_s: float | None = None
    watch: tuple[str, ...] = ()
    master_addr: str = "127.0.0.1"
    master_port: int = 0

    def __post_init__(self) -> None:
        _require(bool(self.name), "name is empty; name the job")
        _require(bool(self.argv), f"plan {self.name}: argv is empty; give a script or -m module")
        _require(Path(self.log_dir).is_absolute(), f"plan {self.name}: log_dir {self.log_dir!r} must be absolute")
        _check_hosts(self.name, self.hosts)
        for label, value in (("timeout_s", self.timeout_s), ("silence_s", self.silence_s)):
            _require(value is None or value > 0, f"plan {self.name}: {label} is {value}; it must be positive")
        _require(0 <= self.master_port < 65536, f"plan {self.name}: master_port {self.master_port} is no port")
        unknown = set(self.host_env) - {host for host, _ in self.hosts}
        _require(not unknown, f"plan {self.name}: host_env names {sorted(unknown)}, which are not among the hosts")
        for env in (self.env, *self.host_env.values()):
            _check_env(self.name, env)

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return sum(len(ranks) for _, ranks in self.hosts)

    def host_of(self, rank: int) -> str:
        """The host that ``rank`` runs on. Raises ``ValueError`` for a rank that the plan does not have."""
        for host, ranks in self.hosts:
            if rank in ranks:
                return host
        raise ValueError(f"plan {self.name} has ranks 0 to {self.world_size - 1}, not {rank}")

    def to_json(self) -> str:
        """The plan as the text that node agents read."""
        return json.dumps(
            {
                "schema": PLAN_SCHEMA,
                "kind": "launch",
                "name": self.name,
                "hosts": [{"host": host, "ranks": list(ranks)} for host, ranks in self.hosts],
                "argv": list(self.argv),
                "env": dict(self.env),
                "host_env": {host: dict(env) for host, env in self.host_env.items()},
                "timeout_s": self.timeout_s,
                "silence_s": self.silence_s,
                "log_dir": self.log_dir,
                "watch": list(self.watch),
                "master_addr": self.master_addr,
                "master_port": self.master_port,
            },
            indent=1,
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The plan that ``to_json`` wrote. Raises ``ValueError`` naming what is missing, unknown or wrong."""
        raw = json.loads(text)
        _require(isinstance(raw, dict) and raw.get("kind") == "launch", "not a launch plan: kind must be 'launch'")
        _require(raw.get("schema") == PLAN_SCHEMA, f"launch plan schema {raw.get('schema')!r}; expected {PLAN_SCHEMA}")
        _require(set(raw) <= _KEYS, f"launch plan has unknown keys {sorted(set(raw) - _KEYS)}")
        missing = {"name", "hosts", "argv", "log_dir"} - set(raw)
        _require(not missing, f"launch plan lacks {sorted(missing)}")
        given: dict[str, Any] = {key: value for key, value in raw.items() if key not in ("schema", "kind")}
        try:
            given["hosts"] = tuple((str(entry["host"]), tuple(entry["ranks"])) for entry in raw["hosts"])
        except (KeyError, TypeError) as error:
            raise ValueError("launch plan hosts must be a list of {'host': name, 'ranks': [numbers]}") from error
        return cls(**{**given, "argv": tuple(raw["argv"]), "watch": tuple(raw.get("watch", ()))})


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)


def _check_hosts(name: str, hosts: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
    _require(bool(hosts), f"plan {name}: hosts is empty; name at least one host with its ranks")
    names = [host for host, _ in hosts]
    _require(len(set(names)) == len(names), f"plan {name}: host names repeat in {names}")
    for host, ranks in hosts:
        _require(bool(host) and "/" not in host, f"plan {name}: host name {host!r} is empty or holds a slash")
        _require(bool(ranks), f"plan {name}: host {host} has no ranks; leave it out of the plan")
    flat = [rank for _, ranks in hosts for rank in ranks]
    _require(
        flat == list(range(len(flat))),
        f"plan {name}: ranks over the hosts are {flat}; torchrun numbers them 0 to {len(flat) - 1} in that order",
    )


def _check_env(name: str, env: Mapping[str, str]) -> None:
    for key, value in env.items():
        _require(isinstance(value, str), f"plan {name}: env {key} is {value!r}; it must be text")
        _require(key not in OWN_VARIABLES, f"plan {name}: env {key} is set by the node agent, not by a plan")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """One process that ended badly; ``rank`` is absent when the node's agent itself did."""

    host: str
    exit_code: int
    message: str
    log_path: str
    rank: int | None = None
    error_file: str | None = None
    unix_s: float | None = None

    def sentence(self) -> str:
        """What happened, in one line."""
        who = f"rank {self.rank} on {self.host}" if self.rank is not None else f"the agent on {self.host}"
        return f"{who} ended with exit code {self.exit_code}: {self.message} (log: {self.log_path})"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchResult:
    """A job that is over. ``failures`` has the first one first; ``log_files`` are all that the job wrote."""

    name: str
    returncode: int
    seconds: float
    failures: tuple[RankFailure, ...] = ()
    log_files: tuple[str, ...] = ()

    def check(self) -> Self:
        """This result, if the job succeeded. Raises ``LaunchFailedError`` naming the first failure."""
        if self.returncode != 0:
            raise LaunchFailedError(self)
        return self


class StoppedLaunchError(LaunchError):
    """A job was stopped before its end; ``result`` holds what there is of it."""

    def __init__(self, message: str, result: LaunchResult) -> None:
        super().__init__(message)
        self.result = result


class LaunchFailedError(StoppedLaunchError):
    """A process of the job ended badly."""

    def __init__(self, result: LaunchResult) -> None:
        first = result.failures[0].sentence() if result.failures else f"exit code {result.returncode}"
        others = len(result.failures) - 1
        more = f"; {others} more failed after it" if others > 0 else ""
        super().__init__(f"{result.name}: {first}{more}", result)


class LaunchTimeoutError(StoppedLaunchError):
    """The job ran for longer than it was given."""


class LaunchSilenceError(StoppedLaunchError):
    """The job gave no sign of life for longer than it may: most likely it hangs."""


class LaunchCancelledError(StoppedLaunchError):
    """Somebody asked for the job to be stopped."""


class Handle(Protocol):
    """A submitted job. ``result`` or ``cancel`` must be called, or the ``with`` block left, to be rid of it."""

    def poll(self) -> int | None:
        """The exit code of the job, or None while it runs."""

    def logs(self) -> tuple[Path, ...]:
        """The files that the job has written so far."""

    def cancel(self) -> None:
        """Leaves no process of the job."""

    def result(self, timeout_s: float | None = None, *, cancelled: Callable[[], bool] | None = None) -> LaunchResult:
        """How the job ended, whatever its exit code. Raises a ``StoppedLaunchError`` when it had to be stopped."""

    def __enter__(self) -> Self:
        """The handle itself."""

    def __exit__(self, *details: object) -> None:
        """As ``cancel``."""


class Launcher(Protocol):
    """A place to run jobs."""

    def submit(self, plan: LaunchPlan, *, on_line: LineSink | None = None) -> Handle:
        """A handle to the job, started. ``on_line`` is given rank 0's output line by line during ``result``."""


def launch(
    launcher: Launcher,
    plan: LaunchPlan,
    *,
    on_line: LineSink | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> LaunchResult:
    """The result of a job that succeeded, with nothing of it left running in any case. Raises ``LaunchError``."""
    with launcher.submit(plan, on_line=on_line) as handle:
        return handle.result(cancelled=cancelled).check()
