"""Load a pickle of plain containers, strings and numbers, and nothing else: no import, no call, no object.

Every opcode is checked against a list before anything is loaded, so a pickle that names a class or calls something
is refused while it is still bytes.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any, NoReturn

from narrows.reducers.readers.common import UnreadableError, UnsafePickleError

_ALLOWED = frozenset(
    (
        "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP", "NONE", "NEWTRUE", "NEWFALSE",
        "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
        "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
        "SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "LIST", "EMPTY_LIST", "APPEND", "APPENDS",
        "TUPLE", "EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "DICT", "EMPTY_DICT", "SETITEM", "SETITEMS",
        "GET", "BINGET", "LONG_BINGET", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE",
    )
)  # fmt: skip
_TO_MARK = frozenset(("LIST", "DICT", "APPENDS", "SETITEMS", "POP_MARK"))
_DROPS = {"POP": 1, "APPEND": 1, "SETITEM": 2}
_DEEPEST = 64  # a dump's tuples hold names and sizes, two levels of them
_MEMO = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))
# What the unpickler raises on damaged bytes: it checks little, and the opcode that fails decides the type.
_DAMAGE = (
    pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError,
    MemoryError, RecursionError,
)  # fmt: skip


class _PlainUnpickler(pickle.Unpickler):
    """Second fence: whatever the opcode check lets through, no name is ever looked up."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise UnsafePickleError(f"the pickle asks for {module_name}.{global_name}; nothing was run")

    def persistent_load(self, _pid: Any) -> NoReturn:
        raise UnsafePickleError("the pickle refers to an object outside itself; nothing was run")


def load_plain(data: bytes, name: str = "input") -> Any:
    """The value that ``data`` holds: dicts, lists, tuples, strings, bytes, numbers, booleans and None.

    Raises:
        UnsafePickleError: it names a class, calls something, or refers outside itself. Nothing of it was run.
        UnreadableError: it is cut or damaged.
    """
    _check(data, name)
    try:
        return _PlainUnpickler(io.BytesIO(data), encoding="latin-1").load()
    except UnsafePickleError as error:
        raise UnsafePickleError(f"{name}: {error}") from None
    except _DAMAGE as error:
        raise UnreadableError(
            f"{name}: is not a whole pickle ({type(error).__name__}: {error}); copy it again"
        ) from None


class _Depths:
    """How deep tuples nest on the unpickler's stack: hashing a deep tuple would overflow the stack of the process."""

    def __init__(self) -> None:
        self.stack: list[int | None] = []  # None is a mark
        self.memo: dict[object, int] = {}

    def step(self, opcode: str, argument: object) -> int:
        """The depth of what ``opcode`` leaves on top, 0 for everything but tuples."""
        depth = 0
        if opcode.startswith("TUPLE"):
            depth = 1 + max((one for one in self._taken(opcode) if one is not None), default=0)
            self.stack.append(depth)
        elif opcode == "MARK":
            self.stack.append(None)
        elif opcode in _TO_MARK:
            self._taken("TUPLE")
            self.stack += [0] * (opcode in ("LIST", "DICT"))
        elif opcode in _DROPS:
            del self.stack[len(self.stack) - _DROPS[opcode] :]
        elif opcode.endswith("GET"):
            depth = self.memo.get(argument, 0)
            self.stack.append(depth)
        elif opcode.endswith("PUT") or opcode == "MEMOIZE":
            key = len(self.memo) if opcode == "MEMOIZE" else argument
            self.memo[key] = (self.stack[-1] if self.stack else 0) or 0
        elif opcode not in ("PROTO", "FRAME", "STOP"):
            self.stack.append((self.stack[-1] if self.stack else 0) if opcode == "DUP" else 0)
        return depth

    def _taken(self, opcode: str) -> list[int | None]:
        if opcode != "TUPLE":
            count = int(opcode[-1])
            taken = self.stack[-count:]
            del self.stack[-count:]
            return taken
        taken = []
        while self.stack and (top := self.stack.pop()) is not None:
            taken.append(top)
        return taken


def _check(data: bytes, name: str) -> None:
    depths = _Depths()
    try:
        for opcode, argument, place in pickletools.genops(data):
            if opcode.name not in _ALLOWED:
                raise UnsafePickleError(
                    f"{name}: byte {place}: pickle opcode {opcode.name} is refused, only plain containers, strings and "
                    "numbers are read; nothing was run; find out where this file comes from"
                )
            if depths.step(opcode.name, argument) > _DEEPEST:
                raise UnsafePickleError(f"{name}: byte {place}: tuples nest deeper than {_DEEPEST}; nothing was run")
            if opcode.name in _MEMO and isinstance(argument, int) and not 0 <= argument <= len(data):
                raise UnreadableError(f"{name}: byte {place}: memo index {argument} is beyond the file; copy it again")
    except _DAMAGE as error:
        raise UnreadableError(f"{name}: is not a whole pickle ({error}); copy it again") from None
