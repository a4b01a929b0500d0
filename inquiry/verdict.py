"""The three outcomes of a test. Errors and thin evidence are inconclusive; nothing fails open."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """What the evidence says of a registered hypothesis."""

    SUPPORTED = "supported"
    REJECTED = "rejected"
    INCONCLUSIVE = "inconclusive"


class RegressionStatus(StrEnum):
    """Whether the step got slower at full scale by more than the margin."""

    CONFIRMED = "confirmed"
    NONE = "none"
    INCONCLUSIVE = "inconclusive"


class ClosingStatus(StrEnum):
    """Whether the account that a hypothesis named shrank by the improvement."""

    CLOSED = "closed"
    PARTIAL = "partial"
    UNSUPPORTED = "unsupported"
    NOT_RUN = "not_run"
