"""The one thread of a recorder that touches files: it encodes what the training thread left, about twice a second."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from narrows.inquiry.errors import RunDirectoryError
from narrows.instruments.files import SCHEMA, LineFile, append_event, clock_pair, replace
from narrows.instruments.groups import groups
from narrows.instruments.manifest import complete_manifest, first_manifest, rank_facts
from narrows.instruments.records import CollectiveRecord, collective_line, step_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from narrows.instruments.recorder import Recorder

INTERVAL_S = 0.5
HEARTBEAT_S = 1.0
CLOCK_S = 5.0
CLOSE_S = 20.0
SHOWN_OPEN_COLLECTIVES = 16

_Item = TypeVar("_Item")


class Writer:
    """Owns the files of one rank. A disk that refuses is reported once; recording then goes on without files."""

    def __init__(self, recorder: Recorder) -> None:
        self.events: deque[dict[str, Any]] = deque()
        self.ticks: list[Callable[[], None]] = []
        self._recorder = recorder
        self._placement = recorder.facts.placement
        self._process_id = os.getpid()
        self._unread: list[CollectiveRecord] = []
        self._last_collective: dict[str, Any] | None = None
        self._groups: dict[str, list[int]] = {}
        self._next_heartbeat_s = 0.0
        self._next_clock_s = 0.0
        self._refused = False
        self._everybody_seen = self._placement.rank != 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._open_files()
        self._thread = threading.Thread(target=self._work, name=f"narrows-{self._placement.rank}", daemon=True)
        self._thread.start()

    # Called by the training thread.

    def drain(self) -> None:
        """All that was recorded so far is in the files."""
        with self._lock:
            self._write()

    def close(self) -> None:
        """The thread ended, the files are complete and closed. In a forked child nothing is written."""
        if os.getpid() != self._process_id:
            return
        self._stop.set()
        self._thread.join(CLOSE_S)
        with self._lock:
            self._write(last=True)
            self._beat("closed")
            self._guard(self._complete)
            for file in (self._steps, self._collectives, self._clock):
                file.close()

    # The thread's own.

    def _open_files(self) -> None:
        run, rank = self._recorder.run, self._placement.rank
        self._folder = run / "ranks" / f"{rank:05d}"
        try:
            moved = _move_aside(run, self._folder)
            self._folder.mkdir(parents=True)
            header = {"rank": rank, "host": self._placement.host}
            self._steps = LineFile(self._folder / "steps.jsonl", {"kind": "steps", **header, "clock": "monotonic_ns"})
            self._collectives = LineFile(self._folder / "collectives.jsonl", {"kind": "collectives", **header})
            self._clock = LineFile(self._folder / "clock.jsonl", {"kind": "clock", **header})
            replace(self._folder / "rank.json", rank_facts(self._recorder.facts, self._groups))
            if rank == 0:
                replace(run / "manifest.json", first_manifest(self._recorder.facts))
        except OSError as error:
            raise RunDirectoryError(
                f"{run}: cannot be written ({error}); a run directory must be on storage that every rank can write"
            ) from error
        if moved is not None:
            self._recorder_event("restarted", f"records of an earlier start were moved to {moved}")

    def _recorder_event(self, name: str, message: str) -> None:
        self.events.append({"event": name, "rank": self._placement.rank, "message": message})

    def _work(self) -> None:
        self._recorder.facts.gather()
        self._guard(self._publish)
        ticks, publish_at = 0, 2
        while not self._stop.wait(INTERVAL_S):
            with self._lock:
                self._write()
            ticks += 1
            if ticks == publish_at and not self._everybody_seen:
                publish_at *= 2  # ranks that start late, at ever rarer looks
                self._guard(self._publish)
            for tick in list(self.ticks):
                tick()

    def _write(self, last: bool = False) -> None:
        self._guard(self._write_steps)
        self._guard(lambda: self._write_collectives(last))
        self._guard(self._write_events)
        now_s = time.monotonic()
        if last or now_s >= self._next_clock_s:
            self._next_clock_s = now_s + CLOCK_S
            self._guard(lambda: self._clock.append([clock_pair()]))
        if now_s >= self._next_heartbeat_s:
            self._next_heartbeat_s = now_s + HEARTBEAT_S
            self._beat("running")

    def _write_steps(self) -> None:
        if lines := [step_line(record) for record in _taken(self._recorder._steps)]:
            self._steps.append(lines)

    def _write_collectives(self, last: bool) -> None:
        lines, unread = [], self._unread
        self._unread = []
        for record in [*unread, *_taken(self._recorder._collectives)]:
            if isinstance(record, str):
                lines.append(self._group_line(record))
            elif record.mark is None or record.mark.read(record) or last:
                lines.append(collective_line(record))
            else:
                self._unread.append(record)
        if last:
            lines += [collective_line(token.record) for token in list(self._recorder._issued)]
        if lines:
            self._last_collective = next((line for line in reversed(lines) if "op" in line), self._last_collective)
            self._collectives.append(lines)

    def _group_line(self, name: str) -> dict[str, Any]:
        ranks = list(groups.members.get(name, range(self._placement.world_size)))
        self._groups[name] = ranks
        replace(self._folder / "rank.json", rank_facts(self._recorder.facts, self._groups))
        return {"group": name, "ranks": ranks}

    def _write_events(self) -> None:
        for event in _taken(self.events):
            append_event(self._recorder.run, {**event, "host": self._placement.host})

    def _beat(self, state: str) -> None:
        recorder = self._recorder
        beat: dict[str, Any] = {
            "schema": SCHEMA,
            "kind": "heartbeat",
            "rank": self._placement.rank,
            "host": self._placement.host,
            "pid": self._process_id,
            "state": state,
            **clock_pair(),
            "step": recorder.steps_seen,
        }
        if recorder.segment is not None:
            beat["segment"] = recorder.segment
        open_now = [collective_line(token.record) for token in list(recorder._issued)]
        beat["open_collectives"] = open_now[:SHOWN_OPEN_COLLECTIVES]
        if self._last_collective is not None:
            beat["last_collective"] = self._last_collective
        self._guard(lambda: replace(self._folder / "heartbeat.json", beat))

    def _publish(self) -> None:
        """What was gathered in the background reaches the files: rank.json of every rank, the manifest of rank 0."""
        replace(self._folder / "rank.json", rank_facts(self._recorder.facts, self._groups))
        if self._placement.rank == 0:
            manifest = complete_manifest(self._recorder.run, self._recorder.facts)
            replace(self._recorder.run / "manifest.json", manifest)
            hosts = {place["host"] for place in manifest["placement"]}
            everybody = len(manifest["placement"]) >= self._placement.world_size
            self._everybody_seen = everybody and hosts == set(manifest["hosts"])

    def _complete(self) -> None:
        self._recorder.facts.finish()
        self._publish()

    def _guard(self, write: Callable[[], None]) -> None:
        """Runs ``write``; a disk that refuses must not stop training, so it is reported once on stderr."""
        try:
            write()
        except OSError as error:
            if not self._refused:
                self._refused = True
                print(f"narrows: {self._folder}: {error}; some records are lost", file=sys.stderr)


def _taken(queue: deque[_Item]) -> list[_Item]:
    """What was in the queue when this was called. The other end may append meanwhile."""
    return [queue.popleft() for _ in range(len(queue))]


def _move_aside(run: Path, folder: Path) -> Path | None:
    """Records of an earlier process of this rank go to ``attempts/N``: two lives never share a file."""
    if not folder.exists():
        return None
    for attempt in range(1000):
        place = run / "attempts" / str(attempt) / folder.name
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            folder.rename(place)
            return place
    raise FileExistsError(f"{run / 'attempts'} holds a thousand earlier starts")
