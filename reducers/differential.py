"""Does one rank change against the others? Within a step that cancels what all ranks share, however noisy the step.

A delay of 1 ms on one rank is lost in a step that varies by 13 ms, but not in who arrives last.

Shape legend: P pairs, R ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from narrows.reducers.estimates import format_ms
from narrows.reducers.structure import max_t

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

ALPHA = 0.05
METRICS = ("local_ms", "last_share", "skew_ms")
"""Local time against the mean over ranks, the share of calls in which a rank arrived last, and its waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDifference:
    """The rank that moved against the others: in which metric, by how much, and the family-wise p of that.

    ``change`` is in ms a step, for ``last_share`` a share of the calls. A rank that the others wait for waits less
    itself, so ``skew_ms`` is negative.
    """

    rank: int
    metric: str
    change: float
    p: float
    sentence: str


def rank_difference(difference: Mapping[str, Any], ranks: Sequence[int], alpha: float = ALPHA) -> RankDifference | None:
    """The rank whose pair differences stand out over all ranks and metrics at once; None where none does.

    ``difference`` holds the metrics as P rows of R values; one that is absent, or does not vary, is left out. The
    chance that any of them stands out where nothing changed is at most ``alpha``.
    """
    tables = {name: _centred(name, difference.get(name)) for name in METRICS}
    used = {name: table for name, table in tables.items() if table is not None and table.shape[1] == len(ranks)}
    if not used or 2.0 ** -(len(next(iter(used.values()))) - 1) > alpha:
        return None
    scales = {name: float(np.sqrt((table**2).mean())) for name, table in used.items()}
    t, p = max_t(np.hstack([table / scales[name] for name, table in used.items()]))
    cells = [(name, at) for name in used for at in range(len(ranks))]
    means = {name: table.mean(axis=0) for name, table in used.items()}
    slower = [
        (float(t[place]), float(p[place]), name, at)
        for place, (name, at) in enumerate(cells)
        if p[place] <= alpha and bool(means[name][at] > 0) is not (name == "skew_ms")
    ]
    if not slower:
        return None
    _, chance, name, at = max(slower, key=lambda one: (-METRICS.index(one[2]), one[0]))
    change = float(means[name][at])
    return RankDifference(
        rank=ranks[at], metric=name, change=change, p=chance, sentence=_sentence(ranks[at], name, change, chance)
    )


def _centred(name: str, values: Any) -> Floats | None:
    if values is None or len(values) < 2:
        return None
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] < 2:
        return None
    if name != "last_share":  # shares sum to 1 already
        table = table - table.mean(axis=1, keepdims=True)
    return table if np.abs(table).max() > 0 else None


def _sentence(rank: int, name: str, change: float, p: float) -> str:
    said = {
        "local_ms": f"its local time by {format_ms(change)[0]} ms against the mean over ranks",
        "last_share": f"it arrives last in {100 * change:+.0f} % of the calls",
        "skew_ms": f"it waits {format_ms(abs(change))[0]} ms less than the others for the last rank",
    }[name]
    return f"rank {rank}: {said}, p = {p:.2g}"
