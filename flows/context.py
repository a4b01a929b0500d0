"""What a flow knows without having it as a parameter, which Prefect would store and show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

_Value = TypeVar("_Value")


@contextmanager
def put(variable: ContextVar[_Value], value: _Value) -> Iterator[None]:
    """``variable`` holds ``value`` while it lasts."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
