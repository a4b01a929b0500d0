"""Hooks into what surrounds a step's compute: the process group, the data loader, checkpoints, garbage collection."""

from __future__ import annotations

import functools
import gc
import threading
import time
from typing import TYPE_CHECKING, Any

from narrows.instruments.loops import Loop, loop_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from narrows.instruments.session import Session

_now = time.monotonic_ns
_here = threading.get_ident

SHORTEST_GC_NS = 50_000


def parts(session: Session) -> dict[str, Callable[[], None]]:
    """The hooks by the name under which a failure of one is reported."""
    loop = loop_of(session)
    return {
        "process group": lambda: _hook_process_group(loop),
        "data loader": lambda: _hook_data_loader(loop),
        "checkpoint": lambda: _hook_save(loop),
        "garbage collection": lambda: gc.callbacks.append(_gc_callback(loop)),
    }


def _hook_process_group(loop: Loop) -> None:
    """Recording starts when the process joins its group, before the first collective."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    from torch.distributed import distributed_c10d as c10d

    original = c10d.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        loop.session.recorder()
        return result

    c10d.init_process_group = init_process_group
    dist.init_process_group = init_process_group


def _hook_data_loader(loop: Loop) -> None:
    from torch.utils.data import DataLoader
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    _span_method(loop, _BaseDataLoaderIter, "__next__", count=True)
    _span_method(loop, DataLoader, "__iter__", count=False)


def _span_method(loop: Loop, kind: Any, name: str, *, count: bool) -> None:
    """The outermost call of this method is an ``input`` span; what it returns is counted as a batch if asked."""
    original = getattr(kind, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = None if loop.input_depth else loop.recorder()
        if recorder is None:
            return original(self, *args, **kwargs)
        loop.input_depth += 1
        begin_ns = _now()
        try:
            result = original(self, *args, **kwargs)
        finally:
            loop.input_depth -= 1
            recorder.add_span("input", begin_ns, _now())
        if count:
            loop.window.samples += batch_size(result)
        return result

    setattr(kind, name, method)


def batch_size(batch: Any) -> int:
    """The first dimension of the first tensor in a batch; 0 where there is none."""
    for _ in range(4):  # a tensor in a dict in a tuple, but no search through unusual structures
        if isinstance(batch, dict):
            batch = next(iter(batch.values()), None)
        elif isinstance(batch, (list, tuple)):
            batch = batch[0] if batch else None
        else:
            break
    shape = getattr(batch, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) else 0


def _hook_save(loop: Loop) -> None:
    import torch

    saved = _checkpointing(loop, torch.save)
    torch.save = saved
    torch.serialization.save = saved


def hook_distributed_checkpoint(session: Session) -> None:
    """Saves of torch.distributed.checkpoint are checkpoint spans: of an asynchronous save, the part that blocks."""
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint import state_dict_saver

    loop = loop_of(session)
    for name in ("save", "async_save"):
        replacement = _checkpointing(loop, getattr(state_dict_saver, name))
        setattr(state_dict_saver, name, replacement)
        setattr(checkpoint, name, replacement)


def _checkpointing(loop: Loop, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        recorder = None if loop.checkpoint_depth else loop.recorder()
        if recorder is None:
            return original(*args, **kwargs)
        loop.checkpoint_depth += 1
        begin_ns = _now()
        try:
            return original(*args, **kwargs)
        finally:
            loop.checkpoint_depth -= 1
            recorder.add_span("checkpoint", begin_ns, _now())

    return save


def _gc_callback(loop: Loop) -> Callable[[str, dict[str, int]], None]:
    """Collections of the training thread that take long enough to matter are ``gc`` spans."""
    begun_ns = 0

    def callback(phase: str, info: dict[str, int]) -> None:  # noqa: ARG001  # Python's signature
        nonlocal begun_ns
        if phase == "start":
            begun_ns = _now()
            return
        end_ns = _now()
        if end_ns - begun_ns < SHORTEST_GC_NS or _here() != loop.session.thread:
            return
        recorder = loop.session.running()
        if recorder is not None:
            recorder.add_span("gc", begun_ns, end_ns)
            loop.window.gc_ns += end_ns - begun_ns

    return callback
