"""Steps that the measuring machine spoiled, left out by a rule that does not look at the arms.

On an emulated device the host only keeps the time: what it loses by waking late beyond the slack that the device
queues shows as residual, and says something of the machine that the emulation ran on, not of the job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrows.inquiry.accounts import Account
from narrows.reducers.records import ABSENT
from narrows.reducers.sweep import CODES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narrows.reducers.ledger import Ledger
    from narrows.reducers.records import Bool

STALL_MS = 1.0
LEAST_KEPT = 0.5
"""A unit that would keep less than this share of its steady steps keeps all of them: then the noise must show."""

Step = tuple[int, int]


def leave_out_stalls(ledgers: Sequence[Ledger]) -> int:
    """Marks the stalled steps of all arms as washout, and returns how many were marked.

    A step is stalled when some rank's residual exceeds ``STALL_MS``. The step of the same pair and batch goes in the
    other arm as well, so that both keep the same batches.
    """
    stalled = {step for ledger in ledgers for step in _stalled(ledger)}
    return sum(_mark(ledger, stalled) for ledger in ledgers)


def _stall_S(ledger: Ledger) -> Bool:  # noqa: N802  # the suffix is the shape
    residual_ns_RS = ledger.account_ns_RSA[:, :, CODES[Account.RESIDUAL]]
    late_S = np.where(ledger.present_RS, residual_ns_RS, 0).max(axis=0) > STALL_MS * 1e6
    return np.asarray(late_S & ~ledger.steps["warmup"].to_numpy(dtype=np.bool_), dtype=np.bool_)


def _keys(ledger: Ledger) -> list[Step]:
    return list(zip(ledger.steps["pair"].tolist(), ledger.steps["batch"].tolist(), strict=True))


def _stalled(ledger: Ledger) -> set[Step]:
    return {step for step, late in zip(_keys(ledger), _stall_S(ledger), strict=True) if late and ABSENT not in step}


def _mark(ledger: Ledger, stalled: set[Step]) -> int:
    flags = ledger.steps["warmup"].to_numpy(dtype=np.bool_).copy()
    chosen = np.array([step in stalled for step in _keys(ledger)], dtype=np.bool_) & ~flags
    segments = ledger.steps["segment"].to_numpy()
    for segment in np.unique(segments[chosen]):
        steady = (segments == segment) & ~flags
        if (steady & ~chosen).sum() < LEAST_KEPT * steady.sum():
            chosen[segments == segment] = False
    ledger.steps["warmup"] = flags | chosen
    return int(chosen.sum())
