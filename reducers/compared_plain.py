"""A comparison as plain JSON values: what ``narrows compare --json`` prints, and what the pictures are drawn from.

Schema history: 1, the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from narrows.inquiry.codec import plain
from narrows.reducers.compared_parts import ArmExtras, Change, Comparison
from narrows.reducers.numerator import NumeratorResult

SCHEMA = 1
KIND = "comparison"


def report(one: Comparison) -> dict[str, Any]:
    """The comparison in one JSON object; its keys are in docs/compare.md."""
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "source": one.source,
        "arms": {"healthy": one.names[0], "regressed": one.names[1]},
        "statistic": one.statistic,
        "status": one.status,
        "step_ms": _change(one.step),
        "view": one.view,
        "accounts_ms": {name: _change(change) for name, change in one.accounts.items()},
        "views_ms": {
            view: {name: _change(change) for name, change in table.items()} for view, table in one.views.items()
        },
        "account": one.lead,
        "account_delta_ms": one.lead_ms if one.lead else None,
        "account_share": one.lead_share if one.lead else None,
        "reading": one.reading,
        "culprit": plain(one.culprit),
        "follows": one.follows,
        "pairs": one.pairs,
        "tested": one.tested,
        "certainty": one.certainty,
        "window_steps": dict(one.window_steps),
        "slow_steps": None if one.slow_steps is None else list(one.slow_steps),
        "work": None if one.work is None else _work(one.work),
        "manifest_differences": plain(one.differences),
        "label": one.labels["regressed"].label if one.labels else None,
        "delta_label": one.labels["delta"].label if one.labels else None,
        "labels": {name: msgspec.to_builtins(label) for name, label in one.labels.items()},
        "coverage": one.coverage,
        "losses": list(one.losses),
        "limits": list(one.limits),
        "next": plain(one.next),
        "emulated": one.emulated,
        "expected": plain(one.expected),
        "windows_ms": {
            statistic: {
                view: {name: _change(change) for name, change in table.items()} for view, table in by_view.items()
            }
            for statistic, by_view in one.windows.items()
        },
        "tail": one.tail,
        "what_if": plain(one.opinions),
    }


def with_pictures(one: Comparison) -> dict[str, Any]:
    """The report, and under ``pictures`` the steps, lanes and arrivals of both arms where they are known."""
    arms = {
        arm: {"steps_ms": list(one.steps_ms[arm]), **_extras(one.extras.get(arm, ArmExtras()))} for arm in one.steps_ms
    }
    return {**report(one), "pictures": arms}


def _change(one: Change) -> dict[str, Any]:
    interval = None if one.interval is None else list(one.interval)
    return {"healthy": one.healthy, "regressed": one.regressed, "delta": one.delta, "interval": interval}


def _work(one: NumeratorResult) -> dict[str, Any]:
    return {
        "verdict": one.verdict.value,
        "predicted_ms": one.pi_num_ms,
        "sentence": one.sentence,
        "changes": plain(one.changes),
    }


def _extras(one: ArmExtras) -> Mapping[str, Any]:
    return {"typical": plain(one.typical), "arrivals": plain(one.arrivals)}
