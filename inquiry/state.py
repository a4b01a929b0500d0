"""What a docket says so far, indexed: the only memory that the ladder has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from narrows.inquiry.design import ArmKind
from narrows.inquiry.docket import Docket, Kind
from narrows.inquiry.hypotheses import Hypothesis, Registration
from narrows.inquiry.scopes import Rung, Scope
from narrows.inquiry.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict with its numbers, as the docket holds it."""

    hypothesis: str
    verdict: Verdict
    effect_ms: float | None
    interval_ms: tuple[float, float] | None
    reason: str
    numbers: dict[str, Any] = field(default_factory=dict)
    evidence: tuple[dict[str, Any], ...] = ()


@dataclass(slots=True, kw_only=True)
class State:
    """An index over the docket's entries. Rebuilt from the docket for every decision, never kept."""

    opened: dict[str, Any] = field(default_factory=dict)
    registrations: dict[str, Registration] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    judgements: dict[str, Judgement] = field(default_factory=dict)
    findings: dict[str, dict[str, Any]] = field(default_factory=dict)
    skipped: dict[Rung, str] = field(default_factory=dict)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    launches: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    evidence: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    failures: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    wanted: dict[str, int] = field(default_factory=dict)
    concluded: dict[str, Any] | None = None
    device_hours: float = 0.0

    @classmethod
    def of(cls, docket: Docket) -> State:
        """The state after all of ``docket``'s entries."""
        state = cls()
        for entry in docket:
            _READERS[entry.kind](state, entry.body)
        return state

    def verdict(self, key: str) -> Verdict | None:
        """The verdict on the hypothesis with this key; None when it is not registered or not judged."""
        found = self.judgement(key)
        return found.verdict if found else None

    def judgement(self, key: str) -> Judgement | None:
        return self.judgements.get(self.ids.get(key, ""))

    def pending(self, key: str) -> dict[str, Any] | None:
        """What a rejection said that waits for its sensitivity control; None where there is none."""
        return self.findings.get(f"pending:{key}")

    def hypothesis(self, key: str) -> Hypothesis | None:
        number = self.ids.get(key)
        return self.registrations[number].hypothesis if number else None

    def pairs(self, experiment: str) -> int:
        """Pairs of this experiment that evidence holds."""
        return sum(int(one["pairs"]) for one in self.evidence.get(experiment, ()))

    @property
    def reference(self) -> dict[str, Any]:
        """The effect at full scale: ``delta_ms``, the pair differences ``d_ms``, ``tested``."""
        return self.findings.get("reference", {})

    @property
    def reconciliation(self) -> dict[str, Any]:
        return self.findings.get("reconciliation", {})

    @property
    def mechanism(self) -> str | None:
        """What the evidence points to; the local account alone where the control acquitted the suspected place.

        Communication that is slow on one node already is no matter of the link between hosts.
        """
        if self.inside_host:
            return "collective"
        found = self.reconciliation.get("account" if self.acquitted else "mechanism")
        return str(found) if found else None

    @property
    def culprit(self) -> dict[str, Any] | None:
        """Who carries the loss, as ``kind`` and ``members``."""
        if self.acquitted:
            return {"kind": "all", "members": []}
        if self.inside_host:
            return self._around_the_collective()
        found: dict[str, Any] | None = self.reconciliation.get("culprit")
        return found

    @property
    def inside_host(self) -> bool:
        """Whether a loss that was read as the link's was reproduced where no link is crossed."""
        return self.reconciliation.get("mechanism") == "link" and self.first_scope is Scope.ONE_NODE

    def _around_the_collective(self) -> dict[str, Any]:
        """The host whose group is slow, where the arms differ in that host; else every rank's group."""
        registered = self.hypothesis(f"scope:{Scope.ONE_NODE.value}")
        kind = self.opened.get("case_text", {}).get("workload", {}).get("kind")
        if registered is not None and kind == ArmKind.PLACEMENT.value:
            return {"kind": "host", "members": list(registered.hosts[-1:])}
        return {"kind": "all", "members": []}

    @property
    def acquitted(self) -> bool:
        """Whether ranks that were not suspected showed the loss as well, so that it is nobody's own.

        With placement arms that would only say that a second host is slow.
        """
        if self.reconciliation.get("mechanism") not in ("slow_host", "slow_rank"):
            return False
        kind = self.opened.get("case_text", {}).get("workload", {}).get("kind")
        controls = [self.verdict(f"control:{scope.value}") for scope in Scope]
        return kind != ArmKind.PLACEMENT.value and Verdict.SUPPORTED in controls

    @property
    def first_scope(self) -> Scope | None:
        """The smallest scope at which the loss was reproduced."""
        found = [scope for scope in Scope if self.verdict(f"scope:{scope.value}") is Verdict.SUPPORTED]
        return min(found, default=None)


def _opened(state: State, body: dict[str, Any]) -> None:
    state.opened = body


def _registered(state: State, body: dict[str, Any]) -> None:
    registration = msgspec.convert(body, Registration)
    state.registrations[registration.id] = registration
    state.ids[registration.hypothesis.key] = registration.id


def _finding(state: State, body: dict[str, Any]) -> None:
    state.findings[body["topic"]] = body["numbers"]


def _skipped(state: State, body: dict[str, Any]) -> None:
    state.skipped[Rung(body["rung"])] = body["reason"]


def _asked(state: State, body: dict[str, Any]) -> None:
    state.answers.setdefault(body["gate"], {})


def _answered(state: State, body: dict[str, Any]) -> None:
    state.answers[body["gate"]] = body


def _launched(state: State, body: dict[str, Any]) -> None:
    state.launches.setdefault(body["experiment"], []).append(body)


def _failed(state: State, body: dict[str, Any]) -> None:
    state.failures.setdefault(body["experiment"], []).append(body)
    state.device_hours += float(body.get("device_hours", 0.0))


def _evidence(state: State, body: dict[str, Any]) -> None:
    state.evidence.setdefault(body["experiment"], []).append(body)
    state.device_hours += float(body["device_hours"])


def _look(state: State, body: dict[str, Any]) -> None:
    state.wanted[body["experiment"]] = max(state.wanted.get(body["experiment"], 0), int(body["wanted_pairs"]))


def _verdict(state: State, body: dict[str, Any]) -> None:
    known = {name: body[name] for name in ("hypothesis", "verdict", "effect_ms", "interval_ms", "reason")}
    state.judgements[body["hypothesis"]] = msgspec.convert(
        {**known, "numbers": body.get("numbers") or {}, "evidence": body.get("evidence") or ()}, Judgement
    )


def _concluded(state: State, body: dict[str, Any]) -> None:
    state.concluded = body


def _reopened(state: State, body: dict[str, Any]) -> None:
    state.concluded = None
    state.opened = {**state.opened, "reopened": body}


_READERS = {
    Kind.OPENED: _opened,
    Kind.REGISTERED: _registered,
    Kind.FINDING: _finding,
    Kind.SKIPPED: _skipped,
    Kind.ASKED: _asked,
    Kind.ANSWERED: _answered,
    Kind.LAUNCHED: _launched,
    Kind.FAILED: _failed,
    Kind.EVIDENCE: _evidence,
    Kind.LOOK: _look,
    Kind.VERDICT: _verdict,
    Kind.CONCLUDED: _concluded,
    Kind.REOPENED: _reopened,
}
