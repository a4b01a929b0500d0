"""Cases without files, and scripted worlds that play the real ladder against a real docket: nothing is launched."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from narrows.flows.playbook import load_playbook
from narrows.inquiry.case import ArmSpec, Budget, Case, Cluster, Judging, Workload
from narrows.inquiry.codec import plain
from narrows.inquiry.conclusion import Conclusion, conclude
from narrows.inquiry.design import ArmKind
from narrows.inquiry.docket import Docket, Entry, Kind
from narrows.inquiry.hypotheses import Basis, Hypothesis, Registration, Test
from narrows.inquiry.ladder import next_step
from narrows.inquiry.scopes import Rung
from narrows.inquiry.state import State
from narrows.inquiry.steps import Ask, Judge, Launch, Register, Skip, Step, Stop, Topic
from narrows.inquiry.verdict import Verdict

DELTA_MS = 6.0
ALWAYS = ("compute", "transfer", "skew", "input", "residual")


def make_case(**given: Any) -> Case:
    """Two nodes of two ranks unless ``given`` says otherwise; ``workload`` and ``budget`` take fields to change."""
    nodes, ranks = given.pop("nodes", 2), given.pop("ranks_per_node", 2)
    work = {
        "program": "step",
        "builtin": True,
        "kind": ArmKind.CONFIG,
        "healthy": ArmSpec(config={"packing": "snake"}),
        "regressed": ArmSpec(config={"packing": "greedy"}),
    } | given.pop("workload", {})
    budget = {"device_hours": 10.0, "ask_above_device_hours": 10.0} | given.pop("budget", {})
    hosts = given.pop("hosts", tuple(f"n{at}" for at in range(nodes)))
    fields = {
        "name": "scripted",
        "question": "The step got slower.",
        "runs": {"healthy": ("/runs/healthy",), "regressed": ("/runs/regressed",)},
        "workload": Workload(**work),
        "cluster": Cluster(launcher="local", nodes=nodes, ranks_per_node=ranks, hosts=hosts, device="emulated"),
        "budget": Budget(**budget),
        "judging": Judging(**given.pop("judging", {})),
        "playbook": load_playbook(),
    }
    return Case(**(fields | given))


@dataclass(kw_only=True)
class World:
    """What every experiment would show. ``verdicts`` answers by hypothesis key; what it lacks takes ``otherwise``."""

    regression: str = "supported"
    tested: bool = True
    delta_ms: float = DELTA_MS
    numerator: str = "rejected"
    reading: dict[str, Any] = field(default_factory=dict)
    verdicts: dict[str, str] = field(default_factory=dict)
    otherwise: str = "inconclusive"
    statuses: dict[str, str] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    wanted: dict[str, list[int]] = field(default_factory=dict)
    decisions: dict[str, str] = field(default_factory=dict)

    def verdict(self, hypothesis: Hypothesis) -> Verdict:
        if hypothesis.key == "regression":
            return Verdict(self.regression)
        if hypothesis.test is Test.NUMERATOR:
            return Verdict(self.numerator)
        if hypothesis.test is Test.ACCOUNT:
            assert hypothesis.account is not None
            return Verdict.SUPPORTED if hypothesis.account.value == self.reading.get("account") else Verdict.REJECTED
        if hypothesis.test is Test.SENSITIVITY:
            return Verdict(self.verdicts.get(hypothesis.key, "supported"))
        return Verdict(self.verdicts.get(hypothesis.key, self.otherwise))

    def wants(self, asked: str, pairs: int) -> int | None:
        """The pairs that a look asks for once there are ``pairs``; None when those are enough.

        ``asked`` is the experiment, or the key of a closing, which is judged on an experiment of another rung.
        """
        return next((one for one in self.wanted.get(asked, ()) if one > pairs), None)


@dataclass(kw_only=True)
class RandomWorld(World):
    """Every answer drawn from a seed and the name of what is asked, so that a replay meets the same world."""

    seed: int = 0

    def _draw(self, name: str) -> random.Random:
        return random.Random(f"{self.seed} {name}")

    def verdict(self, hypothesis: Hypothesis) -> Verdict:
        if hypothesis.test is Test.ACCOUNT:
            return super().verdict(hypothesis)
        known = {"regression": self.regression, "numerator": self.numerator}
        return Verdict(known.get(hypothesis.key) or self._draw(hypothesis.key).choice(list(Verdict)).value)

    def wants(self, asked: str, pairs: int) -> int | None:
        return next((one for one in (8, 12) if one > pairs and self._draw(f"{asked} {one}").random() < 0.3), None)


@dataclass(kw_only=True)
class Player:
    """Carries out the ladder's steps as the engine does, with entries in the engine's form and a clock of its own."""

    case: Case
    world: World
    docket: Docket = field(default_factory=lambda: Docket(None))
    steps: list[tuple[int, Step]] = field(default_factory=list)
    now_ns: int = 1_000

    def __post_init__(self) -> None:
        if not len(self.docket):
            opened = {"case": self.case.name, "margin_ms": 0.5, "healthy_step_ms": 50.0, "accounts": list(ALWAYS)}
            self.note(Kind.OPENED, opened)
        self.now_ns = self.docket.entries[-1].at_ns + 1_000

    def note(self, kind: Kind, body: dict[str, Any]) -> Entry:
        self.now_ns += 10
        return self.docket.append(kind, plain(body), self.now_ns)

    @property
    def state(self) -> State:
        return State.of(self.docket)

    @property
    def conclusion(self) -> Conclusion:
        return conclude(self.state)

    def play(self, limit: int = 200) -> Stop:
        """Takes steps to the end. Fails when there is none after ``limit`` of them."""
        for _ in range(limit):
            step = next_step(self.case, self.docket)
            self.steps.append((len(self.docket), step))
            if isinstance(step, Stop):
                return step
            self._take(step)
        raise AssertionError(f"no end after {limit} steps; the last one is {self.steps[-1]}")

    def _take(self, step: Step) -> None:
        if isinstance(step, Register):
            self._register(step)
        elif isinstance(step, Launch):
            self._launch(step)
        elif isinstance(step, Judge):
            self._judge(step)
        elif isinstance(step, Ask):
            self.note(Kind.ASKED, {"gate": step.gate, "question": step.question, "device_hours": step.device_hours})
            decision = self.world.decisions.get(step.gate, "approve")
            self.note(Kind.ANSWERED, {"gate": step.gate, "decision": decision, "by": "somebody", "reason": ""})
        else:
            assert isinstance(step, Skip)
            self.note(Kind.SKIPPED, {"rung": step.rung, "reason": step.reason})

    def _register(self, step: Register) -> None:
        known = len(self.docket.of(Kind.REGISTERED))
        for number, one in enumerate(step.hypotheses, start=known + 1):
            record = Registration(id=f"H{number:02d}", hypothesis=one, created_ns=self.now_ns).sealed()
            self.note(Kind.REGISTERED, plain(record))

    def _launch(self, step: Launch) -> None:
        key = step.experiment.key
        self.note(Kind.LAUNCHED, {"experiment": key, "launch": step.launch, "pairs": step.pairs})
        if len(self.state.failures.get(key, ())) < self.world.failures.get(key, 0):
            self.note(Kind.FAILED, {"experiment": key, "launch": step.launch, "reason": "rank 1 on n0 ended"})
            return
        body = {"experiment": key, "launch": step.launch, "pairs": step.pairs, "started_ns": self.now_ns + 5}
        self.note(Kind.EVIDENCE, body | {"device_hours": step.device_hours, "file": f"{key}-{step.launch}.json"})

    def _judge(self, step: Judge) -> None:
        if step.topic is Topic.RECONCILIATION:
            self._finding(step.rung, "reconciliation", self.world.reading)
        for number in step.hypotheses:
            self._judge_one(step, self.state.registrations[number])

    def _judge_one(self, step: Judge, one: Registration) -> None:
        key, experiment = one.hypothesis.key, step.experiment or ""
        seen = self.state.evidence.get(experiment, [])
        missing = one.hypothesis.basis is Basis.EXPERIMENT and not seen
        pairs = sum(part["pairs"] for part in seen)
        asked = {Test.SCOPE: experiment, Test.PERTURBATION: experiment, Test.CLOSING: key}.get(one.hypothesis.test)
        more = self.world.wants(asked, pairs) if asked else None
        declined = self.state.answers.get(experiment, {}).get("decision") == "skip"
        if more and not declined and not missing and len(self.state.failures.get(experiment, ())) < 2:
            self.note(Kind.LOOK, {"hypothesis": one.id, "experiment": experiment, "wanted_pairs": more})
            return
        verdict = Verdict.INCONCLUSIVE if missing else self.world.verdict(one.hypothesis)
        if key.startswith("regression"):
            numbers = {"delta_ms": self.world.delta_ms, "d_ms": [self.world.delta_ms], "tested": self.world.tested}
            self._finding(step.rung, "reference", numbers)
        if key == "numerator":
            changed = self.world.numerator == "supported"
            self._finding(step.rung, "numerator", {"changed": changed, "pi_ms": DELTA_MS})
        if verdict is Verdict.REJECTED and key.startswith("scope:") and self.state.pending(key) is None:
            self._finding(step.rung, f"pending:{key}", {"hypothesis": one.id, "reason": "as the world is"})
            return
        if key.startswith("scope:") and verdict is Verdict.REJECTED:
            shown = self.state.verdict(f"sensitivity:{one.hypothesis.scope}")
            verdict = Verdict.REJECTED if shown is Verdict.SUPPORTED else Verdict.INCONCLUSIVE
        share = {Verdict.SUPPORTED: 1.0, Verdict.REJECTED: 0.02, Verdict.INCONCLUSIVE: 0.5}[verdict]
        pi = one.hypothesis.pi_ms or DELTA_MS
        body = {
            "hypothesis": one.id,
            "verdict": verdict,
            "effect_ms": None if missing else pi * share,
            "interval_ms": None if missing else (pi * share - 0.1, pi * share + 0.1),
            "reason": "as the world is",
            "numbers": {"status": self.world.statuses.get(key, "closed")} if key.startswith("closing") else {},
            "evidence": [{"experiment": experiment, "launch": part["launch"]} for part in seen],
        }
        self.note(Kind.VERDICT, body)

    def _finding(self, rung: Rung, topic: str, numbers: dict[str, Any]) -> None:
        self.note(Kind.FINDING, {"rung": rung, "topic": topic, "numbers": numbers, "file": "evidence/given.json"})

    # What happened, in words for assertions.

    def of(self, kind: type[Step]) -> list[Any]:
        return [step for _, step in self.steps if isinstance(step, kind)]

    @property
    def launched(self) -> list[str]:
        """Experiments in order of launch, each as often as it was launched."""
        return [entry.body["experiment"] for entry in self.docket.of(Kind.LAUNCHED)]

    @property
    def rungs(self) -> list[int]:
        """Rung numbers in the order in which something other than skipping was done there."""
        numbers = [step.rung.number for _, step in self.steps if not isinstance(step, (Stop, Skip))]
        return list(dict.fromkeys(numbers))

    @property
    def skips(self) -> dict[Rung, str]:
        return self.state.skipped

    def verdicts(self) -> dict[str, str]:
        state = self.state
        return {key: found.verdict.value for key in state.ids if (found := state.judgement(key)) is not None}


@pytest.fixture(scope="session")
def case_of() -> Callable[..., Case]:
    return make_case


@pytest.fixture(scope="session")
def world_of() -> type[World]:
    return World


@pytest.fixture(scope="session")
def random_world() -> type[RandomWorld]:
    return RandomWorld


@pytest.fixture(scope="session")
def player_of() -> Callable[..., Player]:
    """A player of a world; ``play`` it."""

    def make(world: World, case: Case | None = None, **given: Any) -> Player:
        return Player(case=case or make_case(), world=world, **given)

    return make


@pytest.fixture
def docket_file(tmp_path: Path) -> Path:
    return tmp_path / "docket.jsonl"
