"""Does a gain last: in the slowest steps of a unit, and to its end?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

TAIL_SHARE = 0.1


def tail_changes(evidence: dict[str, Any]) -> list[float]:
    """Second arm minus first, in ms, of the mean of each unit's slowest tenth of steps; one value a pair."""
    return _by_pair(evidence, lambda steps: float(np.sort(steps)[-max(1, int(len(steps) * TAIL_SHARE)) :].mean()))


def drift_changes(evidence: dict[str, Any]) -> list[float]:
    """Second arm minus first, in ms, of how much each unit's last third is slower than its first, by medians."""

    def grown(steps: np.ndarray[Any, Any]) -> float:
        third = max(1, len(steps) // 3)
        return float(np.median(steps[-third:]) - np.median(steps[:third]))

    return _by_pair(evidence, grown)


def _by_pair(evidence: dict[str, Any], reduce: Callable[[np.ndarray[Any, Any]], float]) -> list[float]:
    first, second = (
        {unit["pair"]: reduce(np.asarray(unit["steps_ms"])) for unit in arm["units"]}
        for arm in evidence["arms"].values()
    )
    return [second[pair] - first[pair] for pair in sorted(set(first) & set(second))]
