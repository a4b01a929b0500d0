"""`narrows plan`: what an investigation would need, before anything is launched."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from narrows.flows import engine
from narrows.flows.casefile import load_case
from narrows.flows.commands import launcher_of, print_json
from narrows.flows.exits import DONE, INCONCLUSIVE
from narrows.flows.session import Session, begin, read_given
from narrows.inquiry import plans, proposals
from narrows.inquiry.case import Case
from narrows.inquiry.design import ArmKind, Experiment, Mode
from narrows.inquiry.docket import Docket
from narrows.inquiry.errors import CaseError
from narrows.inquiry.ladder import REFERENCE_PAIRS, next_step
from narrows.inquiry.pursuit import pursued, regression_status
from narrows.inquiry.scopes import Rung, Scope
from narrows.inquiry.state import State
from narrows.inquiry.steps import Ask, Launch, Stop
from narrows.inquiry.verdict import RegressionStatus
from narrows.reducers.ledger import build_ledger
from narrows.reducers.pilot import LEAST_PAIRS, Noise, Pilot, differences, noise_of, pilot_of
from narrows.reducers.planning import PairPlan, pairs_for_equivalence, pairs_to_detect, plan_pairs
from narrows.reducers.rundir import read_run
from narrows.reducers.units import units
from narrows.reducers.views import critical_path

_FREE = (Rung.MANIFEST, Rung.RECONCILIATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopePlan:
    """What one scope takes. ``pairs`` is None where no allowed number decides; ``device_hours`` is for the planned
    pairs, or for all that are allowed."""

    scope: Scope
    ranks: int
    hosts: tuple[str, ...]
    predicted_ms: float
    kappa: float
    expected: str
    pairs: int | None
    device_hours: float
    decidable: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CasePlan:
    """The plan of a case: its effect, the noise, what each scope of the climb takes, and what would help."""

    case: str
    delta_ms: float
    status: str
    pilot: Pilot
    noise: Noise | None
    scopes: tuple[ScopePlan, ...]
    device_hours: float
    later_device_hours: float
    budget_device_hours: float
    decidable: bool
    advice: tuple[str, ...]


def plan(case_file: Path, pilot: list[Path], *, as_json: bool) -> int:
    """Prints the plan of a case. Exit code 3 where some scope cannot be decided within the budget."""
    found = plan_case(case_file, pilot)
    if as_json:
        print_json({"schema": 1, "kind": "plan", **_plain(found)})
    else:
        for line in _lines(found):
            print(line)
    return DONE if found.decidable else INCONCLUSIVE


def plan_case(case_file: Path, pilot: list[Path]) -> CasePlan:
    """The plan of the case in ``case_file``, with the noise of the identical runs ``pilot`` where given.

    Plays the rungs that launch nothing in a folder that is thrown away; the case itself is not begun. Raises
    ``CaseError`` where the runs hold no noise to plan with, and ``NarrowsError`` for runs that cannot be read.
    """
    case = load_case(case_file)
    evidence = read_given(case, case_file.resolve().parent)
    with TemporaryDirectory() as folder:
        directory = Path(folder) / "cases" / case.name
        session = Session(
            case=case, directory=directory, docket=Docket.open(directory / "docket.jsonl"), launcher=launcher_of(),
            say=lambda _line: None,
        )  # fmt: skip
        begin(session, evidence)
        _play_free_rungs(session)
        state = session.state
    spread = _pilot(case, evidence, pilot)
    noise = _noise(evidence)
    return _case_plan(case, state, spread, noise)


def _play_free_rungs(session: Session) -> None:
    while True:
        step = next_step(session.case, session.docket)
        if isinstance(step, Launch | Ask | Stop) or step.rung not in _FREE:
            return
        engine.perform(session, step)


def _pilot(case: Case, evidence: dict[str, Any], paths: list[Path]) -> Pilot:
    """The best noise there is: a pilot that was given, else the spread of the given pairs, else of identical units."""
    if paths:
        twice = sorted({str(path) for path in paths if paths.count(path) > 1})
        if twice:
            raise CaseError(f"--pilot {', '.join(twice)}: is given twice; a run says nothing new of the noise again")
        means = [mean for path in paths for mean in _unit_means(path, case.judging.statistic)]
        found = pilot_of(differences(means), f"{len(means)} identical runs or segments of the pilot")
        if found is None:
            raise CaseError(
                f"--pilot: {len(means)} runs or segments make {len(means) // 2} pairs; give at least {2 * LEAST_PAIRS}"
            )
        return found
    pairs = evidence["difference"]["step_ms"]
    inside = [d for arm in evidence["arms"].values() for d in differences([unit["step_ms"] for unit in arm["units"]])]
    found = pilot_of(pairs, f"the {len(pairs)} given pairs") or pilot_of(inside, "identical units of the given runs")
    if found is None:
        raise CaseError(
            f"{case.name}: {evidence['pairs']} given pairs say nothing of the noise; record {2 * LEAST_PAIRS} runs of "
            "the healthy configuration one after the other, and give them with --pilot RUN..."
        )
    return found


def _unit_means(path: Path, statistic: str) -> list[float]:
    """The step in ms of each run or segment in the run directory, in order of time."""
    ledger = build_ledger(read_run(path))
    return [float(one) for one in units(critical_path(ledger), ledger, statistic)["step_ms"]]


def _noise(evidence: dict[str, Any]) -> Noise | None:
    healthy = next(iter(evidence["arms"].values()))
    return noise_of([unit["steps_ms"] for unit in healthy["units"]])


def _case_plan(case: Case, state: State, pilot: Pilot, noise: Noise | None) -> CasePlan:
    rows = _rows(case, state, pilot)
    total = sum(row.device_hours for row in rows)
    later = _later_hours(case, state) if rows and pursued(state) else 0.0
    fits = total <= case.budget.device_hours
    decidable = bool(rows) and fits and all(row.decidable for row in rows if row.expected == "supported")
    advice = () if decidable or not rows else tuple(_advice(case, state, noise, rows, fits=fits))
    return CasePlan(
        case=case.name,
        delta_ms=float(state.reference["delta_ms"]),
        status=str(state.reference.get("status", "")),
        pilot=pilot,
        noise=noise,
        scopes=rows,
        device_hours=total,
        later_device_hours=later,
        budget_device_hours=case.budget.device_hours,
        decidable=decidable or not rows,
        advice=advice,
    )


def _rows(case: Case, state: State, pilot: Pilot) -> tuple[ScopePlan, ...]:
    """One row a scope of the climb; the full scale alone where the given runs do not tell whether there is a loss."""
    if case.workload.kind is ArmKind.HISTORICAL:
        return ()
    if regression_status(state) is RegressionStatus.INCONCLUSIVE:
        return (_again(case, state, pilot),)
    return tuple(_scope_plan(case, state, scope, pilot) for scope in case.scopes()) if pursued(state) else ()


def _again(case: Case, state: State, pilot: Pilot) -> ScopePlan:
    """Measuring the loss again at full scale, as an investigation does first where the given runs leave it open."""
    experiment = replace(plans.at_scope(case, state, case.full_scope), pairs=REFERENCE_PAIRS)
    delta, margin = float(state.reference["delta_ms"]), float(state.opened["margin_ms"])
    alpha = case.judging.alpha
    beyond = abs(delta) - margin
    needed = (pairs_to_detect if beyond > 0 else pairs_for_equivalence)(abs(beyond) / pilot.sd_upper_ms, alpha=alpha)
    decidable = needed is not None and needed <= REFERENCE_PAIRS
    words = "above" if beyond > 0 else "within"
    return ScopePlan(
        scope=case.full_scope,
        ranks=experiment.world_size,
        hosts=experiment.placement.names,
        predicted_ms=delta,
        kappa=1.0,
        expected="supported",
        pairs=REFERENCE_PAIRS if decidable else None,
        device_hours=experiment.device_hours(REFERENCE_PAIRS, case.judging.start_s),
        decidable=decidable,
        reason=f"showing it to lie {words} the margin of {margin:.3g} ms takes {needed or 'more than 200'} pairs, "
        + (f"{REFERENCE_PAIRS} are run" if decidable else f"more than the {REFERENCE_PAIRS} of one experiment"),
    )


def _scope_plan(case: Case, state: State, scope: Scope, pilot: Pilot) -> ScopePlan:
    experiment = plans.at_scope(case, state, scope)
    hypothesis = proposals.scope(case, state, experiment)
    predicted = float(hypothesis.pi_ms or 0.0)
    most = max(hypothesis.looks)
    found: PairPlan = plan_pairs(
        predicted, pilot.sd_upper_ms, most, n_f=max(2, len(state.reference["d_ms"])), alpha=hypothesis.alpha
    )
    pairs = None
    if found.decidable and found.pairs is not None:
        pairs = next(look for look in sorted(hypothesis.looks) if look >= found.pairs)
    start_s = case.judging.start_s
    cost = experiment.device_hours(pairs or most, start_s)
    if hypothesis.expected == "rejected":  # it stands only after an injected delay was seen there
        control = plans.sensitivity(case, experiment, hypothesis.rho * predicted)
        cost += control.device_hours(control.pairs, start_s)
    return ScopePlan(
        scope=scope,
        ranks=experiment.world_size,
        hosts=experiment.placement.names,
        predicted_ms=predicted,
        kappa=hypothesis.kappa,
        expected=hypothesis.expected or "supported",
        pairs=pairs,
        device_hours=cost,
        decidable=pairs is not None,
        reason=found.reason,
    )


def _later_hours(case: Case, state: State) -> float:
    """Perturbation at the smallest scope, the change at every larger one, and the soak, with their first pairs."""
    start = case.judging.start_s
    experiments: list[Experiment] = [plans.at_scope(case, state, scope) for scope in case.scopes()]
    soak = plans.soak(case, experiments[-1])
    return sum(one.device_hours(one.pairs, start) for one in (*experiments, soak))


def _advice(case: Case, state: State, noise: Noise | None, rows: tuple[ScopePlan, ...], *, fits: bool) -> list[str]:
    """What would help, most effective first."""
    found = []
    if not fits:
        found.append(
            f"raise budget.device_hours above {sum(row.device_hours for row in rows):.3g}, or give fewer hosts"
        )
    if all(row.decidable for row in rows):
        return found
    if noise is not None:
        longer = noise.pair_sd(4 * noise.steps) / noise.pair_sd()
        step_s = float(state.reference["healthy_ms"]) / 1000
        best = noise.best_steps(case.judging.start_s, step_s)
        if longer < 0.9:
            steps = f"about {best} steps" if best and best > noise.steps else f"{4 * noise.steps} steps or more"
            found.append(
                f"longer runs: {steps} a run instead of {noise.steps} steady ones; "
                f"four times as long brings pairs {1 - longer:.0%} closer"
            )
        else:
            found.append("longer runs would not help: the spread is between runs, not within them")
    if case.judging.mode is Mode.RESTART and case.workload.kind is ArmKind.CONFIG:
        found.append(
            "switchback (judge.mode), if the change can be toggled inside a process: it has no start-up spread"
        )
    found.append(
        "a differential metric: who arrives last and the local times of ranks resist noise that all ranks share"
    )
    return found


def _plain(found: CasePlan) -> dict[str, Any]:
    from narrows.inquiry.codec import plain

    return dict(plain(found))


def _lines(found: CasePlan) -> list[str]:
    pilot = found.pilot
    lines = [
        f"{found.case}: the loss is {found.delta_ms:.3g} ms a step at full scale ({found.status})",
        (
            f"noise: pairs of identical runs differ by {pilot.sd_ms:.3g} ms, at most {pilot.sd_upper_ms:.3g} (80 %), "
            f"by {pilot.source}"
        ),
    ]
    if not found.scopes:
        return [*lines, "nothing would be launched to search for it"]
    lines += ["", f"{'scope':10} {'ranks':>5} {'predicted':>11} {'pairs':>6} {'device-hours':>13}  what it takes"]
    for row in found.scopes:
        pairs = str(row.pairs) if row.pairs is not None else "-"
        note = row.reason if row.expected == "supported" else f"expected to be absent, with its control; {row.reason}"
        lines.append(
            f"{row.scope.words:10} {row.ranks:5} {row.predicted_ms:8.3g} ms {pairs:>6} {row.device_hours:13.3g}  {note}"
        )
    lines += [
        "",
        (
            f"the whole climb: at most {found.device_hours:.3g} of {found.budget_device_hours:.3g} device-hours; "
            "the first scope that shows the loss ends it"
        ),
        f"perturbation, scale-up and soak: about {found.later_device_hours:.3g} more",
    ]
    if not found.decidable:
        lines += ["", "cannot be decided with this budget; what would help:", *(f"  - {one}" for one in found.advice)]
    return lines
