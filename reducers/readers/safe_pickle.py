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
    "PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 "
    "FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8 "
    "SHORT_BINBYTES BINBYTES BINBYTES8 LIST EMPTY_LIST APPEND APPENDS TUPLE EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 "
    "DICT EMPTY_DICT SETITEM SETITEMS GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT MEMOIZE".split()
)
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
        raise UnreadableError(f"{name}: is not a whole pickle ({type(error).__name__}: {error}); copy it again") from None


def _check(data: bytes, name: str) -> None:
    try:
        for opcode, argument, place in pickletools.genops(data):
            if opcode.name not in _ALLOWED:
                raise UnsafePickleError(
                    f"{name}: byte {place}: pickle opcode {opcode.name} is refused, only plain containers, strings and "
                    "numbers are read; nothing was run; do not load this file with another tool before you know its origin"
                )
            if opcode.name in _MEMO and isinstance(argument, int) and not 0 <= argument <= len(data):
                raise UnreadableError(f"{name}: byte {place}: memo index {argument} is beyond the file; copy it again")
    except _DAMAGE as error:
        raise UnreadableError(f"{name}: is not a whole pickle ({error}); copy it again") from None
