"""An accepted explanation, kept with the conditions under which it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from narrows.inquiry.scopes import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRange:
    """The range in which a metric was accepted (milliseconds per step unless the name says otherwise)."""

    metric: str
    low: float
    high: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a closed case leaves behind: the cause, how to show it again, and what would make it stale.

    ``depends_on`` holds manifest fields (dotted) and why each matters; ``reproducer`` is one command.
    """

    case: str
    mechanism: str
    account: str
    scope: Scope
    reproducer: str
    arms: dict[str, Any]
    ranges: tuple[MetricRange, ...]
    depends_on: dict[str, str]
    mitigation: str
    rollback: str
    confirmed_ns: int
    manifest: dict[str, Any] = field(default_factory=dict)
