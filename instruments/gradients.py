"""Gradients of DistributedDataParallel: its C++ reducer communicates out of Python's sight, so a hook does it in sight.

The hook computes what the reducer computes by itself: gradients times 1/n, summed over the group. It is put in when a
model is wrapped; a hook that the user registers takes its place inside ours.
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from narrows.instruments.guard import HOOK_ERRORS, report_once
from narrows.instruments.loops import Loop, loop_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from narrows.instruments.session import Session

PART = "gradients of DistributedDataParallel"


@dataclass(slots=True)
class Hook:
    """The hook in force for one model, and its state. ``own`` until the user registers another."""

    call: Callable[[Any, Any], Any]
    state: Any
    own: bool = True


_hooks: weakref.WeakKeyDictionary[Any, Hook] = weakref.WeakKeyDictionary()
_join_works: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def parts(session: Session) -> dict[str, Callable[[], None]]:
    """The hooks of this module by the name under which a failure is reported."""
    return {PART: lambda: _hook_models(loop_of(session))}


def _hook_models(loop: Loop) -> None:
    import torch.distributed as dist

    if not dist.is_available():
        return
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel import DistributedDataParallel

    _hook_constructor(loop, DistributedDataParallel)
    _hook_registration(DistributedDataParallel)
    _keep_join_works(Join)


def _hook_constructor(loop: Loop, kind: Any) -> None:
    original = kind.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  # it replaces the method of that name
        original(self, *args, **kwargs)
        if loop.recorder() is not None:
            _put_in(loop, self)

    kind.__init__ = __init__


def _put_in(loop: Loop, model: Any) -> None:
    """Our hook is in the model's reducer, around the model's own averaging. Where it cannot be, that is reported."""
    from torch._C import _distributed_c10d

    try:
        if model._comm_hooks:  # torch registered one itself, for mixed precision; it calls torch.distributed in sight
            return
        if getattr(model, "_use_python_reducer", False) or model._delay_all_reduce_all_params:
            report_once(PART, "this model reduces its gradients by another way")
            return
        hook = Hook(call=functools.partial(_average, weakref.ref(model)), state=model.process_group)
        _distributed_c10d._register_comm_hook(model.reducer, None, _seen(loop, hook))
        _hooks[model] = hook
    except HOOK_ERRORS as error:
        report_once(PART, error)


def _seen(loop: Loop, hook: Hook) -> Callable[[Any, Any], Any]:
    """What the reducer calls. After the last bucket is launched the training thread only waits for all of them, where
    gradients are on the CPU; on a device it goes on, and its stream waits."""

    def narrows_hook(state: Any, bucket: Any) -> Any:  # noqa: ARG001  # torch's signature
        future = hook.call(hook.state, bucket)
        if bucket.is_last() and threading.get_ident() == loop.session.thread and not bucket.buffer().is_cuda:
            loop.window.last_bucket_ns = time.monotonic_ns()
        return future

    return narrows_hook


def _average(model_ref: weakref.ref[Any], group: Any, bucket: Any) -> Any:
    """A future of the bucket averaged over the group, by the reducer's own arithmetic: times 1/n, then summed."""
    import torch.distributed as dist

    buffer = bucket.buffer()
    members = _members(model_ref(), group)
    if buffer.is_sparse:
        buffer.div_(members)
    else:
        buffer.mul_(1.0 / members)
    return dist.all_reduce(buffer, group=group, async_op=True).get_future().then(lambda future: future.value()[0])


def _members(model: Any, group: Any) -> int:
    """What the reducer divides by: the size of the group, or inside ``join(divide_by_initial_world_size=False)`` the
    number of ranks that still have inputs, which the join context summed up at the forward."""
    size = int(group.size())
    if model is None or not model._join_config.enable or model._divide_by_initial_world_size:
        return size
    work = _join_works.get(model)
    if work is None:
        return size
    (counted,) = work.get_future().wait()
    return int(counted.item())


def _hook_registration(kind: Any) -> None:
    """A hook that the user registers takes the place of our averaging, inside our hook: a reducer takes only one."""
    register, register_builtin = kind.register_comm_hook, kind._register_builtin_comm_hook

    @functools.wraps(register)
    def register_comm_hook(self: Any, state: object, hook: Any) -> None:
        ours = _hooks.get(self)
        if ours is None or not ours.own:
            register(self, state, hook)  # torch's own error where a hook was registered already
            return
        self._check_comm_hook(hook)
        self.logger._set_comm_hook_name(hook.__qualname__)
        self._comm_hooks.append((hook, state))
        ours.call, ours.state, ours.own = hook, state, False

    @functools.wraps(register_builtin)
    def _register_builtin_comm_hook(self: Any, comm_hook_type: Any) -> None:
        ours = _hooks.get(self)
        if ours is None or not ours.own:
            register_builtin(self, comm_hook_type)
            return
        self.logger._set_comm_hook_name(str(comm_hook_type))
        ours.call, ours.state, ours.own = _builtin(comm_hook_type), self.process_group, False

    kind.register_comm_hook = register_comm_hook
    kind._register_builtin_comm_hook = _register_builtin_comm_hook


def _builtin(kind: Any) -> Callable[[Any, Any], Any]:
    """The Python form of one of torch's two built-in hooks."""
    from torch._C._distributed_c10d import BuiltinCommHookType
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    compressed: Callable[[Any, Any], Any] = default_hooks.fp16_compress_hook
    plain: Callable[[Any, Any], Any] = default_hooks.allreduce_hook
    return compressed if kind == BuiltinCommHookType.FP16_COMPRESS else plain


def _keep_join_works(join: Any) -> None:
    """The all-reduce by which a join context counts its ranks is kept for the divisor."""
    original = join.notify_join_context

    @functools.wraps(original)
    def notify_join_context(joinable: Any) -> Any:
        work = original(joinable)
        if work is not None and joinable in _hooks:
            _join_works[joinable] = work
        return work

    join.notify_join_context = staticmethod(notify_join_context)
