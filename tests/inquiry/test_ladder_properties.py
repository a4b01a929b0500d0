"""Whatever the world answers: the ladder ends, never goes back, launches only what was registered, and resumes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from narrows.inquiry.case import ArmSpec
from narrows.inquiry.conclusion import report
from narrows.inquiry.design import ArmKind
from narrows.inquiry.docket import Docket, Kind
from narrows.inquiry.ladder import next_step
from narrows.inquiry.proposals import MECHANISM_WORDS
from narrows.inquiry.scopes import Scope
from narrows.inquiry.steps import Launch, Stop, StopReason
from narrows.inquiry.verdict import RegressionStatus, Verdict

MAX_STEPS = 200
ACCOUNTS = {"imbalance": "skew", "link": "transfer", "collective": "transfer", "slow_host": "compute",
            "slow_rank": "compute", "numerator": "compute"}  # fmt: skip
VERDICTS = st.sampled_from([one.value for one in Verdict])


@st.composite
def scripts(draw: st.DrawFn) -> dict[str, Any]:
    """A case and a world, as plain values."""
    nodes, width = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    mechanism = draw(st.sampled_from(sorted(set(MECHANISM_WORDS) - {"numerator"})))
    many = mechanism in ("slow_host", "slow_rank")
    first = draw(st.integers(0, nodes * width - 1))
    return {
        "nodes": nodes,
        "ranks_per_node": width,
        "hosts": (hosts := [f"n{at}" for at in range(nodes + draw(st.integers(0, 2)))]),
        "healthy_hosts": (other := draw(st.permutations(hosts))[:nodes]),
        "kind": draw(st.sampled_from([one.value for one in ArmKind if one != "placement" or other != hosts[:nodes]])),
        "builtin": draw(st.booleans()),
        "perturbed": draw(st.booleans()),
        "ask": draw(st.sampled_from([0.0, 0.02, 10.0])),
        "hours": draw(st.sampled_from([0.0, 0.05, 10.0])),
        "seed": draw(st.integers(0, 10**6)),
        "regression": draw(VERDICTS),
        "tested": draw(st.booleans()),
        "numerator": draw(st.sampled_from(["supported", "rejected", "rejected", "inconclusive"])),
        "delta_ms": draw(st.sampled_from([0.2, 6.0])),
        "reading": {
            "account": ACCOUNTS.get(mechanism, mechanism),
            "mechanism": mechanism,
            "ranks": [first] if many else [],
            "culprit": {"kind": "rank", "members": [first]},
            "kappa": {scope.value: draw(st.sampled_from([0.0, 0.3, 1.0])) for scope in Scope},
        },
        "failing": draw(st.sampled_from([0, 1, 2])),
        "decision": draw(st.sampled_from(["approve", "approve", "skip", "abort"])),
    }


class Answers(dict[str, Any]):
    """The same answer to every question, or only to those of a third of the experiments."""

    def __init__(self, value: Any, *, every: int = 1, otherwise: Any = None) -> None:
        super().__init__()
        self.value, self.every, self.otherwise = value, every, otherwise

    def get(self, key: str, _default: Any = None) -> Any:
        return self.otherwise if len(key) % self.every else self.value


@pytest.fixture(scope="session")
def played(case_of: Callable[..., Any], random_world: type[Any], player_of: Callable[..., Any]) -> Callable[..., Any]:
    """The player of a script, ready to go on from a docket."""

    def make(script: dict[str, Any], docket: Docket | None = None) -> Any:
        hosts = tuple(script["hosts"])
        work: dict[str, Any] = {"kind": ArmKind(script["kind"]), "builtin": script["builtin"]}
        work["program"] = "step" if script["builtin"] else "/train.py"
        if work["kind"] is ArmKind.PLACEMENT:
            work["regressed"] = ArmSpec(hosts=hosts[: script["nodes"]])
            work["healthy"] = ArmSpec(hosts=tuple(script["healthy_hosts"]))
        if script["perturbed"]:
            work["perturbed"] = ArmSpec(config={"layers": 3})
        case = case_of(
            nodes=script["nodes"], ranks_per_node=script["ranks_per_node"], hosts=hosts, workload=work,
            budget={"device_hours": script["hours"], "ask_above_device_hours": script["ask"]},
        )  # fmt: skip
        world = random_world(
            seed=script["seed"], regression=script["regression"], tested=script["tested"],
            numerator=script["numerator"], delta_ms=script["delta_ms"], reading=script["reading"],
            failures=Answers(script["failing"], every=3, otherwise=0), decisions=Answers(script["decision"]),
        )  # fmt: skip
        return player_of(world, case, **({} if docket is None else {"docket": docket}))

    return make


SLOW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SLOW
@given(script=scripts())
def test_the_climb_ends_and_its_rungs_never_go_back(script: dict[str, Any], played: Callable[..., Any]) -> None:
    player = played(script)
    player.play(MAX_STEPS)
    numbers = [step.rung.number for _, step in player.steps if not isinstance(step, Stop)]
    assert numbers == sorted(numbers)


@SLOW
@given(script=scripts())
def test_nothing_is_launched_before_all_that_it_judges_is_registered_nor_when_there_is_enough(
    script: dict[str, Any], played: Callable[..., Any]
) -> None:
    player = played(script)
    player.play(MAX_STEPS)
    launches = player.docket.of(Kind.LAUNCHED)
    for one in player.docket.of(Kind.REGISTERED):
        mine = [entry for entry in launches if entry.body["experiment"] == one.body["hypothesis"]["experiment"]]
        assert all(one.line < entry.line for entry in mine)
    have: dict[str, int] = {}
    gained = {(entry.body["experiment"], entry.body["launch"]): entry.body["pairs"]
              for entry in player.docket.of(Kind.EVIDENCE)}  # fmt: skip
    for step in player.of(Launch):
        key = step.experiment.key
        assert step.first_pair == have.get(key, 0)
        assert 0 < step.first_pair + step.pairs <= step.experiment.max_pairs
        have[key] = have.get(key, 0) + gained.get((key, step.launch), 0)
    failures = [entry.body["experiment"] for entry in player.docket.of(Kind.FAILED)]
    assert all(failures.count(key) <= 2 for key in failures)


@SLOW
@given(script=scripts())
def test_every_prefix_of_the_docket_gives_the_step_that_was_taken_there(
    script: dict[str, Any], played: Callable[..., Any]
) -> None:
    player = played(script)
    player.play(MAX_STEPS)
    entries = player.docket.entries
    for length, step in player.steps:
        assert next_step(player.case, Docket(None, entries[:length])) == step


@settings(SLOW, max_examples=40)
@given(script=scripts(), cut=st.floats(0, 1))
def test_an_investigation_that_was_killed_anywhere_comes_to_the_same_end(
    script: dict[str, Any], cut: float, played: Callable[..., Any]
) -> None:
    whole = played(script)
    stop = whole.play(MAX_STEPS)
    entries = whole.docket.entries
    length = 1 + int(cut * (len(entries) - 1))
    resumed = played(script, Docket(None, entries[:length]))
    assert resumed.play(MAX_STEPS) == stop
    assert resumed.verdicts() == whole.verdicts()
    assert resumed.conclusion == whole.conclusion


@SLOW
@given(script=scripts())
def test_a_cause_is_named_only_where_an_experiment_supported_it(
    script: dict[str, Any], played: Callable[..., Any]
) -> None:
    player = played(script)
    stop = player.play(MAX_STEPS)
    verdicts, found = player.verdicts(), player.conclusion
    shown = [key for key, value in verdicts.items() if value == "supported" and key.startswith(("scope:", "perturb"))]
    assert (found.mechanism is None) is not bool(shown)
    assert (found.account is None) is not bool(shown)
    assert (found.culprit["kind"] == "none") is not bool(shown)
    if stop.reason is StopReason.EXPLAINED:
        play = next(key for key in verdicts if key.startswith("perturbation:") and verdicts[key] == "supported")
        assert verdicts[play.replace("perturbation", "closing")] == "supported"
    if found.regression is RegressionStatus.NONE:
        assert not shown
        assert stop.reason in (StopReason.NO_REGRESSION, StopReason.ABORTED)


@settings(SLOW, max_examples=20)
@given(script=scripts())
def test_the_report_has_a_row_for_every_registration(script: dict[str, Any], played: Callable[..., Any]) -> None:
    player = played(script)
    player.play(MAX_STEPS)
    rows = report(player.case, player.docket, None)["hypotheses"]
    assert [row["id"] for row in rows] == list(player.state.registrations)
    assert all(row["digest"] and row["rung"] and row["claim"] for row in rows)
