"""The engine carries out what the ladder asks for: from the case file to the conclusion, and on after a kill."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from model_machines import SLOW_INPUT, ModelHandle, ModelLauncher, write_case

from narrows.flows import engine, judging
from narrows.flows.approval import Answer, Decision
from narrows.flows.launching import LaunchCancelledError, LaunchPlan, LaunchResult
from narrows.flows.local_launcher import LocalLauncher
from narrows.flows.session import Session, open_session
from narrows.inquiry.conclusion import conclude
from narrows.inquiry.docket import Docket, Kind
from narrows.inquiry.errors import CaseError, DeclinedError, LaunchError, NarrowsError
from narrows.inquiry.ladder import next_step
from narrows.inquiry.scopes import Rung
from narrows.inquiry.steps import Launch, StopReason
from narrows.inquiry.verdict import Verdict


@pytest.fixture
def machines(recorded_arm: type[Any]) -> ModelLauncher:
    return ModelLauncher(recorded_arm)


@pytest.fixture
def case_file(tmp_path: Path, machines: ModelLauncher, record_pair: Callable[..., Any]) -> Path:
    return write_case(tmp_path, machines, record_pair)


def opened(case_file: Path, machines: Any, **given: Any) -> Session:
    session = open_session(case_file, machines, **given)
    session.say = lambda _text: None
    return session


def change(case_file: Path, section: str, **keys: Any) -> None:
    value = yaml.safe_load(case_file.read_text())
    value[section] |= keys
    case_file.write_text(yaml.safe_dump(value))


def verdicts(session: Session) -> dict[str, str]:
    state = session.state
    return {key: found.verdict.value for key in state.ids if (found := state.judgement(key)) is not None}


def test_a_planted_cause_is_found_proved_and_closed(case_file: Path, machines: ModelLauncher) -> None:
    session = opened(case_file, machines)
    said: list[str] = []
    session.say = said.append
    assert engine.run(session).reason is StopReason.EXPLAINED
    assert machines.submitted == ["one_rank-regressed/launch-1", "synthetic-input-one_rank/launch-1"]
    found = conclude(session.state)
    assert (found.mechanism, found.account, found.first_scope) == ("input", "input", "one_rank")
    assert (found.perturbation, found.closing) == ("supported", "closed")
    effect = session.state.judgement("scope:one_rank")
    assert effect is not None
    assert effect.effect_ms == pytest.approx(6.0, abs=0.05)
    assert any("SUPPORTED" in line for line in said)
    # What was said before a launch is what was registered for it.
    first = next(at for at, line in enumerate(said) if "6 pairs of healthy and regressed" in line)
    assert any("predicts step time" in line for line in said[:first])


def test_the_docket_on_disk_holds_all_of_it_and_every_verdict_can_be_traced(
    case_file: Path, machines: ModelLauncher
) -> None:
    session = opened(case_file, machines)
    engine.run(session)
    docket = Docket.open(session.directory / "docket.jsonl")
    assert docket.entries == session.docket.entries
    assert docket.entries[0].kind is Kind.OPENED
    assert docket.entries[-1].kind is Kind.CONCLUDED
    for entry in docket.of(Kind.EVIDENCE):
        part = json.loads((session.directory / entry.body["file"]).read_text())
        assert part["digest"] == entry.body["digest"]
        assert part["pairs"] == entry.body["pairs"]
        for run in entry.body["runs"]:
            assert (session.directory / run["path"] / "manifest.json").is_file()
    for entry in docket.of(Kind.VERDICT):
        assert (session.directory / entry.body["file"]).is_file()


def test_a_concluded_case_is_not_concluded_twice(case_file: Path, machines: ModelLauncher) -> None:
    session = opened(case_file, machines)
    engine.run(session)
    length = len(session.docket)
    engine.run(session)
    assert len(session.docket) == length


def test_runs_without_a_loss_launch_nothing(
    case_file: Path, machines: ModelLauncher, record_pair: Callable[..., Any], tmp_path: Path
) -> None:
    same = machines.run(("n0", "n0", "n1", "n1"), {"slow_input": 0})
    record_pair(tmp_path / "same", same, same)
    change(case_file, "runs", healthy="same/runs/healthy", regressed="same/runs/regressed")
    session = opened(case_file, machines)
    assert engine.run(session).reason is StopReason.NO_REGRESSION
    assert machines.submitted == []
    assert conclude(session.state).mechanism is None


def test_machines_that_fail_twice_leave_everything_inconclusive(case_file: Path, machines: ModelLauncher) -> None:
    def fail(plan: LaunchPlan) -> None:
        raise LaunchError(f"{plan.name}: rank 1 on n0 ended with exit code 1")

    machines.before = fail
    session = opened(case_file, machines)
    assert engine.run(session).reason is StopReason.NOT_REPRODUCED
    scopes = ("one_rank", "one_node", "two_nodes")
    assert machines.submitted == [f"{scope}-regressed/launch-{at}" for scope in scopes for at in (1, 2)]
    assert {verdicts(session)[f"scope:{scope}"] for scope in scopes} == {"inconclusive"}
    judgement = session.state.judgement("scope:one_rank")
    assert judgement is not None
    assert "rank 1 on n0 ended with exit code 1" in judgement.reason
    assert conclude(session.state).mechanism is None


def test_a_launch_whose_run_cannot_be_read_has_failed(case_file: Path, machines: ModelLauncher) -> None:
    session = opened(case_file, machines)
    submit = machines.submit

    def damaged(plan: LaunchPlan, **given: Any) -> ModelHandle:
        handle = submit(plan, **given)
        if plan.name.startswith("one_rank-regressed"):
            for path in Path(plan.watch[0]).glob("healthy/ranks/*/steps.jsonl"):
                path.write_text(path.read_text().replace('"step"', '"stepp"', 3))
        return handle

    machines.submit = damaged  # type: ignore[method-assign]  # the same machines, with a bad disk
    engine.run(session)
    assert verdicts(session)["scope:one_rank"] == "inconclusive"
    assert len(session.docket.of(Kind.FAILED)) == 2
    assert verdicts(session)["scope:one_node"] == "supported"


def test_arms_that_differ_in_what_they_do_not_declare_decide_nothing(case_file: Path, machines: ModelLauncher) -> None:
    machines.packages = {"torch": "9.9"}
    session = opened(case_file, machines)
    engine.run(session)
    judgement = session.state.judgement("scope:one_rank")
    assert judgement is not None
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "confounded" in judgement.reason
    assert "packages.torch" in judgement.reason


def test_more_pairs_are_added_to_the_same_experiment(case_file: Path, machines: ModelLauncher) -> None:
    """At the first look the pairs disagree; later ones are clear."""
    session = opened(case_file, machines)
    engine.run(session, Rung.RECONCILIATION)
    plain_run = machines.run

    def noisy(hosts: tuple[str, ...], config: dict[str, Any], steps: int = 12) -> Any:
        run = plain_run(hosts, config, steps)
        read = run.read
        run.read = lambda rank, step: read(rank, step) + (14.0 if step // steps in (0, 3, 5, 8) else 0.0)
        return run

    machines.run = noisy  # type: ignore[method-assign]  # the same machines, disturbed at the start
    step = next_launch(session)
    assert (step.first_pair, step.pairs) == (0, 6)
    engine.run(session, Rung.ONE_RANK)
    looks = session.docket.of(Kind.LOOK)
    launches = [entry.body for entry in session.docket.of(Kind.LAUNCHED)]
    assert looks
    assert [(one["first_pair"], one["pairs"]) for one in launches][:2] == [
        (0, 6),
        (6, looks[0].body["wanted_pairs"] - 6),
    ]
    evidence = session.evidence("one_rank-regressed")
    assert evidence["pairs"] == sum(one["pairs"] for one in launches)
    assert "scope:one_rank" in verdicts(session)


def next_launch(session: Session) -> Launch:
    """Takes steps until a launch comes, and gives that back undone."""
    for _ in range(50):
        step = next_step(session.case, session.docket)
        if isinstance(step, Launch):
            return step
        engine.perform(session, step)
    raise AssertionError("no launch came")


@pytest.fixture
def alone_no_loss(machines: ModelLauncher) -> ModelLauncher:
    """Machines on which one rank alone does not show the loss."""
    plain_run = machines.run

    def run(hosts: tuple[str, ...], config: dict[str, Any], steps: int = 12) -> Any:
        return plain_run(hosts, config | ({"slow_input": 0} if len(hosts) == 1 else {}), steps)

    machines.run = run  # type: ignore[method-assign]
    return machines


def test_a_rejected_scope_was_shown_to_be_able_to_see_a_delay(case_file: Path, alone_no_loss: ModelLauncher) -> None:
    session = opened(case_file, alone_no_loss)
    said: list[str] = []
    session.say = said.append
    assert engine.run(session).reason is StopReason.EXPLAINED
    assert alone_no_loss.submitted[:3] == [f"one_rank-{what}/launch-1" for what in ("regressed", "sensitivity")] + [
        "one_node-regressed/launch-1"
    ]
    judged, seen = (session.state.judgement(f"{what}:one_rank") for what in ("scope", "sensitivity"))
    assert judged is not None
    assert seen is not None
    assert (judged.verdict, seen.verdict) == (Verdict.REJECTED, Verdict.SUPPORTED)
    registered = session.state.hypothesis("scope:one_rank")
    assert registered is not None
    assert seen.effect_ms == pytest.approx(registered.reject_if.bound, rel=0.05)
    assert "an injected delay of 3.0 ms was seen here" in judged.reason
    assert judged.numbers["sensitivity"]["hypothesis"] == session.state.ids["sensitivity:one_rank"]
    assert any("must be seen there before it is rejected" in line for line in said)


def test_a_scope_that_hides_the_injected_delay_is_inconclusive(case_file: Path, alone_no_loss: ModelLauncher) -> None:
    run = alone_no_loss.run

    def blind(hosts: tuple[str, ...], config: dict[str, Any], steps: int = 12) -> Any:
        return run(hosts, config | {"injected_delay_ms": 0.0}, steps)

    alone_no_loss.run = blind  # type: ignore[method-assign]
    session = opened(case_file, alone_no_loss)
    engine.run(session)
    judged = session.state.judgement("scope:one_rank")
    assert judged is not None
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert judged.reason == "insensitive: an injected delay of 3.0 ms moved this scope by 0.0 ms"
    assert verdicts(session)["sensitivity:one_rank"] == "rejected"


def test_a_control_that_could_not_run_leaves_its_scope_inconclusive(
    case_file: Path, alone_no_loss: ModelLauncher
) -> None:
    def fail(plan: LaunchPlan) -> None:
        if "sensitivity" in plan.name:
            raise LaunchError(f"{plan.name}: rank 0 on n1 ended with exit code 1")

    alone_no_loss.before = fail
    session = opened(case_file, alone_no_loss)
    assert engine.run(session).reason is StopReason.EXPLAINED
    judged = session.state.judgement("scope:one_rank")
    assert judged is not None
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert "sensitivity not checked: could not be run: " in judged.reason


def test_a_kill_before_or_after_a_control_changes_no_verdict(case_file: Path, alone_no_loss: ModelLauncher) -> None:
    session = opened(case_file, alone_no_loss)
    engine.run(session)
    path = session.directory / "docket.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    at = [number for number, line in enumerate(lines) if b"pending:" in line or b"sensitivity" in line]
    for keep in (at[0], at[0] + 1, at[len(at) // 2], at[-1] + 1):
        path.write_bytes(b"".join(lines[:keep]))
        again = opened(case_file, alone_no_loss, resume=True)
        assert engine.run(again).reason is StopReason.EXPLAINED
        assert verdicts(again) == verdicts(session)


def test_an_undecided_scope_says_which_rank_moved_against_the_others(case_file: Path, machines: ModelLauncher) -> None:
    """The ranks of a node share noise that buries the step's change; rank 1 alone is slower, by 1 ms."""
    plain_run = machines.run

    def noisy(hosts: tuple[str, ...], config: dict[str, Any], steps: int = 12) -> Any:
        run = plain_run(hosts, config | {"slow_input": 0}, steps)
        fault = 1.0 if config.get("slow_input") and len(hosts) == 2 else 0.0

        def compute(rank: int, step: int) -> float:
            own = 0.1 * ((5 * rank + step) % 4)
            return 20.0 + 40.0 * ((0.618 * (step // steps)) % 1.0) + own + (fault if rank == 1 else 0.0)

        if len(hosts) == 2:
            run.compute = compute
        return run

    machines.run = noisy  # type: ignore[method-assign]
    session = opened(case_file, machines)
    engine.run(session, Rung.ONE_NODE)
    found = session.state.judgement("scope:one_node")
    assert found is not None
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "one rank moved against the others (rank 1: its local time by 0.50 ms" in found.reason
    assert found.numbers["findings"] == ["rank_difference"]


# Killed and begun again.


def test_a_cancelled_launch_is_run_again_and_counts_as_no_failure(case_file: Path, machines: ModelLauncher) -> None:
    def cancel(plan: LaunchPlan) -> None:
        raise LaunchCancelledError(f"{plan.name} was cancelled", LaunchResult(name="", returncode=-1, seconds=0))

    machines.before = cancel
    session = opened(case_file, machines)
    with pytest.raises(LaunchCancelledError):
        engine.run(session)
    assert session.docket.entries[-1].kind is Kind.LAUNCHED
    machines.before = lambda _plan: None
    again = opened(case_file, machines, resume=True)
    assert engine.run(again).reason is StopReason.EXPLAINED
    assert [entry.body["launch"] for entry in again.docket.of(Kind.LAUNCHED)][:2] == [1, 2]
    assert again.docket.of(Kind.FAILED) == []


def test_a_kill_between_any_two_lines_changes_no_verdict(case_file: Path, machines: ModelLauncher) -> None:
    session = opened(case_file, machines)
    engine.run(session)
    path = session.directory / "docket.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for keep in range(2, len(lines), 9):
        path.write_bytes(b"".join(lines[:keep]))
        again = opened(case_file, machines, resume=True)
        assert engine.run(again).reason is StopReason.EXPLAINED
        assert verdicts(again) == verdicts(session)
        assert conclude(again.state) == conclude(session.state)


def test_what_is_begun_is_neither_begun_again_nor_continued_with_another_text(
    case_file: Path, machines: ModelLauncher
) -> None:
    engine.run(opened(case_file, machines), Rung.MANIFEST)
    with pytest.raises(CaseError, match="was begun already; continue it with --resume"):
        opened(case_file, machines)
    change(case_file, "judge", margin_percent=5)
    with pytest.raises(CaseError, match="the case file changed since"):
        opened(case_file, machines, resume=True)
    fresh = opened(case_file, machines, fresh=True)
    assert len(fresh.docket) == 1
    assert (case_file.parent / "cases" / "slow-input.1" / "docket.jsonl").is_file()


def test_looking_at_a_case_that_was_never_begun_begins_nothing(case_file: Path, machines: ModelLauncher) -> None:
    with pytest.raises(CaseError, match="is not begun yet"):
        opened(case_file, machines, resume=True, exclusive=False)
    assert not (case_file.parent / "cases").exists()


def test_evidence_that_is_gone_is_named(case_file: Path, machines: ModelLauncher) -> None:
    session = opened(case_file, machines)
    engine.run(session, Rung.MANIFEST)
    (session.directory / "evidence" / "given.json").unlink()
    again = opened(case_file, machines, resume=True)
    with pytest.raises(CaseError, match=r"given\.json: the evidence cannot be read .*restore it"):
        engine.run(again)


# People.


def asking(session: Session, decision: Decision) -> list[str]:
    asked: list[str] = []

    def ask(step: Any) -> Answer:
        asked.append(step.gate)
        return Answer(decision=decision, by="somebody", reason="because")

    session.ask = ask
    return asked


@pytest.fixture
def dear(case_file: Path) -> Path:
    change(case_file, "budget", ask_above_device_hours=0)
    return case_file


def test_nothing_is_launched_before_somebody_approved_it(dear: Path, machines: ModelLauncher) -> None:
    session = opened(dear, machines)
    with pytest.raises(DeclinedError, match="nobody is there to approve it"):
        engine.run(session)
    assert machines.submitted == []
    assert session.docket.of(Kind.ASKED) == []
    asked = asking(session, Decision.APPROVE)
    assert engine.run(session).reason is StopReason.EXPLAINED
    assert asked == ["one_rank-regressed", "synthetic-input-one_rank"]


def test_no_answer_is_no_approval_and_is_asked_again(dear: Path, machines: ModelLauncher) -> None:
    session = opened(dear, machines)
    asking(session, Decision.DECLINED)
    with pytest.raises(DeclinedError, match=r"not approved: because\. Continue with --resume"):
        engine.run(session)
    assert machines.submitted == []
    assert session.docket.entries[-1].kind is Kind.ASKED
    assert asking(session, Decision.APPROVE) == []
    assert engine.run(session).reason is StopReason.EXPLAINED


def test_what_is_skipped_is_inconclusive_and_says_who_declined_it(dear: Path, machines: ModelLauncher) -> None:
    session = opened(dear, machines)
    asking(session, Decision.SKIP)
    assert engine.run(session).reason is StopReason.NOT_REPRODUCED
    assert machines.submitted == []
    judgement = session.state.judgement("scope:one_rank")
    assert judgement is not None
    assert judgement.reason == "not run: somebody declined it (because)"


def test_an_abort_concludes_the_case_as_stopped(dear: Path, machines: ModelLauncher) -> None:
    session = opened(dear, machines)
    asking(session, Decision.ABORT)
    assert engine.run(session).reason is StopReason.ABORTED
    concluded = session.state.concluded
    assert concluded is not None
    assert concluded["status"] == "stopped"


def test_until_stops_before_the_next_rung(case_file: Path, machines: ModelLauncher) -> None:
    session = opened(case_file, machines)
    assert engine.run(session, Rung.RECONCILIATION).reason is StopReason.UNTIL
    assert machines.submitted == []
    assert session.state.concluded is None
    assert session.state.mechanism == "input"


def test_every_test_that_a_hypothesis_can_name_has_a_judge() -> None:
    from narrows.inquiry.hypotheses import Test

    elsewhere = {Test.NUMERATOR, Test.ACCOUNT, Test.RANGE, Test.ROLLOUT}  # on given runs, claims, and roll-outs
    assert set(judging._TESTS) == set(Test) - elsewhere


@pytest.mark.dist
def test_one_rung_with_real_processes(tmp_path: Path, machines: ModelLauncher, record_pair: Callable[..., Any]) -> None:
    """Two ranks on gloo play a few short segments of both arms; the engine reads what they wrote."""
    record_pair(tmp_path, machines.run(("n0", "n0"), {}), machines.run(("n0", "n0"), {"slow_input": 6000}))
    small = {"layers": 1, "hidden": 8, "heads": 1, "tokens_per_rank": 64, "mean_doc_tokens": 32, "max_doc_tokens": 64,
             "loader_us": 100, "h2d_us": 100, "fabric_delay_us": 100}  # fmt: skip
    case = SLOW_INPUT | {
        "workload": {"program": "step", "config": small, "healthy": {}, "regressed": {"slow_input": 20_000}},
        "cluster": {"nodes": 1, "ranks_per_node": 2},
        "judge": {"steps": 4, "washout": 1, "pairs": 4},
    }
    path = tmp_path / "case.yaml"
    path.write_text(yaml.safe_dump(case))
    session = opened(path, LocalLauncher())
    try:
        engine.run(session, Rung.ONE_RANK)
        engine.run(session, Rung.ONE_NODE)
    except NarrowsError as error:  # what the machines said is the test's report
        pytest.fail(str(error))
    assert session.docket.of(Kind.FAILED) == []
    found = session.state.judgement("scope:one_rank")
    assert found is not None
    assert found.verdict is Verdict.SUPPORTED
    evidence = session.evidence("one_rank-regressed")
    assert evidence["emulated"] is True
    assert evidence["pairs"] >= 4
    assert evidence["confounded"] == []
