"""Sends and receives of torch.distributed, recorded with their peer."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from narrows.instruments import devices
from narrows.instruments.collectives import follow, here, replacement_of, run, swap
from narrows.instruments.groups import groups
from narrows.instruments.guard import HOOK_ERRORS, report_once
from narrows.instruments.operations import POINT_TO_POINT, Call, Operation, Parameters, tensor_bytes
from narrows.instruments.recorder import Token, current

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_now = time.monotonic_ns
PART = "point to point"


def install(c10d: ModuleType) -> None:
    """Wraps the sends and receives of torch.distributed, and the batch of them."""
    for entry, operation in POINT_TO_POINT.items():
        blocking = entry not in ("isend", "irecv")
        swap(c10d, entry, functools.partial(_wrapped, c10d, operation, blocking))
    swap(c10d, "batch_isend_irecv", _batch)
    _accept_originals(c10d.P2POp)


def _wrapped(
    c10d: ModuleType, operation: Operation, blocking: bool, original: Callable[..., Any]
) -> Callable[..., Any]:
    parameters = Parameters(original)
    side = "dst" if operation.name == "send" else "src"

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if here.depth or devices.is_compiling():
            return original(*args, **kwargs)
        asked = Call(parameters, args, kwargs)
        peer = _peer(c10d, asked, side)
        begin_ns = _now()
        token = None if peer is None else _issue(operation, asked["group"], peer, operation.size(asked, 0), asked)
        result = run(token, original, args, kwargs, blocking=blocking)
        if peer is None and blocking:
            _received_from_any(operation, asked, begin_ns, result)
        return result

    return call


def _issue(
    operation: Operation,
    group: Any,
    peer: int,
    size: int | None,
    call: Call | None = None,
    enter_ns: int | None = None,
) -> Token | None:
    """A token of the current recorder; without one the message is only counted."""
    try:
        recorder = current()
        if recorder is None:
            groups.next_message(groups.of(group), operation.name, _own_rank(), peer)
            return None
        token = recorder.enter_p2p(operation.name, peer=peer, group=group, payload_bytes=size, enter_ns=enter_ns)
        if call is not None:
            token.record.mark = devices.start_mark(call)
    except HOOK_ERRORS as error:
        report_once(PART, error)
        return None
    return token


def _own_rank() -> int:
    import torch.distributed as dist

    return dist.get_rank()


def _peer(c10d: ModuleType, call: Call, side: str) -> int | None:
    """The global rank at the other end; None for a receive from any rank, or where it cannot be told."""
    try:
        within = call[f"group_{side}"]
        if within is not None:
            return int(c10d.get_global_rank(c10d._group_or_default_group(call["group"]), within))
        peer = call[side]
        return None if peer is None else int(peer)
    except HOOK_ERRORS as error:
        report_once(PART, error)
        return None


def _received_from_any(operation: Operation, call: Call, begin_ns: int, sender: Any) -> None:
    """A receive from any rank is recorded when it is over, because only then its sender is known."""
    end_ns = _now()
    if not isinstance(sender, int) or sender < 0:
        return
    token = _issue(operation, call["group"], sender, operation.size(call, 0), enter_ns=begin_ns)
    if token is not None:
        token._recorder.waited(begin_ns, end_ns)
        token.end(end_ns)


def _batch(original: Callable[..., Any]) -> Callable[..., Any]:
    """A batch of sends and receives: each is recorded with its peer, issued together."""

    @functools.wraps(original)
    def batch_isend_irecv(p2p_op_list: list[Any]) -> Any:
        if here.depth or devices.is_compiling():
            return original(p2p_op_list)
        tokens = _issue_batch(p2p_op_list)
        here.depth += 1
        try:
            works = original(p2p_op_list)
        finally:
            here.depth -= 1
        _follow_batch(tokens, works)
        return works

    return batch_isend_irecv


def _issue_batch(operations: list[Any]) -> list[Token | None]:
    tokens: list[Token | None] = []
    try:
        for item in operations:
            operation = POINT_TO_POINT[item.op.__name__]
            tokens.append(_issue(operation, item.group, int(item.peer), tensor_bytes(item.tensor)))
    except HOOK_ERRORS as error:
        report_once(PART, error)
    return tokens


def _follow_batch(tokens: list[Token | None], works: list[Any]) -> None:
    """One work for each operation (gloo), or one for all of them (NCCL)."""
    if len(works) == len(tokens):
        for token, work in zip(tokens, works, strict=True):
            if token is not None:
                follow((token,), work)
        return
    issued = tuple(token for token in tokens if token is not None)
    if issued:
        follow(issued, works[-1] if works else None)


def _accept_originals(kind: Any) -> None:
    """``P2POp`` takes the functions that a script got hold of before they were wrapped: torch compares them by identity
    with the ones it has now."""
    made, filled = kind.__new__, kind.__init__

    @functools.wraps(made)
    def new(cls: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        return made(cls, replacement_of(op), *args, **kwargs)

    @functools.wraps(filled)
    def init(self: Any, op: Any, *args: Any, **kwargs: Any) -> None:
        filled(self, replacement_of(op), *args, **kwargs)

    kind.__new__ = new
    kind.__init__ = init
