"""The case file of a roll-out that was judged slower: its own work and runs, ready to be investigated."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import yaml

from narrows.flows.canary_rollout_judge import BASELINE
from narrows.flows.casefile import load_case
from narrows.flows.session import Session
from narrows.inquiry.case import Judging
from narrows.inquiry.design import CONTROL
from narrows.inquiry.errors import CaseError
from narrows.inquiry.rollout import EXPERIMENT, UPGRADED, Rollout

_HEAD = (
    "# Upgraded hosts are slower than hosts that were not upgraded: {sets}.\n"
    "# Written by `narrows canary-rollout`. The runs are its own: the control hosts' are healthy, the upgraded hosts'\n"
    "# regressed. Look at the budget, then investigate.\n"
)
_NOT_SUBTRACTED = (
    "# What the two sets differed by before the upgrade is not taken out of these runs, as it was of the verdict.\n"
)
_NAME_LENGTH = 63


def write_regressed_case(workspace: Path, rollout: Rollout, session: Session) -> Path:
    """A case file in ``workspace`` that ``narrows check`` accepts. Raises ``CaseError`` where none can be made."""
    path = workspace / f"{session.directory.name}.yaml"
    if path.exists():
        raise CaseError(f"{path} is already there; move it away")
    head = _HEAD.format(sets=rollout.sets) + (_NOT_SUBTRACTED if BASELINE in session.state.findings else "")
    text = yaml.safe_dump(_case(workspace, rollout, session), sort_keys=False, default_flow_style=None, width=1000)
    path.write_text(head + text, encoding="utf-8")
    try:
        load_case(path)
    except CaseError:
        path.unlink()
        raise
    return path


def _case(workspace: Path, rollout: Rollout, session: Session) -> dict[str, Any]:
    arms = session.evidence(EXPERIMENT)["arms"]
    places = {
        name: [os.path.relpath(session.directory / run["path"], workspace) for run in arms[arm]["runs"]]
        for name, arm in (("healthy", CONTROL), ("regressed", UPGRADED))
    }
    before, after = (float(arms[arm]["step_ms"]) for arm in (CONTROL, UPGRADED))
    budget = rollout.budget
    return {
        "case": _name(rollout, session),
        "question": f"A step takes {after:.4g} ms on the upgraded hosts and {before:.4g} ms on the control hosts; "
        "what takes the time?",
        "runs": places,
        "workload": _workload(workspace, rollout),
        "cluster": {
            "launcher": rollout.launcher, "nodes": len(rollout.upgraded), "ranks_per_node": rollout.ranks_per_node,
            "hosts": [*rollout.upgraded, *rollout.control], "device": rollout.device,
        },
        "budget": {
            "device_hours": budget.device_hours,
            "ask_above_device_hours": budget.ask_above_device_hours,
        },
        "judge": _judge(rollout.judging),
    }  # fmt: skip


def _name(rollout: Rollout, session: Session) -> str:
    """The roll-out's name and its time, which tells it from another one of the same hosts."""
    stamp = session.directory.name.removeprefix(rollout.name)
    slug = re.sub(r"[^a-z0-9]+", "-", rollout.name.lower())
    return slug[: _NAME_LENGTH - len(stamp)].strip("-") + stamp


def _workload(workspace: Path, rollout: Rollout) -> dict[str, Any]:
    spec = rollout.spec
    program = rollout.program if rollout.builtin else os.path.relpath(rollout.program, workspace)
    shared = {"config": dict(rollout.config), "args": list(rollout.args)}
    own = dict(spec.config) if rollout.builtin else {"args": list(spec.args), "env": dict(spec.env)}
    kept = {key: value for key, value in own.items() if rollout.builtin or value}
    return {
        "program": program,
        **{key: value for key, value in shared.items() if value},
        "healthy": {**kept, "hosts": list(rollout.control)},
        "regressed": {**kept, "hosts": list(rollout.upgraded)},
    }


def _judge(judging: Judging) -> dict[str, Any]:
    """What the roll-out was judged by where it is not the usual."""
    usual, keys = Judging(), ("margin_percent", "statistic", "steps", "washout", "seed", "start_s")
    return {key: getattr(judging, key) for key in keys if getattr(judging, key) != getattr(usual, key)}
