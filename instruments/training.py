"""Hooks into forward, backward and optimizer: what a step's compute is, and where the step ends."""

from __future__ import annotations

import functools
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from narrows.instruments import devices
from narrows.instruments.guard import HOOK_ERRORS, report_once
from narrows.instruments.loops import Loop, Window, loop_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from narrows.instruments.recorder import Recorder
    from narrows.instruments.session import Session

_now = time.monotonic_ns
_here = threading.get_ident

WARMUP_STEPS = 2
"""The first steps build optimizer state, gradient buckets and shards; they are marked as warm-up."""


def parts(session: Session) -> dict[str, Callable[[], None]]:
    """The hooks by the name under which a failure of one is reported."""
    loop = loop_of(session)
    return {
        "forward": lambda: _hook_modules(loop),
        "backward": lambda: _hook_backward(loop),
        "optimizer": lambda: _hook_optimizers(loop),
        "gradient clipping": lambda: _hook_clipping(loop),
    }


def _hook_modules(loop: Loop) -> None:
    """Replaces ``Module.__call__``: calls inside a running one pass through at the cost of one more frame."""
    from torch.nn import Module

    original = Module.__call__

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807  # it replaces the method of that name
        if loop.window.busy or _here() != loop.session.thread or devices.is_compiling():
            return original(self, *args, **kwargs)
        return _outermost(loop, original, self, args, kwargs)

    Module.__call__ = __call__  # type: ignore[method-assign]  # put in once, before the script defines anything


def _outermost(loop: Loop, original: Callable[..., Any], module: Any, args: Any, kwargs: Any) -> Any:
    recorder = loop.recorder()
    if recorder is None:
        return original(module, *args, **kwargs)
    loop.window.busy = True
    begin_ns = _now()
    try:
        return original(module, *args, **kwargs)
    finally:
        end_ns = _now()
        loop.window.busy = False
        _forward_ended(loop, recorder, module, begin_ns, end_ns)


def _forward_ended(loop: Loop, recorder: Recorder, module: Any, begin_ns: int, end_ns: int) -> None:
    try:
        name = _kind_of_forward(loop, module)
        recorder.add_span(name, begin_ns, end_ns)
        if name == "forward":
            loop.window.loss_from_ns = end_ns
    except HOOK_ERRORS as error:
        report_once("forward", error)


def _kind_of_forward(loop: Loop, module: Any) -> str:
    """``loss`` for torch's loss modules, ``eval`` for a trained model that runs without gradients, else ``forward``.

    A model that never ran with gradients (a frozen teacher) is part of the step: its time is compute.
    """
    import torch

    if isinstance(module, torch.nn.modules.loss._Loss):
        return "loss"
    if torch.is_grad_enabled():
        loop.roots.add(module)
        return "forward"
    known = module in loop.roots or any(getattr(root, "module", None) is module for root in loop.roots)
    return "eval" if known and not module.training else "forward"


def _hook_backward(loop: Loop) -> None:
    """``Tensor.backward`` calls ``torch.autograd.backward`` by that name, so one replacement sees both."""
    import torch

    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        recorder = None if loop.window.busy or devices.is_compiling() else loop.recorder()
        if recorder is None:
            return original(*args, **kwargs)
        window = loop.window
        window.busy = True
        window.last_bucket_ns = None
        begin_ns = _now()
        try:
            return original(*args, **kwargs)
        finally:
            end_ns = _now()
            window.busy = False
            _backward_ended(loop, recorder, begin_ns, end_ns)
            _note_loss(window, args, kwargs)

    torch.autograd.backward = backward


def _backward_ended(loop: Loop, recorder: Recorder, begin_ns: int, end_ns: int) -> None:
    """The gap since the forward is the ``loss`` span (inferred); after the last bucket backward only waits."""
    window = loop.window
    if window.loss_from_ns is not None:
        recorder.add_span("loss", window.loss_from_ns, begin_ns)
        window.loss_from_ns = None
    recorder.add_span("backward", begin_ns, end_ns)
    if window.last_bucket_ns is not None:
        recorder.waited(window.last_bucket_ns, end_ns)
        window.last_bucket_ns = None


def _note_loss(window: Window, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A loss on the CPU is read; one on a device is not, because reading it would make the host wait."""
    try:
        loss = args[0] if args else kwargs.get("tensors")
        if getattr(loss, "numel", lambda: 0)() == 1 and loss.device.type == "cpu":  # type: ignore[union-attr]  # duck
            window.losses.append(float(loss.detach()))  # type: ignore[union-attr]  # it has numel: a tensor
    except HOOK_ERRORS as error:
        report_once("loss", error)


def _hook_optimizers(loop: Loop) -> None:
    from torch.nn import Module
    from torch.optim import Optimizer
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001  # torch's signature
        if _here() == loop.session.thread:
            loop.optimizers_ns[id(optimizer)] = _now()

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001  # torch's signature
        try:
            _optimizer_stepped(loop, optimizer)
        except HOOK_ERRORS as error:
            report_once("optimizer", error)

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)
    _span_compute(loop, Optimizer, "zero_grad", "optimizer")
    _span_compute(loop, Module, "zero_grad", "optimizer")


def _optimizer_stepped(loop: Loop, optimizer: Any) -> None:
    end_ns = _now()
    begin_ns = loop.optimizers_ns.pop(id(optimizer), None)
    recorder = loop.recorder()
    if recorder is None:
        return
    if begin_ns is not None:
        recorder.add_span("optimizer", begin_ns, end_ns)
    if _ends_step(loop, recorder, optimizer):
        _end_step(loop, recorder)


def _ends_step(loop: Loop, recorder: Recorder, optimizer: Any) -> bool:
    """The first optimizer that stepped ends the step; when it is gone, the next one that steps."""
    first = None if loop.boundary is None else loop.boundary()
    if first is None:
        loop.boundary = weakref.ref(optimizer)
        return True
    if first is not optimizer and not recorder.noted("several_optimizers"):
        recorder.event("several_optimizers", f"a step ends with the step of {type(first).__name__}, the first one seen")
    return first is optimizer


def _end_step(loop: Loop, recorder: Recorder) -> None:
    window = loop.window
    recorder.step(
        useful={"samples": window.samples} if window.samples else None,
        loss=sum(window.losses) / len(window.losses) if window.losses else None,
        grad_norm=window.grad_norm,
        memory={"gc_us": window.gc_ns / 1000, **_device_memory()},
        warmup=recorder.steps_seen < WARMUP_STEPS,
    )
    loop.window = Window(busy=window.busy, last_bucket_ns=window.last_bucket_ns)


def _device_memory() -> dict[str, float]:
    """Peak bytes and allocator retries of the CUDA device, where one is in use."""
    cuda = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return {}
    stats = cuda.memory_stats_as_nested_dict()
    return {
        "peak_bytes": stats["allocated_bytes"]["all"]["peak"],
        "alloc_retries": stats["num_alloc_retries"],
    }


def _hook_clipping(loop: Loop) -> None:
    from torch.nn import utils
    from torch.nn.utils import clip_grad

    original = clip_grad.clip_grad_norm_

    @functools.wraps(original)
    def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
        recorder = None if devices.is_compiling() else loop.recorder()
        begin_ns = _now()
        norm = original(*args, **kwargs)
        if recorder is not None:
            recorder.add_span("optimizer", begin_ns, _now())
            _note_norm(loop.window, norm)
        return norm

    clip_grad.clip_grad_norm_ = clip_grad_norm_
    utils.clip_grad_norm_ = clip_grad_norm_


def _note_norm(window: Window, norm: Any) -> None:
    import torch

    if type(norm) is torch.Tensor and norm.device.type == "cpu":
        window.grad_norm = float(norm)


def _span_compute(loop: Loop, kind: Any, name: str, span: str) -> None:
    """A method of the training thread is a span, unless it runs inside a forward or a backward."""
    original = getattr(kind, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = None if loop.window.busy or devices.is_compiling() else loop.recorder()
        if recorder is None:
            return original(self, *args, **kwargs)
        begin_ns = _now()
        try:
            return original(self, *args, **kwargs)
        finally:
            recorder.add_span(span, begin_ns, _now())

    setattr(kind, name, method)
