"""A roll-out judged before it reaches the whole fleet: upgraded hosts against hosts that were not upgraded yet.

What is registered, what runs next, and how it ends: pure functions of the roll-out and its docket. The hosts are
confounded with the upgrade; a baseline of the same two sets from before it takes the hosts' own difference out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from narrows.inquiry import plans, proposals, pursuit
from narrows.inquiry.case import ArmSpec, Budget, Case, Cluster, Judging, Workload
from narrows.inquiry.codec import digest
from narrows.inquiry.design import CONTROL, ArmKind, Experiment
from narrows.inquiry.docket import Docket
from narrows.inquiry.hypotheses import Basis, Comparison, Hypothesis, Prediction, RejectionCriterion, Test
from narrows.inquiry.scopes import SCOPE_RUNGS, placement
from narrows.inquiry.state import State
from narrows.inquiry.steps import Ask, Judge, Launch, Register
from narrows.inquiry.verdict import Verdict

UPGRADED = "upgraded"
EXPERIMENT = "rollout"
SLOWER = "rollout:slower"
"""The key of the one hypothesis: supported, the upgrade is refused; rejected, it is admitted."""
MAY_DIFFER = ("placement", "hosts", "groups", "packages")
"""Manifest fields in which the sets may differ: where they run, and what an upgrade brings."""
FIRST_PAIRS = 6
STEPS, WASHOUT = 53, 3
"""A unit has 50 steady steps: a margin of 1 % is small, and longer units bring pairs closer together."""


class Admission(StrEnum):
    """How a canary roll-out ends."""

    ADMIT = "admit"
    REGRESSED = "regressed"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Two sets of as many hosts each, and the work that both play in turns.

    ``before``: none of them is upgraded yet; what is measured is the baseline of the roll-out. The margin, the largest
    slowdown that is admitted, is ``judging.margin_percent`` of the control's step.
    """

    upgraded: tuple[str, ...]
    control: tuple[str, ...]
    program: str
    builtin: bool
    ranks_per_node: int
    device: str
    launcher: str
    spec: ArmSpec = field(default_factory=ArmSpec)
    config: dict[str, Any] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    budget: Budget = field(default_factory=lambda: Budget(device_hours=1.0, ask_above_device_hours=0.25))
    judging: Judging = field(default_factory=lambda: Judging(steps=STEPS, washout=WASHOUT, pairs=FIRST_PAIRS))
    step_ms: float = plans.GUESSED_STEP_MS
    before: bool = False

    @property
    def name(self) -> str:
        """For example ``rollout-n2-n3``; of many hosts the first and their number."""
        shown = self.upgraded if len(self.upgraded) <= 2 else (self.upgraded[0], f"and-{len(self.upgraded) - 1}-more")
        return "-".join(("rollout", *shown))

    @property
    def sets(self) -> str:
        """For example ``n2, n3 against n0, n1``; of many hosts the first three and their number."""
        return f"{_spread(self.upgraded)} against {_spread(self.control)}"

    @property
    def question(self) -> str:
        return f"Are the upgraded hosts slower than hosts that were not upgraded? {self.sets}"

    def sets_digest(self) -> str:
        """The digest of what is measured: two roll-outs that share it can be subtracted from each other."""
        judged = {"statistic": self.judging.statistic, "steps": self.judging.steps, "washout": self.judging.washout}
        return digest(
            {
                "upgraded": self.upgraded, "control": self.control, "program": self.program, "spec": self.spec,
                "config": self.config, "args": self.args, "ranks_per_node": self.ranks_per_node,
                "device": self.device, **judged,
            }
        )  # fmt: skip

    def digest(self) -> str:
        """The digest of everything that the outcome depends on."""
        return digest(self)

    def as_case(self) -> Case:
        """The roll-out as the case that carrying out its experiments needs; it has no runs of its own."""
        work = Workload(
            program=self.program,
            builtin=self.builtin,
            kind=ArmKind.PLACEMENT,
            healthy=replace(self.spec, hosts=self.control),
            regressed=replace(self.spec, hosts=self.upgraded),
            config=dict(self.config),
            args=self.args,
        )
        cluster = Cluster(
            launcher=self.launcher,
            nodes=len(self.upgraded),
            ranks_per_node=self.ranks_per_node,
            hosts=(*self.control, *self.upgraded),
            device=self.device,
        )
        return Case(
            name=self.name, question=self.question, runs={}, workload=work, cluster=cluster, budget=self.budget,
            judging=self.judging,
        )  # fmt: skip

    def experiment(self, state: State) -> Experiment:
        """Both sets in one launch, taking turns on the same batches."""
        case = self.as_case()
        found = plans.node_set(
            case,
            state,
            rung=SCOPE_RUNGS[case.full_scope],
            scope=case.full_scope,
            key=EXPERIMENT,
            before=placement(self.control, self.ranks_per_node),
            after=placement(self.upgraded, self.ranks_per_node),
            parts=tuple(range(case.world_size)),
            names=(CONTROL, UPGRADED),
            spec=self.spec,
        )
        return replace(found, differs=MAY_DIFFER)


def _spread(hosts: tuple[str, ...]) -> str:
    return ", ".join(hosts) if len(hosts) <= 3 else f"{', '.join(hosts[:3])} and {len(hosts) - 3} more"


def next_step(rollout: Rollout, docket: Docket) -> Register | Launch | Judge | Ask | None:
    """The one thing to do now; None when everything is judged, or a person aborted it."""
    state, case = State.of(docket), rollout.as_case()
    if aborted(state):
        return None
    experiment = rollout.experiment(state)
    step = _insensitive(case, state, experiment) or pursuit.pursue(
        case, state, experiment.rung, [_slower(rollout, state, experiment)], experiment
    )
    assert step is None or isinstance(step, (Register, Launch, Judge, Ask))
    return step


def aborted(state: State) -> bool:
    return any(answer.get("decision") == "abort" for answer in state.answers.values())


def sensitivity_key(case: Case) -> str:
    """The key of the control that an admission needs."""
    return f"sensitivity:{case.full_scope.value}"


def _insensitive(case: Case, state: State, experiment: Experiment) -> Register | Launch | Judge | Ask | None:
    """Before an upgrade is admitted, a delay of the margin is injected on the control hosts, which must be seen."""
    registered, pending = state.hypothesis(SLOWER), state.pending(SLOWER)
    if registered is None or pending is None or state.judgement(SLOWER) is not None:
        return None
    delay_ms = float(pending["delay_ms"])
    control = plans.sensitivity(case, experiment, delay_ms)
    tested = replace(registered, pi_ms=delay_ms / registered.rho)
    wanted = [proposals.sensitivity(case, tested, control)]
    step = pursuit.pursue(case, state, registered.rung, wanted, control)
    assert step is None or isinstance(step, (Register, Launch, Judge, Ask))
    return step


def _slower(rollout: Rollout, state: State, experiment: Experiment) -> Hypothesis:
    margin, baseline = rollout.judging.margin_percent, state.findings.get("baseline")
    metric = "step time, upgraded over control"
    if baseline:
        metric += f", less the baseline ({baseline['source']})"
    who = "hosts that are to be upgraded" if rollout.before else "upgraded hosts"
    return Hypothesis(
        key=SLOWER,
        rung=experiment.rung,
        test=Test.ROLLOUT,
        basis=Basis.EXPERIMENT,
        scope=experiment.scope,
        hosts=experiment.placement.names,
        experiment=experiment.key,
        claim=f"The {who} are slower than the control hosts by more than {margin:g} % of the control's step",
        mechanism="placement" if rollout.before else "upgrade",
        prediction=Prediction(metric=metric, unit="%", low=margin, high=None),
        reject_if=RejectionCriterion(metric=metric, comparison=Comparison.UPPER_BELOW, bound=margin, unit="%"),
        pi_source=f"margin: {margin:g} % of the control's step, as measured beside it",
        expected="rejected",
        **proposals.common(rollout.as_case()),
    )


def outcome(state: State) -> tuple[Admission, str]:
    """How the roll-out ends, and the sentence that decides it."""
    found = state.judgement(SLOWER)
    if found is None:
        return Admission.INCONCLUSIVE, "a person aborted it" if aborted(state) else "nothing was judged"
    ends = {Verdict.SUPPORTED: Admission.REGRESSED, Verdict.REJECTED: Admission.ADMIT}
    return ends.get(found.verdict, Admission.INCONCLUSIVE), found.reason
