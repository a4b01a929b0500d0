"""Gradient buckets: which gradients travel together, and their all-reduce while backward goes on."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import torch

from narrows.experiments.places import Team
from narrows.experiments.timing import sharpen_timers, wait_until
from narrows.experiments.workload import SlowLink
from narrows.instruments import Recorder


def plan_buckets(sizes_bytes: Sequence[int], bucket_bytes: int) -> list[list[int]]:
    """Indices of the gradients in each bucket. Gradients keep their order, which is that of backward.

    A bucket closes before it would exceed `bucket_bytes`; a larger gradient travels alone.
    """
    buckets: list[list[int]] = []
    filled = 0
    for index, size in enumerate(sizes_bytes):
        if not buckets or filled + size > bucket_bytes:
            buckets.append([])
            filled = 0
        buckets[-1].append(index)
        filled += size
    return buckets


class BucketOrder:
    """Which buckets may be issued: every rank must issue them in the same order, however gradients become ready."""

    def __init__(self, num_buckets: int) -> None:
        self._ready = [False] * num_buckets
        self._issued = 0

    def mark(self, bucket: int) -> range:
        """The buckets that may be issued now that this one is ready."""
        self._ready[bucket] = True
        first = self._issued
        while self._issued < len(self._ready) and self._ready[self._issued]:
            self._issued += 1
        return range(first, self._issued)

    def rest(self) -> range:
        """The buckets not issued yet; none is ready afterwards, as at the start of a step."""
        left = range(self._issued, len(self._ready))
        self._ready = [False] * len(self._ready)
        self._issued = 0
        return left


class Lane:
    """Runs what it is given in order, on a daemon thread: a process may end while a peer never answers."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], None], Future[None]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def submit(self, job: Callable[[], None]) -> Future[None]:
        """The job's outcome, its RuntimeError included."""
        outcome: Future[None] = Future()
        self._jobs.put((job, outcome))
        return outcome

    def close(self) -> None:
        """Nothing is run after what was submitted."""
        self._jobs.put(None)

    def _serve(self) -> None:
        sharpen_timers()
        while (task := self._jobs.get()) is not None:
            job, outcome = task
            try:
                job()
            except RuntimeError as error:  # torch.distributed's errors are all of this kind
                outcome.set_exception(error)
            else:
                outcome.set_result(None)


class Reducer:
    """All-reduces the buckets of one arm in order, on a thread of its own, so that they overlap with backward.

    A collective's record starts when its bucket is issued and ends when its result is here: the real all-reduce,
    and after it what the modelled link adds. Buckets wait for each other as on one stream.
    """

    def __init__(self, team: Team, buffers: Sequence[torch.Tensor], link: SlowLink | None, recorder: Recorder) -> None:
        self._team = team
        self._buffers = buffers
        self._link = link
        self._recorder = recorder
        self._order = BucketOrder(len(buffers))
        self._pending: list[Future[None]] = []
        self._lane = Lane("narrows-reduce")

    def mark_ready(self, bucket: int) -> None:
        """This bucket's gradients are complete."""
        for index in self._order.mark(bucket):
            self._issue(index)

    def finish(self) -> None:
        """Every bucket is issued and reduced; blocked time is a `wait` span. Ready for the next step."""
        for index in self._order.rest():
            self._issue(index)
        begin = time.monotonic_ns()
        for reduced in self._pending:
            reduced.result()
        if self._pending:
            self._recorder.add_span("wait", begin, time.monotonic_ns())
        self._pending.clear()

    def close(self) -> None:
        self._lane.close()

    def _issue(self, bucket: int) -> None:
        if self._team.process_group is None:
            return
        buffer = self._buffers[bucket]
        if buffer.is_cuda:
            fence = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
            fence.record()
            self._pending.append(self._lane.submit(partial(self._reduce_cuda, buffer, fence)))
        else:
            end = self._enter(buffer)
            self._pending.append(self._lane.submit(partial(self._reduce, buffer, end)))

    def _enter(self, buffer: torch.Tensor) -> Callable[[], object]:
        payload_bytes = buffer.numel() * buffer.element_size()
        return self._recorder.enter("all_reduce", group=self._team.name, payload_bytes=payload_bytes).end

    def _reduce(self, buffer: torch.Tensor, end: Callable[[], object]) -> None:
        # The group's own method is called, not torch.distributed's: this record is the only one.
        self._team.process_group.allreduce([buffer]).wait()
        self._cross_link(buffer)
        end()

    def _reduce_cuda(self, buffer: torch.Tensor, fence: Any) -> None:
        """The gradients are there when the fence has passed, which is when this rank arrives."""
        torch.cuda.set_device(buffer.device)
        fence.synchronize()
        end = self._enter(buffer)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        with torch.cuda.stream(stream):
            self._team.process_group.allreduce([buffer]).wait()
            stream.synchronize()
        self._cross_link(buffer)
        end()

    def _cross_link(self, buffer: torch.Tensor) -> None:
        added_ns = self._team.link_ns(self._link, "all_reduce", buffer.numel() * buffer.element_size())
        if added_ns:
            wait_until(time.monotonic_ns() + added_ns)
