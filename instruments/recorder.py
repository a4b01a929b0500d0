"""The recorder: what rides along inside a training process. The step path appends to memory and does nothing else."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections import deque
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from narrows.inquiry.design import DELAY_VARIABLE
from narrows.instruments import failures
from narrows.instruments.groups import groups
from narrows.instruments.manifest import RunFacts
from narrows.instruments.placement import placement
from narrows.instruments.records import CollectiveRecord, Span, StepRecord
from narrows.instruments.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import TracebackType

_now = time.monotonic_ns

_NOT_A_BEGINNING = frozenset({"wait", "gc"})
"""Spans that also occur while a program sets itself up."""


class OpenSpan:
    """A span that has not ended. A step that ends inside it splits it in two, so that windows tile."""

    __slots__ = ("_recorder", "name", "start_ns")

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder = recorder
        self.name = name
        self.start_ns = 0

    def __enter__(self) -> OpenSpan:
        self._recorder._open_spans.append(self)
        self.start_ns = _now()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_ns = _now()
        recorder = self._recorder
        recorder._open_spans.remove(self)
        recorder._spans.append((self.name, self.start_ns, end_ns))


class Token:
    """An operation that was issued. ``end`` may come from any thread; the first one counts."""

    __slots__ = ("_recorder", "record")

    def __init__(self, recorder: Recorder, record: CollectiveRecord) -> None:
        self._recorder = recorder
        self.record = record

    def end(self, end_ns: int | None = None) -> None:
        """The operation completed on this rank, now or at ``end_ns`` (monotonic)."""
        stamp = _now() if end_ns is None else end_ns
        if self._recorder._issued.pop(self, False):
            self.record.end_ns = stamp
            self._recorder._collectives.append(self.record)


class Recorder:
    """Records one rank of one run. Made by ``start``; several may exist in a process, one for each arm.

    Step windows tile inside a segment: each begins where the one before ended. Times are monotonic ns.
    """

    def __init__(self, run: Path, facts: RunFacts) -> None:
        self.run = run
        self.facts = facts
        self.rank = facts.placement.rank
        self.steps_seen = 0
        self.segment: int | None = None
        self.pair: int | None = None
        self.automatic = False  # hooks of an unmodified script record into it
        self._delay_s = float(os.environ.get(DELAY_VARIABLE) or 0) / 1000
        self._noted: set[str] = set()
        self._thread = threading.get_ident()
        self._spans: list[Span] = []
        self._open_spans: list[OpenSpan] = []
        self._issued: dict[Token, bool] = {}
        self._known_groups: set[str] = set()
        self._steps: deque[StepRecord] = deque()
        self._collectives: deque[CollectiveRecord | str] = deque()
        self._window_ns = _now()
        self._first_window = True
        self._closed = False
        self._writer = Writer(self)

    # The step path: called by the training thread, at most a few microseconds each.

    def span(self, name: str) -> OpenSpan:
        """A context manager; what runs inside it is a span of that name in the current step."""
        return OpenSpan(self, name)

    def add_span(self, name: str, start_ns: int, end_ns: int) -> None:
        """A span that is already over. What lies before the current window is cut off."""
        self._spans.append((name, start_ns, end_ns))

    def begin(self, segment: int | None = None, pair: int | None = None) -> None:
        """A new segment starts now: the window opens here, and spans since the last step belong to no step.

        Without a number the segment is the next one, 0 for the first.
        """
        following = 0 if self.segment is None else self.segment + 1
        self.segment = following if segment is None else segment
        self.pair = pair
        self._spans = []
        self._first_window = False
        now = _now()
        for span in self._open_spans:
            span.start_ns = now
        self._window_ns = now

    def step(
        self,
        *,
        useful: Mapping[str, float] | None = None,
        loss: float | None = None,
        grad_norm: float | None = None,
        memory: Mapping[str, float] | None = None,
        warmup: bool = False,
        batch: int | None = None,
        end_ns: int | None = None,
    ) -> None:
        """The current step ends, now or at ``end_ns``, and the next begins at the same nanosecond.

        The first window opens at ``begin``; without one, at the first span, else when the recorder was started.
        """
        if self._delay_s and end_ns is None:  # asked for from outside, to see an effect of known size
            with self.span("delay"):
                time.sleep(self._delay_s)
        now = _now() if end_ns is None else end_ns
        spans, self._spans = self._spans, []
        if self._first_window:
            self._open_first_window(spans)
        for span in self._open_spans:
            spans.append((span.name, span.start_ns, now))
            span.start_ns = now
        self._steps.append(
            StepRecord(
                self.steps_seen, self.segment, self.pair, self._window_ns, now,
                spans, batch, useful, loss, grad_norm, memory, warmup,
            )
        )  # fmt: skip
        self.steps_seen += 1
        self._window_ns = now

    def enter(
        self, op: str, *, group: Any = None, payload_bytes: int | None = None, enter_ns: int | None = None
    ) -> Token:
        """A collective of ``group`` (a name, a process group, or None for the default one) is issued.

        ``payload_bytes`` is the whole buffer S: for all-gather and reduce-scatter the full array, not a shard.
        """
        name = groups.of(group)
        return self._issue(name, groups.next_sequence(name), op, payload_bytes, enter_ns)

    def enter_p2p(
        self, op: str, *, peer: int, group: Any = None, payload_bytes: int | None = None, enter_ns: int | None = None
    ) -> Token:
        """A ``send`` to, or a ``recv`` from, the global rank ``peer`` is issued.

        Its sequence counts the messages from one rank to the other in the group, so that the n-th send meets the
        n-th receive; collectives of the group are counted apart.
        """
        name = groups.of(group)
        sequence = groups.next_message(name, op, self.rank, peer)
        token = self._issue(name, sequence, op, payload_bytes, enter_ns)
        token.record.peer = peer
        token.record.p2p = True
        return token

    @contextmanager
    def collective(self, op: str, *, group: Any = None, payload_bytes: int | None = None) -> Iterator[Token]:
        """What runs inside is one blocking collective, and a ``wait`` span of this thread."""
        token = self.enter(op, group=group, payload_bytes=payload_bytes)
        try:
            yield token
        finally:
            now = _now()
            token.end(now)
            self.waited(token.record.enter_ns, now)

    def waited(self, start_ns: int, end_ns: int) -> None:
        """The training thread was blocked in a collective. Other threads' waits are not the rank's and are dropped."""
        if threading.get_ident() == self._thread:
            self._spans.append(("wait", start_ns, end_ns))

    # Which recorder the process records with.

    def activate(self) -> None:
        """Collectives and spans of this process go to this recorder from now on."""
        _process.current = self

    def deactivate(self) -> None:
        """Nothing goes to this recorder until it is activated again; what runs meanwhile is not recorded."""
        if _process.current is self:
            _process.current = None

    # The slow path.

    def event(self, name: str, message: str, **fields: Any) -> None:
        """One line is added to the run's ``events.jsonl``, by the writer."""
        self._writer.events.append({"event": name, "rank": self.rank, "message": message, **fields})

    def noted(self, name: str) -> bool:
        """Whether this was asked before about ``name``: for what is worth saying once."""
        if name in self._noted:
            return True
        self._noted.add(name)
        return False

    def on_tick(self, call: Callable[[], None]) -> None:
        """The writer's thread calls this about twice a second from now on."""
        self._writer.ticks.append(call)

    def flush(self) -> None:
        """All that was recorded before this call is in the files when it returns."""
        self._writer.drain()

    def close(self) -> None:
        """Everything is written and the manifest complete; recording after this is ignored. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self.deactivate()
        self._writer.close()
        _process.open.pop(self.run, None)

    @property
    def closed(self) -> bool:
        return self._closed

    def _issue(self, name: str, seq: int, op: str, payload_bytes: int | None, enter_ns: int | None) -> Token:
        if name not in self._known_groups:
            self._known_groups.add(name)
            self._collectives.append(name)
        record = CollectiveRecord(
            group=name,
            seq=seq,
            op=op,
            payload_bytes=payload_bytes,
            enter_ns=_now() if enter_ns is None else enter_ns,
            step=self.steps_seen,
            segment=self.segment,
        )
        token = Token(self, record)
        self._issued[token] = True
        return token

    def _open_first_window(self, spans: list[Span]) -> None:
        self._first_window = False
        starts = [start for name, start, _ in spans if name not in _NOT_A_BEGINNING]
        starts += [span.start_ns for span in self._open_spans]
        if starts:
            self._window_ns = max(self._window_ns, min(starts))


class _Process:
    """The recorders of this process."""

    def __init__(self) -> None:
        self.current: Recorder | None = None
        self.open: dict[Path, Recorder] = {}


_process = _Process()


def current() -> Recorder | None:
    """The recorder that this process records with, or None."""
    return _process.current


def start(
    run_dir: str | os.PathLike[str] | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    workload: Mapping[str, Any] | None = None,
    arm: str | None = None,
    program: str | None = None,
    launch: str | None = None,
    seed: int | None = None,
    device: str | None = None,
    groups: Mapping[str, Iterable[int]] | None = None,
) -> Recorder:
    """A recorder that is current, and a run directory with a manifest and this rank's files in it.

    The directory is ``run_dir`` or ``NARROWS_RUN_DIR``; rank, world and local rank are the launcher's.

    Raises ``ValueError`` where no directory is given or this process already records into it, and
    ``RunDirectoryError`` where it cannot be written.
    """
    run = _run_directory(run_dir)
    if run in _process.open and _process.open[run].automatic:
        return _hand_over(_process.open[run], config, workload, arm, seed)
    if run in _process.open:
        raise ValueError(f"{run}: this process already records into it; close that recorder, or take another directory")
    for name, ranks in (groups or {}).items():
        _declare(name, ranks)
    facts = RunFacts(
        placement=placement(),
        name=run.name,
        config=dict(config or {}),
        workload=dict(workload or {}),
        arm=arm,
        program=program or (sys.argv[0] if sys.argv else ""),
        launch=launch,
        seed=seed,
        device=device,
    )
    recorder = Recorder(run, facts)
    _process.open[run] = recorder
    failures.watch(open_recorders)
    recorder.activate()
    return recorder


def _hand_over(
    recorder: Recorder,
    config: Mapping[str, Any] | None,
    workload: Mapping[str, Any] | None,
    arm: str | None,
    seed: int | None,
) -> Recorder:
    """A script that records itself runs under ``narrows run``: it gets the recorder, the hooks let go of it."""
    recorder.automatic = False
    facts = recorder.facts
    facts.config.update(config or {})
    facts.workload.update(workload or {})
    facts.arm = arm if arm is not None else facts.arm
    facts.seed = seed if seed is not None else facts.seed
    recorder.activate()
    return recorder


def open_recorders() -> list[Recorder]:
    """The recorders of this process that are not closed."""
    return list(_process.open.values())


def _declare(name: str, ranks: Iterable[int]) -> None:
    groups.declare(name, ranks)


def _run_directory(run_dir: str | os.PathLike[str] | None) -> Path:
    chosen = run_dir if run_dir is not None else os.environ.get("NARROWS_RUN_DIR")
    if not chosen:
        raise ValueError("no run directory: pass one to start(), or set NARROWS_RUN_DIR")
    return Path(chosen).absolute()


def _close_all() -> None:
    for recorder in open_recorders():
        recorder.close()


def _forget_in_child() -> None:
    """A forked child (a data loader's worker) is not the rank: it must not write into the rank's files."""
    _process.current = None
    _process.open.clear()
    groups.forget()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_in_child)
