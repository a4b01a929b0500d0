"""The functional collectives of torch.distributed (DTensor's): they return tensors, and complete when waited for."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from narrows.instruments import devices
from narrows.instruments.collectives import finish, here, swap
from narrows.instruments.groups import groups
from narrows.instruments.guard import HOOK_ERRORS, report_once
from narrows.instruments.operations import FUNCTIONAL, Call, Operation, Parameters
from narrows.instruments.recorder import Token, current

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

_now = time.monotonic_ns
PART = "functional collectives"
WAITING_LIMIT = 4096

_waiting: dict[int, Token] = {}


def install() -> None:
    """Wraps the functions of torch.distributed._functional_collectives, and the wait for their results."""
    from torch.distributed import _functional_collectives as module

    for entry, operation in FUNCTIONAL.items():
        swap(module, entry, functools.partial(_wrapped, module, operation))
    swap(module, "wait_tensor", _wait_tensor)


def _wrapped(module: ModuleType, operation: Operation, original: Callable[..., Any]) -> Callable[..., Any]:
    parameters = Parameters(original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if here.depth or devices.is_compiling() or module._are_we_tracing():
            return original(*args, **kwargs)
        token = _issue(module, operation, Call(parameters, args, kwargs))
        here.depth += 1
        try:
            result = original(*args, **kwargs)
        finally:
            here.depth -= 1
        if token is not None:
            _remember(token, result)
        return result

    return call


def _issue(module: ModuleType, operation: Operation, call: Call) -> Token | None:
    """A token of the current recorder; without one the operation is only counted."""
    try:
        name = _group_name(module, call["group"], call["tag"] or "")
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


def _group_name(module: ModuleType, group: Any, tag: str) -> str:
    """Our name of a group in any of the forms that a functional collective takes."""
    if isinstance(group, list):  # resolving a list of ranks would warn a second time
        name = "ranks" + "-".join(str(rank) for rank in group)
        groups.declare(name, [int(rank) for rank in group])
        return name
    resolved = module._resolve_group(group, tag)
    if isinstance(resolved, str):
        resolved = module.c10d._resolve_process_group(resolved)
    return groups.of(resolved)


def _remember(token: Token, result: Any) -> None:
    """The token waits for its first result's storage to be waited for; all results of one call complete together."""
    try:
        addresses = [_address(tensor) for tensor in _tensors(result)]
    except HOOK_ERRORS as error:
        report_once(PART, error)
        return
    if not addresses or len(_waiting) >= WAITING_LIMIT:
        finish(token, _now())
        return
    _waiting.update(dict.fromkeys(addresses, token))


def _wait_tensor(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wait_tensor(tensor: Any) -> Any:
        recorder = current()
        if recorder is None or here.depth or devices.is_compiling():
            return original(tensor)
        begin_ns = _now()
        result = original(tensor)
        end_ns = _now()
        token = _waited(tensor)
        if token is not None:  # a tensor that nobody communicates passes through without waiting
            recorder.waited(begin_ns, end_ns)
            finish(token, end_ns)
        return result

    return wait_tensor


def _waited(tensor: Any) -> Token | None:
    try:
        return _waiting.pop(_address(tensor), None)
    except HOOK_ERRORS as error:
        report_once(PART, error)
        return None


def _tensors(result: Any) -> Iterable[Any]:
    return result if isinstance(result, (list, tuple)) else (result,)


def _address(tensor: Any) -> int:
    """The address of the storage that the collective fills; views of it share it."""
    inner = getattr(tensor, "elem", tensor)
    return int(inner.untyped_storage().data_ptr())
