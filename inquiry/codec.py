"""One canonical form of JSON, so that a digest means the same everywhere.

Format history: 1 (first).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

SCHEMA = 1
_PLAIN = frozenset({str, int, float, bool, type(None)})
"""What is plain already: nearly all that a large record holds."""


def plain(value: Any) -> Any:
    """``value`` in dicts, lists, strings, numbers, booleans and None only; dataclasses by field name."""
    if type(value) in _PLAIN:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value) if isinstance(value, (set, frozenset)) else value
        return [plain(item) for item in items]
    if isinstance(value, PurePath):
        return str(value)
    return value


def canonical(value: Any) -> bytes:
    """The one byte form: sorted keys, no spaces, no NaN. Raises ``ValueError`` for a number that JSON cannot hold."""
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def digest(value: Any) -> str:
    """The sha256 of the canonical form, in 64 hexadecimal digits."""
    return hashlib.sha256(canonical(value)).hexdigest()


def check_schema(found: object, where: str) -> None:
    """Raises ``ValueError`` unless ``found`` is a schema number that this version reads."""
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise ValueError(f"{where}: schema is {found!r}; expected a whole number of at least 1")
    if found > SCHEMA:
        raise ValueError(f"{where}: schema {found} is newer than {SCHEMA}, which this version reads; upgrade narrows")
