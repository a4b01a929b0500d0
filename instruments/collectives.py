"""torch.distributed, wrapped so that every collective of this process reaches the current recorder."""

from __future__ import annotations

import functools
import sys
import threading
import time
import weakref
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from narrows.instruments import devices
from narrows.instruments.groups import groups
from narrows.instruments.guard import HOOK_ERRORS, report_once
from narrows.instruments.operations import ENTRY_POINTS, Call, Operation, Parameters
from narrows.instruments.recorder import Token, current

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_now = time.monotonic_ns
PART = "collectives"
DESTROY_S = 0.05


class _Here(threading.local):
    """This thread's place: how deep inside a recorded operation it is, and what a coalescing block collects."""

    depth = 0
    collected: list[tuple[str, int | None]] | None = None


here = _Here()
pending: weakref.WeakKeyDictionary[Any, tuple[Token, ...]] = weakref.WeakKeyDictionary()
_replaced: dict[Any, Any] = {}


def name_group(group: Any, role: str) -> str:
    """A process group (None: the default one) is recorded under its role, say ``tp``, from now on.

    Returns the name given: the role, with a suffix where another group of this process has it already. Call it on
    every member rank, before the group's first collective.
    """
    return groups.name(group, role)


@contextmanager
def collective(group_name: str, op: str, payload_bytes: int | None = None) -> Iterator[Token | None]:
    """What runs inside is one blocking collective of the named group; without a recorder it is only counted."""
    recorder = current()
    if recorder is None:
        groups.next_sequence(group_name)
        yield None
        return
    with recorder.collective(op, group=group_name, payload_bytes=payload_bytes) as token:
        yield token


def wrap_collectives() -> None:
    """From now on every operation of torch.distributed in this process is recorded by the current recorder.

    Operations are recorded once, at the outermost call; arguments, results and errors stay as they are. Where no
    recorder is current they are only counted, so that sequence numbers agree between ranks whose recorders started
    at different moments. Call it on every rank before the first collective; calling it again has no effect.
    """
    import torch.distributed as dist

    if _replaced or not dist.is_available():
        return
    from torch.distributed import distributed_c10d as c10d

    from narrows.instruments import functional, point_to_point

    for entry, operation in ENTRY_POINTS.items():
        home = dist if entry == "_broadcast_coalesced" else c10d
        swap(home, entry, functools.partial(wrapped, operation))
    swap(c10d, "_coalescing_manager", _coalescing)
    swap(c10d, "destroy_process_group", _destroy)
    point_to_point.install(c10d)
    functional.install()
    _watch_work(c10d.Work)
    rebind()


def swap(home: ModuleType, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """``home.name`` becomes its wrapper. A name that this version of torch lacks is left out, and so is one whose
    signature cannot be read."""
    original = getattr(home, name, None)
    if original is None or original in _replaced:
        return
    try:
        replacement = wrap(original)
    except HOOK_ERRORS as error:
        report_once(f"{PART}: {name}", error)
        return
    _replaced[original] = replacement
    setattr(home, name, replacement)


def replacement_of(function: Any) -> Any:
    """The wrapper of a function that was replaced, or the function itself."""
    return _replaced.get(function, function)


def rebind() -> None:
    """Modules that took a function by name before it was replaced (``from torch.distributed import ...``) get the
    wrapper too: torch's own, and the running script."""
    for name, module in list(sys.modules.items()):
        if not (name.startswith("torch.distributed") or name == "__main__"):
            continue
        for attribute, value in list(vars(module).items()):
            if callable(value) and _is_replaced(value):
                setattr(module, attribute, _replaced[value])


def _is_replaced(value: Any) -> bool:
    try:
        return value in _replaced
    except TypeError:  # an unhashable callable is none of ours
        return False


def wrapped(operation: Operation, original: Callable[..., Any]) -> Callable[..., Any]:
    """``original`` with the same signature and results, recorded as ``operation`` when it is the outermost one."""
    parameters = _parameters(original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if here.depth or devices.is_compiling():
            if here.collected is not None:
                collect(operation, Call(parameters, args, kwargs))
            return original(*args, **kwargs)
        token = issue(operation, Call(parameters, args, kwargs))
        return run(token, original, args, kwargs, blocking=not parameters.get("async_op", args, kwargs))

    return call


def _parameters(function: Callable[..., Any]) -> Parameters:
    try:
        return Parameters(function)
    except ValueError:  # _broadcast_coalesced is C++: process_group, tensors, buffer_size, src
        return Parameters(lambda process_group, tensors, buffer_size=0, src=0: None)  # noqa: ARG005


def issue(operation: Operation, call: Call) -> Token | None:
    """A token for this call from the current recorder. None where there is none, and where the call cannot be read;
    the operation is counted all the same."""
    try:
        name = groups.of(call["group"] if call["process_group"] is None else call["process_group"])
        recorder = current()
        if recorder is None:
            groups.next_sequence(name)
            return None
        payload = operation.size(call, len(groups.members.get(name, ())))
        token = recorder.enter(operation.name, group=name, payload_bytes=payload)
        token.record.mark = devices.start_mark(call)
    except HOOK_ERRORS as error:
        report_once(PART, error)
        return None
    return token


def run(
    token: Token | None, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, blocking: bool
) -> Any:
    """The result of ``original``. Its token ends when the operation does: on return, or with the Work it returned.

    An operation that raises is left without an end: it did not complete on this rank.
    """
    here.depth += 1
    begin_ns = _now()
    completed = False
    try:
        result = original(*args, **kwargs)
        completed = True
    finally:
        here.depth -= 1
        end_ns = _now()
        if token is not None and blocking:
            token._recorder.waited(begin_ns, end_ns)
            if completed:
                finish(token, end_ns)
    if token is not None and not blocking:
        follow((token,), result)
    return result


def finish(token: Token, end_ns: int) -> None:
    """The operation is over for the host; on a device its end is read from the stream later."""
    if token.record.mark is not None:
        token.record.mark.stop()
    token.end(end_ns)


def follow(tokens: tuple[Token, ...], work: Any) -> None:
    """The tokens end when ``work`` completes, by its future where the backend has one, else when it is waited for."""
    if work is None:  # this rank is not in the group
        _finish_all(tokens)
        return
    try:
        pending[work] = tokens
        _watch_work(type(work))
        work.get_future().then(lambda _: _finish_all(tokens))
    except HOOK_ERRORS:
        return  # no futures in this backend: Work.wait ends the tokens


def _finish_all(tokens: tuple[Token, ...]) -> None:
    end_ns = _now()
    for token in tokens:
        finish(token, end_ns)


def _watch_work(kind: type) -> None:
    """``wait`` of this class ends the token of its operation, and its duration is a ``wait`` span."""
    original = kind.__dict__.get("wait")
    if original is None or getattr(original, "narrows", False):
        return
    original = kind.wait  # type: ignore[attr-defined]  # checked above

    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = current()
        if recorder is None or here.depth or devices.is_compiling():
            return original(self, *args, **kwargs)
        begin_ns = _now()
        here.depth += 1
        try:
            result = original(self, *args, **kwargs)
        finally:
            here.depth -= 1
            end_ns = _now()
            recorder.waited(begin_ns, end_ns)
        for token in pending.pop(self, ()):
            finish(token, end_ns)
        return result

    wait.narrows = True  # type: ignore[attr-defined]  # the mark that this class is done
    kind.wait = wait  # type: ignore[attr-defined]  # a method of the class, replaced once


def collect(operation: Operation, call: Call) -> None:
    """An operation inside a coalescing block is added to the block's one record."""
    assert here.collected is not None
    try:
        name = groups.of(call["group"])
        here.collected.append((operation.name, operation.size(call, len(groups.members.get(name, ())))))
    except HOOK_ERRORS as error:
        report_once(PART, error)


def _destroy(original: Callable[..., Any]) -> Callable[..., Any]:
    """Groups are destroyed a moment later, when gloo's threads have let go of finished operations.

    A gloo thread needs the interpreter's lock to free the last operation, and the destructor of the group holds that
    lock while it waits for the thread: torch 2.13 hangs so in 8 of 25 very short programs without any recording.
    """

    @functools.wraps(original)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        time.sleep(DESTROY_S)
        return original(*args, **kwargs)

    return destroy_process_group


def _coalescing(original: Callable[..., Any]) -> Callable[..., Any]:
    """The coalescing manager, recorded as one operation: issued at the end of the block, with all its bytes."""
    parameters = Parameters(original)

    @contextmanager
    @functools.wraps(original)
    def manager(*args: Any, **kwargs: Any) -> Iterator[Any]:
        if here.depth:
            with original(*args, **kwargs) as inner:
                yield inner
            return
        call = Call(parameters, args, kwargs)
        token: Token | None = None
        here.depth += 1
        here.collected = []
        try:
            with original(*args, **kwargs) as inner:
                yield inner
                token = _issue_collected(call)
        finally:
            here.depth -= 1
            here.collected = None
        if token is None:
            return
        if call["async_ops"]:
            follow((token,), inner.works[-1] if inner.works else None)
        else:
            end_ns = _now()
            token._recorder.waited(token.record.enter_ns, end_ns)
            finish(token, end_ns)

    return manager


def _issue_collected(call: Call) -> Token | None:
    collected = here.collected
    if not collected:
        return None
    sizes = [size for _, size in collected]
    total = None if None in sizes else sum(size for size in sizes if size is not None)
    return issue(Operation(name=collected[0][0], size=lambda *_: total), call)
