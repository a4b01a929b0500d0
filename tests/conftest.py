"""What tests in several folders share: recorded runs of both arms, taking turns, and one Prefect server."""

from __future__ import annotations

import contextvars
import json
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from narrows.flows.server import ServerHandle

FOUR_RANKS = ("n0", "n0", "n1", "n1")
MS = 1_000_000
NAMES = ("input", "forward", "wait", "optimizer")


def pytest_configure() -> None:
    """Signals that a background shell or nohup had ignored would stay ignored in all that tests start and signal."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for signum in (signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)


def _steady(compute_ms: float) -> Callable[[int, int], float]:
    return lambda _rank, _step: compute_ms


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes name no test: what was packed a second ago has another name, and the workers must agree on all of them."""
    return argname if isinstance(val, bytes) else None


@dataclass(kw_only=True)
class RecordedArm:
    """A run of data-parallel steps: input, forward, one blocking all-reduce, optimizer. Times in ms by (rank, step)."""

    hosts: tuple[str, ...] = FOUR_RANKS
    compute: Callable[[int, int], float] = field(default_factory=lambda: _steady(8.0))
    service: Callable[[int, int], float] = field(default_factory=lambda: _steady(2.0))
    read: Callable[[int, int], float] = field(default_factory=lambda: _steady(0.5))
    pairs: int = 4
    steps: int = 12
    useful: dict[str, float] = field(default_factory=lambda: {"valid_tokens": 4096.0, "samples": 4.0})
    config: dict[str, Any] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    numbered: bool = True
    began_ns: int = 1_000_000_000

    def write(self, path: Path, *, arm: str = "healthy", turn: int = 0, segments: dict[int, int] | None = None) -> Path:
        """The run directory at ``path``; ``turn`` 0 or 1 says which half of every pair's time is its own.

        ``segments`` gives the pair of each segment instead, by its number, which is also its place in time.
        """
        ranks = range(len(self.hosts))
        steps: dict[int, list[dict[str, Any]]] = {rank: [] for rank in ranks}
        calls: dict[int, list[dict[str, Any]]] = {rank: [] for rank in ranks}
        for segment, pair in (segments or {2 * pair + turn: pair for pair in range(self.pairs)}).items():
            now = self.began_ns + segment * self.steps * 200 * MS
            for place in range(self.steps):
                now = self._step(steps, calls, now, (segment, pair), segment * self.steps + place)
        self._write_files(path, arm, steps, calls)
        return path

    def _step(self, steps: Any, calls: Any, now: int, place: tuple[int, int], step: int) -> int:
        ranks = range(len(self.hosts))
        ready = {rank: now + round((self.read(rank, step) + self.compute(rank, step)) * MS) for rank in ranks}
        done = max(ready.values()) + round(max(self.service(rank, step) for rank in ranks) * MS)
        end = done + MS
        labels = {"segment": place[0], "pair": place[1]} if self.numbered else {}
        for rank in ranks:
            loaded = round(self.read(rank, step) * MS)
            call = {"group": "dp", "seq": step, "op": "all_reduce", "payload_bytes": 1024, "step": step}
            own_segment = {"segment": place[0]} if self.numbered else {}
            calls[rank].append(call | own_segment | {"enter_ns": ready[rank], "end_ns": done})
            marks = (0, loaded, ready[rank] - now, done - now, end - now)
            spans = [[name, marks[at], marks[at + 1]] for at, name in enumerate(NAMES)]
            steps[rank].append(
                {"step": step, "start_ns": now, "end_ns": end, "step_us": (end - now) / 1e3, "spans_ns": spans,
                 "useful": self.useful, "loss": 2.0, **labels}
            )  # fmt: skip
        return end

    def _write_files(self, path: Path, arm: str, steps: Any, calls: Any) -> None:
        names = dict.fromkeys(self.hosts)
        placed = [
            {"rank": r, "local_rank": 0, "host": h, "node_rank": list(names).index(h)} for r, h in enumerate(self.hosts)
        ]
        manifest = {
            "schema": 1, "kind": "manifest", "run": path.name, "arm": arm, "launch": "launch-1", "device": "emulated",
            "emulated": True, "config": self.config, "hosts": {host: {"boot_id": "boot-a"} for host in names},
            "placement": placed, "groups": {"dp": list(range(len(self.hosts)))},
        }  # fmt: skip
        path.mkdir(parents=True, exist_ok=True)
        (path / "manifest.json").write_text(json.dumps(manifest | self.manifest))
        for rank, host in enumerate(self.hosts):
            folder = path / "ranks" / f"{rank:05d}"
            folder.mkdir(parents=True)
            (folder / "rank.json").write_text(json.dumps({"schema": 1, "kind": "rank", "rank": rank, "host": host}))
            group = [{"group": "dp", "ranks": list(range(len(self.hosts)))}]
            clock = [{"monotonic_ns": at * MS, "unix_ns": 10**18 + at * MS} for at in range(3)]
            for kind, lines in {"steps": steps[rank], "collectives": group + calls[rank], "clock": clock}.items():
                header = {"schema": 1, "kind": kind, "rank": rank, "host": host}
                (folder / f"{kind}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in [header, *lines]))


@pytest.fixture(scope="session")
def recorded_arm() -> type[RecordedArm]:
    return RecordedArm


@pytest.fixture(scope="session")
def record_pair() -> Callable[..., tuple[Path, Path]]:
    """Writes ``runs/healthy`` and ``runs/regressed`` under a folder; by default every rank computes 3 ms longer."""

    def write(
        folder: Path, healthy: RecordedArm | None = None, regressed: RecordedArm | None = None
    ) -> tuple[Path, Path]:
        before = healthy or RecordedArm()
        after = regressed or RecordedArm(compute=lambda _rank, step: 11.0 + 0.002 * (step // 12))
        runs = folder / "runs"
        return before.write(runs / "healthy"), after.write(runs / "regressed", arm="regressed", turn=1)

    return write


@pytest.fixture(scope="session")
def narrows_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerHandle]:
    """One Prefect server for all the tests that need one, with a home of its own and nothing left at the end."""
    from narrows.flows.server import connected

    home = tmp_path_factory.mktemp("narrows-home")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PREFECT_API_URL", raising=False)
        with connected(home) as handle:
            from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

            # The heartbeat's thread sleeps a second at the end of every flow run.
            with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
                yield handle


Background = Callable[[Callable[[], None]], threading.Thread]


@pytest.fixture
def in_background() -> Iterator[Background]:
    """Runs functions beside the test, with its Prefect settings; what they raise fails the test."""
    threads: list[threading.Thread] = []
    errors: list[BaseException] = []

    def start(function: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                function()
            except BaseException as error:  # noqa: BLE001  # handed to the test's own thread below
                errors.append(error)

        thread = threading.Thread(target=contextvars.copy_context().run, args=(guarded,), daemon=True)
        threads.append(thread)
        thread.start()
        return thread

    yield start
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
