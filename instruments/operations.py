"""What is known about each entry point of torch.distributed: its name as an operation, and its size.

Sizes are of the whole buffer S, the S of the bandwidth formulas: the full array for all-gather, reduce-scatter,
gather and scatter, this rank's input for all-to-all, the tensor itself for the rest.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Sizer = Callable[["Call", int], int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An entry point: ``name`` is the operation as recorded, ``size`` its bytes from a call and the group's size."""

    name: str
    size: Sizer


class Parameters:
    """Where the parameters of a function stand, read once from its signature, so that a call is read cheaply."""

    __slots__ = ("_defaults", "_places")

    def __init__(self, function: Callable[..., Any]) -> None:
        parameters = inspect.signature(function).parameters
        self._places = {name: index for index, name in enumerate(parameters)}
        self._defaults = {
            name: parameter.default
            for name, parameter in parameters.items()
            if parameter.default is not inspect.Parameter.empty
        }

    def get(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The argument called ``name``, its default, or None where the function has no such parameter."""
        if name in kwargs:
            return kwargs[name]
        index = self._places.get(name)
        if index is not None and index < len(args):
            return args[index]
        return self._defaults.get(name)


class Call:
    """One call of an entry point."""

    __slots__ = ("_args", "_kwargs", "_parameters")

    def __init__(self, parameters: Parameters, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._parameters = parameters
        self._args = args
        self._kwargs = kwargs

    def __getitem__(self, name: str) -> Any:
        return self._parameters.get(name, self._args, self._kwargs)


def tensor_bytes(value: Any) -> int | None:
    """The bytes of a tensor, or of all tensors in nested lists; None for anything else."""
    if isinstance(value, Sequence):
        sizes = [tensor_bytes(item) for item in value]
        return None if None in sizes else sum(size for size in sizes if size is not None)
    size = getattr(value, "nbytes", None)
    return None if size is None else int(size)


def _of(*names: str) -> Sizer:
    def size(call: Call, members: int) -> int | None:  # noqa: ARG001  # one signature for all sizers
        for name in names:
            if (value := call[name]) is not None:
                return tensor_bytes(value)
        return None

    return size


def _times_members(name: str) -> Sizer:
    def size(call: Call, members: int) -> int | None:
        shard = tensor_bytes(call[name])
        return None if shard is None else shard * members

    return size


def _nothing(call: Call, members: int) -> int | None:  # noqa: ARG001  # one signature for all sizers
    return 0


def _unknown(call: Call, members: int) -> int | None:  # noqa: ARG001  # pickled later, inside
    return None


def _table(rows: dict[str, tuple[str, Sizer]]) -> dict[str, Operation]:
    return {entry: Operation(name=name, size=size) for entry, (name, size) in rows.items()}


ENTRY_POINTS = _table(
    {
        "all_reduce": ("all_reduce", _of("tensor")),
        "all_reduce_coalesced": ("all_reduce", _of("tensors")),
        "broadcast": ("broadcast", _of("tensor")),
        "reduce": ("reduce", _of("tensor")),
        "all_gather": ("all_gather", _of("tensor_list")),
        "all_gather_single": ("all_gather", _of("output_tensor")),
        "all_gather_into_tensor": ("all_gather", _of("output_tensor")),
        "_all_gather_base": ("all_gather", _of("output_tensor")),
        "all_gather_coalesced": ("all_gather", _of("output_tensor_lists")),
        "gather": ("gather", _times_members("tensor")),
        "scatter": ("scatter", _times_members("tensor")),
        "reduce_scatter": ("reduce_scatter", _of("input_list")),
        "reduce_scatter_single": ("reduce_scatter", _of("input")),
        "reduce_scatter_tensor": ("reduce_scatter", _of("input")),
        "_reduce_scatter_base": ("reduce_scatter", _of("input")),
        "all_to_all": ("all_to_all", _of("input_tensor_list")),
        "all_to_all_single": ("all_to_all", _of("input")),
        "barrier": ("barrier", _nothing),
        "monitored_barrier": ("barrier", _nothing),
        "all_gather_object": ("all_gather_object", _unknown),
        "gather_object": ("gather_object", _unknown),
        "broadcast_object_list": ("broadcast_object", _unknown),
        "scatter_object_list": ("scatter_object", _unknown),
        "_broadcast_coalesced": ("broadcast", _of("tensors")),
    }
)
"""Collectives of ``torch.distributed`` by function name."""

POINT_TO_POINT = _table(
    {
        "send": ("send", _of("tensor")),
        "isend": ("send", _of("tensor")),
        "recv": ("recv", _of("tensor")),
        "irecv": ("recv", _of("tensor")),
        "send_object_list": ("send", _unknown),
        "recv_object_list": ("recv", _unknown),
    }
)
"""Sends and receives of ``torch.distributed`` by function name."""

FUNCTIONAL = _table(
    {
        "all_reduce": ("all_reduce", _of("self")),
        "all_reduce_coalesced": ("all_reduce", _of("self")),
        "broadcast": ("broadcast", _of("self")),
        "all_gather_single": ("all_gather", _times_members("self")),
        "all_gather_single_autograd": ("all_gather", _times_members("self")),
        "all_gather_tensor": ("all_gather", _times_members("self")),
        "all_gather_tensor_autograd": ("all_gather", _times_members("self")),
        "all_gather_single_coalesced": ("all_gather", _times_members("self")),
        "all_gather_into_tensor_coalesced": ("all_gather", _times_members("self")),
        "reduce_scatter_single": ("reduce_scatter", _of("self")),
        "reduce_scatter_single_autograd": ("reduce_scatter", _of("self")),
        "reduce_scatter_tensor": ("reduce_scatter", _of("self")),
        "reduce_scatter_tensor_autograd": ("reduce_scatter", _of("self")),
        "reduce_scatter_single_coalesced": ("reduce_scatter", _of("inputs")),
        "reduce_scatter_tensor_coalesced": ("reduce_scatter", _of("inputs")),
        "all_to_all_single": ("all_to_all", _of("self")),
        "all_to_all_single_autograd": ("all_to_all", _of("self")),
        "permute_tensor": ("all_to_all", _of("self")),
    }
)
"""Collectives of ``torch.distributed._functional_collectives`` by function name."""
