"""What can be changed to test a mechanism: data, one entry a change, with its prediction stated beforehand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from narrows.inquiry.accounts import Account
from narrows.inquiry.hypotheses import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """One mechanism, one change, the account that must shrink by about the improvement.

    ``config`` overrides the regressed workload; ``placement`` names a change of hosts instead (``replace`` the
    culprit by a spare, or ``colocate`` the ranks on one host). ``mitigation`` says whether a production job could
    keep the change; a purely diagnostic change is not scaled up.
    """

    id: str
    mechanism: str
    account: Account
    ledger: Ledger
    claim: str
    mitigation: bool
    programs: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    placement: str | None = None
    unchanged: tuple[Account, ...] = ()
    newly_exposed: tuple[Account, ...] = ()
    rollback: str = ""
    reopen: str = ""
