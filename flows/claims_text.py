"""Claims as they are written: YAML with a comment over each part, for people who review it."""

from __future__ import annotations

from datetime import date
from typing import Any

import yaml

from narrows.inquiry.claim import Claim, MetricRange, Mitigation
from narrows.inquiry.design import Arm, Experiment


def claim_text(claim: Claim, head: str) -> str:
    """The claim as a file that ``load_claim`` reads, with a comment over each part; ``head`` is the first one."""
    parts: list[tuple[str, dict[str, Any]]] = [
        (head, {"claim": claim.name, "case": claim.case, "case_file": claim.case_file}),
        ("What causes the loss, and where its time is.", {
            "explanation": claim.explanation, "mechanism": claim.mechanism, "account": claim.account.value,
            "view": claim.ledger.value, "culprit": claim.culprit}),
        ("The ranges that were accepted, in ms a step, second arm minus first (gain: first minus second).",
         {"metrics": {one.metric.value: _metric_yaml(one) for one in claim.ranges}}),
        ("Where one of these changes, the claim is run again.",
         {"depends_on": {on.field: {"confirmed": list(on.confirmed), "why": on.why} for on in claim.depends_on}}),
        ("What was done about it. Say here whether it is in force.",
         {"mitigation": _mitigation_yaml(claim.mitigation)}),
        ("When it was last confirmed; older than the limit, it is run again.",
         {"confirmed": date.fromisoformat(claim.confirmed), "age_limit_days": claim.age_limit_days}),
        ("The smallest experiment that shows the loss.",
         {"launcher": claim.launcher, "reproducer": experiment_yaml(claim.reproducer)}),
    ]  # fmt: skip
    if claim.remedy is not None:
        parts.append(("The change that gave the time back.", {"remedy": experiment_yaml(claim.remedy)}))
    budget, judging = claim.budget, claim.judging
    parts.append(("What it may cost, and how it is judged.", {
        "budget": {"device_hours": budget.device_hours, "ask_above_device_hours": budget.ask_above_device_hours},
        "judge": {"statistic": judging.statistic, "alpha": judging.alpha, "start_s": judging.start_s}}))  # fmt: skip
    return "\n".join(_commented(comment, value) for comment, value in parts)


def _commented(comment: str, value: dict[str, Any]) -> str:
    text = yaml.dump(_Part(value), Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
    return "".join(f"# {line}\n" for line in comment.splitlines()) + text


class _Part(dict[str, Any]):
    """A part of the file: its keys stand at the beginning of a line."""


class _Dumper(yaml.SafeDumper):
    """Short mappings and lists of plain values on one line, all else in blocks."""

    def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> yaml.MappingNode:  # noqa: ARG002  # PyYAML's
        short = not isinstance(mapping, _Part) and len(str(mapping)) <= _ONE_LINE
        return super().represent_mapping(tag, mapping, flow_style=short and not any(map(_is_nested, mapping.values())))

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:  # noqa: ARG002  # as above
        return super().represent_sequence(tag, sequence, flow_style=not any(map(_is_nested, sequence)))


_ONE_LINE = 70
_Dumper.add_representer(_Part, _Dumper.represent_dict)


def _is_nested(value: Any) -> bool:
    return isinstance(value, (dict, list))


def _metric_yaml(one: MetricRange) -> dict[str, Any]:
    value: dict[str, Any] = {"low": _short(one.low)}
    if one.high is not None:
        value["high"] = _short(one.high)
    value |= {"found": _short(one.found), "how": one.how}
    return value | ({"pairs": [_short(pair) for pair in one.pairs]} if one.pairs else {})


def _short(value: float) -> float:
    """Four digits are more than any of these numbers is known to."""
    return float(f"{value:.4g}")


def _mitigation_yaml(one: Mitigation) -> dict[str, Any]:
    value = {"change": one.change, "in_force": one.in_force, "rollback": one.rollback}
    return value | ({"reopen": one.reopen} if one.reopen else {})


def experiment_yaml(one: Experiment) -> dict[str, Any]:
    """The experiment as a mapping for YAML; what a reader can do without is left out."""
    value: dict[str, Any] = {"key": one.key, "scope": one.scope.value, "program": one.program}
    if one.base:
        value["config"] = dict(one.base)
    if one.args:
        value["args"] = list(one.args)
    value["arms"] = {arm.name: _arm_yaml(arm) for arm in (one.before, one.after)}
    value |= {
        "hosts": {host: len(ranks) for host, ranks in one.placement.hosts}, "mode": one.mode.value,
        "device": one.device, "shards": one.num_shards, "pairs": one.pairs, "max_pairs": one.max_pairs,
        "steps": one.steps, "washout": one.washout, "seed": one.seed, "step_s": _short(one.expected_step_s),
    }  # fmt: skip
    return value | ({"run_s": _short(one.run_s)} if one.run_s is not None else {})


def _arm_yaml(arm: Arm) -> dict[str, Any]:
    value = {"config": dict(arm.config), "args": list(arm.args), "env": dict(arm.env), "ranks": list(arm.ranks),
             "shards": list(arm.shards)}  # fmt: skip
    return {key: item for key, item in value.items() if item}
