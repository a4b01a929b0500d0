"""The typical and the slow steps of two arms side by side, and whether the loss is in the slow ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from narrows.inquiry.findings import Finding
from narrows.reducers.compared_parts import Change
from narrows.reducers.decisions import TAIL_SHARE, Signs


def windows(
    healthy: Mapping[str, Any], regressed: Mapping[str, Any]
) -> Mapping[str, Mapping[str, Mapping[str, Change]]]:
    """Accounts by statistic and view, of the statistics that the units of both arms are long enough for."""
    before, after = healthy["windows"], regressed["windows"]
    return {
        statistic: {
            view: {name: Change(healthy=ms, regressed=after[statistic][view][name]) for name, ms in table.items()}
            for view, table in before[statistic].items()
        }
        for statistic in before
        if statistic in after
    }


def told(evidence: Mapping[str, Any], signs: Signs) -> str:
    """That the slow steps lost more than the typical one, as a sentence; empty where they did not."""
    named = [one["sentence"] for one in evidence["findings"] if one["name"] == Finding.TAIL_MECHANISM.value]
    if named:
        return str(named[0])
    if signs.tail_share is None or signs.tail_share <= TAIL_SHARE:
        return ""
    return f"the slowest 5 % of the steps carry {signs.tail_share:.0%} of the loss"
