"""Scripted worlds climb the real ladder: which rungs do what, in which order, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from narrows.inquiry.accounts import Account
from narrows.inquiry.case import ArmSpec, Case
from narrows.inquiry.design import ArmKind, Mode
from narrows.inquiry.docket import Kind
from narrows.inquiry.hypotheses import Ledger
from narrows.inquiry.playbook import Play
from narrows.inquiry.scopes import Rung, Scope
from narrows.inquiry.steps import Ask, Judge, Launch, Register, StopReason, Topic

MakeCase = Callable[..., Case]
MakePlayer = Callable[..., Any]

IMBALANCE = {
    "account": "skew",
    "mechanism": "imbalance",
    "culprit": {"kind": "varies", "members": []},
    "ranks": [],
    "kappa": {"one_rank": 0.0, "one_node": 0.6, "two_nodes": 1.0},
}
SLOW_HOST = {
    "account": "compute",
    "mechanism": "slow_host",
    "culprit": {"kind": "host", "members": ["n1"]},
    "ranks": [2, 3],
    "kappa": {"one_rank": 1.0, "one_node": 1.0, "two_nodes": 1.0},
}
LINK = {
    "account": "transfer",
    "mechanism": "link",
    "culprit": {"kind": "link", "members": ["n0", "n1"]},
    "ranks": [],
    "kappa": {"one_rank": 0.0, "one_node": 0.0, "two_nodes": 1.0},
}
INPUT = {
    "account": "input",
    "mechanism": "input",
    "culprit": {"kind": "all", "members": []},
    "ranks": [],
    "kappa": {"one_rank": 1.0, "one_node": 1.0, "two_nodes": 1.0},
}
IMBALANCE_VERDICTS = {
    "scope:one_rank": "rejected",
    "scope:one_node": "supported",
    "perturbation:balance-cost": "supported",
    "unchanged:balance-cost:transfer": "supported",
    "scale_up:two_nodes": "supported",
    "soak": "supported",
    "closing:balance-cost": "supported",
}


@pytest.fixture
def imbalance(world_of: type[Any]) -> Any:
    return world_of(reading=IMBALANCE, verdicts=dict(IMBALANCE_VERDICTS))


def registered(player: Any) -> dict[str, int]:
    return {entry.body["hypothesis"]["key"]: entry.line for entry in player.docket.of(Kind.REGISTERED)}


def launch_of(player: Any, key: str) -> Launch:
    return next(step for step in player.of(Launch) if step.experiment.key == key)


# One cause at a time.


def test_imbalance_is_rejected_on_one_rank_found_on_one_node_and_followed_to_the_end(
    imbalance: Any, player_of: MakePlayer
) -> None:
    player = player_of(imbalance)
    stop = player.play()
    assert stop.reason is StopReason.EXPLAINED
    assert player.launched == [
        "one_rank-regressed",
        "one_rank-sensitivity",
        "one_node-regressed",
        "balance-cost-one_node",
        "balance-cost-two_nodes",
        "soak",
    ]
    assert player.rungs == [1, 2, 3, 4, 7, 8, 9, 10]
    assert player.skips == {
        Rung.TWO_NODES: "the loss was reproduced at one node; nothing larger is needed",
        Rung.FULL: "on this cluster it is the same as two nodes",
    }
    assert player.conclusion.mechanism == "imbalance"
    assert player.conclusion.first_scope == "one_node"
    assert player.conclusion.culprit == {"kind": "varies", "members": []}
    assert (player.conclusion.perturbation, player.conclusion.closing) == ("supported", "closed")


def test_predictions_are_scaled_to_what_the_mechanism_leaves_at_a_scope(imbalance: Any, player_of: MakePlayer) -> None:
    player = player_of(imbalance)
    player.play()
    state = player.state
    one_rank, one_node = state.hypothesis("scope:one_rank"), state.hypothesis("scope:one_node")
    assert (one_rank.mechanism, one_rank.pi_ms, one_rank.expected) == ("local", 6.0, "rejected")
    assert (one_node.mechanism, one_node.pi_ms) == ("imbalance", pytest.approx(3.6))
    assert one_node.reject_if.bound == pytest.approx(1.8)
    # What one node gave back, over its share of the full effect.
    gained = state.judgement("perturbation:balance-cost").effect_ms
    assert state.hypothesis("scale_up:two_nodes").pi_ms == pytest.approx(gained / 0.6)


def test_what_the_last_rung_judges_was_on_record_before_the_perturbation_ran(
    imbalance: Any, player_of: MakePlayer
) -> None:
    player = player_of(imbalance)
    player.play()
    launched = {entry.body["experiment"]: entry.line for entry in player.docket.of(Kind.LAUNCHED)}
    assert registered(player)["closing:balance-cost"] < launched["balance-cost-one_node"]
    assert registered(player)["unchanged:balance-cost:transfer"] < launched["balance-cost-one_node"]


@pytest.fixture
def suspects(case_of: MakeCase) -> Case:
    """A suspect pair of hosts against a known-good one."""
    work = {
        "kind": ArmKind.PLACEMENT,
        "healthy": ArmSpec(hosts=("n0", "n2")),
        "regressed": ArmSpec(hosts=("n0", "n1")),
    }
    return case_of(workload=work, hosts=("n0", "n1", "n2", "n3"))


def test_a_slow_host_is_told_from_a_control_and_from_its_shard(
    suspects: Case, world_of: type[Any], player_of: MakePlayer
) -> None:
    verdicts = {
        "scope:one_rank": "supported",
        "control:one_rank": "rejected",
        "perturbation:replace-host": "supported",
        "swap:hardware": "supported",
        "swap:data": "rejected",
        "scale_up:one_node": "supported",
        "scale_up:two_nodes": "supported",
        "soak": "supported",
        "closing:replace-host": "supported",
    }
    player = player_of(world_of(reading=SLOW_HOST, verdicts=verdicts), suspects)
    assert player.play().reason is StopReason.EXPLAINED
    assert player.launched == [
        "one_rank-regressed",
        "one_rank-control",
        "replace-host-one_rank",
        "swap",
        "replace-host-one_node",
        "replace-host-two_nodes",
        "soak",
    ]
    assert player.conclusion.mechanism == "slow_host"
    assert player.conclusion.culprit == {"kind": "host", "members": ["n1"]}
    assert player.conclusion.first_scope == "one_rank"


def test_a_host_is_acquitted_when_the_control_shows_the_loss_too(
    world_of: type[Any], case_of: MakeCase, player_of: MakePlayer
) -> None:
    verdicts = {
        "scope:one_rank": "supported",
        "control:one_rank": "supported",
        "perturbation:synthetic-input": "supported",
        "closing:synthetic-input": "supported",
    }
    player = player_of(world_of(reading=SLOW_HOST | {"account": "input"}, verdicts=verdicts), case_of())
    assert player.play().reason is StopReason.EXPLAINED
    assert player.launched == ["one_rank-regressed", "one_rank-control", "synthetic-input-one_rank"]
    assert player.conclusion.mechanism == "input"
    assert player.conclusion.culprit == {"kind": "all", "members": []}


def test_placement_arms_are_two_sets_of_ranks_in_one_launch(
    suspects: Case, world_of: type[Any], player_of: MakePlayer
) -> None:
    player = player_of(world_of(reading=SLOW_HOST, verdicts={"scope:one_rank": "supported"}), suspects)
    player.play()
    main = launch_of(player, "one_rank-regressed").experiment
    assert main.mode is Mode.NODE_SET
    assert main.placement.names == ("n2", "n1")
    assert (main.before.ranks, main.after.ranks) == ((0,), (1,))
    assert main.before.shards == main.after.shards == (2,)
    control = launch_of(player, "one_rank-control").experiment
    assert "n1" not in control.placement.names
    assert control.after.name == "control"
    swap = launch_of(player, "replace-host-one_rank").experiment
    assert swap.placement.names[0] == "n1"


def test_a_loss_that_moves_with_the_shard_is_the_shards(
    suspects: Case, world_of: type[Any], player_of: MakePlayer
) -> None:
    verdicts = {
        "scope:one_rank": "supported",
        "perturbation:replace-host": "supported",
        "swap:data": "supported",
        "swap:hardware": "rejected",
    }
    player = player_of(world_of(reading=SLOW_HOST, verdicts=verdicts), suspects)
    player.play()
    assert player.conclusion.mechanism == "shard"
    assert player.conclusion.culprit["kind"] == "shard"


def test_a_slow_link_needs_two_nodes_and_is_not_scaled_up(world_of: type[Any], player_of: MakePlayer) -> None:
    verdicts = {
        "scope:one_rank": "rejected",
        "scope:one_node": "rejected",
        "scope:two_nodes": "supported",
        "curve": "supported",
        "perturbation:colocate": "supported",
        "closing:colocate": "supported",
    }
    player = player_of(world_of(reading=LINK, verdicts=verdicts))
    assert player.play().reason is StopReason.EXPLAINED
    assert player.launched == [
        "one_rank-regressed",
        "one_rank-sensitivity",
        "one_node-regressed",
        "one_node-sensitivity",
        "two_nodes-regressed",
        "two_nodes-curve",
        "colocate-two_nodes",
    ]
    assert set(player.skips) == {Rung.FULL, Rung.SCALE_UP, Rung.SOAK}
    assert "diagnosis" in player.skips[Rung.SCALE_UP]
    assert player.conclusion.mechanism == "link"
    assert player.conclusion.first_scope == "two_nodes"
    curve = launch_of(player, "two_nodes-curve").experiment
    assert curve.program == "collective"
    assert list(curve.sizes_bytes) == sorted(curve.sizes_bytes)
    together = launch_of(player, "colocate-two_nodes").experiment
    assert together.placement.names == ("n0", "n1")
    # The perturbed ranks are all on the first host.
    assert {together.placement.host_of(rank) for rank in together.after.ranks} == {"n0"}
    assert len(together.after.ranks) == len(together.before.ranks) == 4


def test_changed_work_is_proved_by_a_single_launch(world_of: type[Any], player_of: MakePlayer) -> None:
    verdicts = {
        "scope:one_rank": "supported",
        "perturbation:restore-work": "supported",
        "closing:restore-work": "supported",
    }
    player = player_of(world_of(numerator="supported", reading=INPUT, verdicts=verdicts))
    assert player.play().reason is StopReason.EXPLAINED
    assert player.launched == ["one_rank-regressed"]
    assert launch_of(player, "one_rank-regressed").rung is Rung.MANIFEST
    assert {"scope:one_rank", "perturbation:restore-work", "closing:restore-work"} <= set(registered(player))
    assert set(player.skips) == {
        Rung.ONE_RANK, Rung.ONE_NODE, Rung.TWO_NODES, Rung.FULL, Rung.SCALE_UP, Rung.SOAK,
    }  # fmt: skip
    assert "the executed work explains the loss" in player.skips[Rung.ONE_RANK]
    found = player.conclusion
    assert (found.mechanism, found.account, found.numerator_changed) == ("numerator", "compute", True)
    assert found.culprit["kind"] == "all"


def test_changed_work_that_one_rank_does_not_show_explains_nothing(world_of: type[Any], player_of: MakePlayer) -> None:
    world = world_of(numerator="supported", reading=INPUT, verdicts={"scope:one_rank": "rejected"})
    player = player_of(world)
    assert player.play().reason is StopReason.NOT_REPRODUCED
    assert player.conclusion.mechanism is None
    assert player.conclusion.account is None
    assert player.conclusion.culprit["kind"] == "none"


def test_a_slow_loader_shows_on_one_rank_and_is_only_diagnosed(world_of: type[Any], player_of: MakePlayer) -> None:
    verdicts = {
        "scope:one_rank": "supported",
        "perturbation:synthetic-input": "supported",
        "closing:synthetic-input": "supported",
    }
    player = player_of(world_of(reading=INPUT, verdicts=verdicts))
    assert player.play().reason is StopReason.EXPLAINED
    assert player.launched == ["one_rank-regressed", "synthetic-input-one_rank"]
    assert player.rungs == [1, 2, 3, 7, 10]
    perturbed = launch_of(player, "synthetic-input-one_rank").experiment
    assert perturbed.after.config == {"packing": "greedy", "input": "synthetic"}
    assert perturbed.differs == ("config.input",)


# No loss, or not known to be one.


def test_without_a_regression_nothing_is_launched_and_every_rung_says_so(
    world_of: type[Any], player_of: MakePlayer
) -> None:
    player = player_of(world_of(regression="rejected"))
    assert player.play().reason is StopReason.NO_REGRESSION
    assert player.launched == []
    assert set(player.skips) == set(Rung) - {Rung.MANIFEST}
    assert set(player.skips.values()) == {"there is no regression to search for"}
    assert player.conclusion.regression == "none"


def test_given_runs_that_settle_nothing_are_measured_again_at_full_scale(imbalance: Any, player_of: MakePlayer) -> None:
    imbalance.regression = "inconclusive"
    imbalance.verdicts["regression:again"] = "supported"
    player = player_of(imbalance)
    assert player.play().reason is StopReason.EXPLAINED
    assert player.launched[:2] == ["full-again", "one_rank-regressed"]
    again = launch_of(player, "full-again")
    assert (again.rung, again.pairs) == (Rung.MANIFEST, 8)
    assert again.experiment.placement.names == ("n0", "n1")
    assert player.conclusion.regression == "confirmed"


@pytest.mark.parametrize(
    ("again", "reason"), [("rejected", StopReason.NO_REGRESSION), ("inconclusive", StopReason.INCONCLUSIVE)]
)
def test_a_repeated_measurement_that_shows_no_loss_ends_the_search(
    again: str, reason: StopReason, world_of: type[Any], player_of: MakePlayer
) -> None:
    player = player_of(world_of(regression="inconclusive", verdicts={"regression:again": again}))
    assert player.play().reason is reason
    assert player.launched == ["full-again"]
    assert player.conclusion.mechanism is None


def test_single_runs_that_cannot_be_repeated_describe_a_loss_that_is_searched_for(
    imbalance: Any, case_of: MakeCase, player_of: MakePlayer
) -> None:
    imbalance.regression, imbalance.tested = "inconclusive", False
    historical = case_of(workload={"kind": ArmKind.HISTORICAL, "healthy": ArmSpec()})
    player = player_of(imbalance, historical)
    player.play()
    assert "full-again" not in player.launched
    assert player.launched[0].startswith("balance-cost")
    assert player.conclusion.regression == "inconclusive"


def test_a_described_difference_below_the_margin_is_not_searched_for(
    imbalance: Any, case_of: MakeCase, player_of: MakePlayer
) -> None:
    imbalance.regression, imbalance.tested, imbalance.delta_ms = "inconclusive", False, 0.2
    player = player_of(imbalance, case_of(workload={"kind": ArmKind.HISTORICAL, "healthy": ArmSpec()}))
    assert player.play().reason is StopReason.INCONCLUSIVE
    assert player.launched == []


def test_a_historical_healthy_run_leaves_the_perturbation_to_speak(
    imbalance: Any, case_of: MakeCase, player_of: MakePlayer
) -> None:
    player = player_of(imbalance, case_of(workload={"kind": ArmKind.HISTORICAL, "healthy": ArmSpec()}))
    assert player.play().reason is StopReason.EXPLAINED
    assert player.launched == ["balance-cost-one_node", "balance-cost-two_nodes", "soak"]
    for rung in (Rung.ONE_RANK, Rung.ONE_NODE, Rung.TWO_NODES):
        assert "cannot be made again" in player.skips[rung]
    # One node is the smallest scope that holds the mechanism, with the share of the loss that it holds.
    assert player.state.hypothesis("perturbation:balance-cost").pi_ms == pytest.approx(3.6)
    assert player.conclusion.first_scope is None


# Perturbations.


def play_of(name: str, layers: int) -> Play:
    return Play(
        id=name, mechanism="imbalance", account=Account.SKEW, ledger=Ledger.RANK_MEAN, claim=f"{name} helps",
        mitigation=True, config={"layers": layers},
    )  # fmt: skip


def test_changes_are_tried_in_order_until_one_is_supported(
    imbalance: Any, case_of: MakeCase, player_of: MakePlayer
) -> None:
    names = ("first", "second", "third")
    case = case_of(playbook=tuple(play_of(name, at + 5) for at, name in enumerate(names)))
    imbalance.verdicts |= {"perturbation:first": "rejected", "perturbation:second": "supported",
                           "closing:second": "supported"}  # fmt: skip
    player = player_of(imbalance, case)
    assert player.play().reason is StopReason.EXPLAINED
    tried = [key for key in registered(player) if key.startswith("perturbation:")]
    assert tried == ["perturbation:first", "perturbation:second"]
    assert player.conclusion.perturbation == "supported"


def test_the_cases_own_change_comes_first(imbalance: Any, case_of: MakeCase, player_of: MakePlayer) -> None:
    case = case_of(workload={"perturbed": ArmSpec(config={"packing": "shuffled"})})
    imbalance.verdicts |= {"perturbation:case": "supported", "closing:case": "supported"}
    player = player_of(imbalance, case)
    assert player.play().reason is StopReason.EXPLAINED
    assert player.launched[3] == "case-one_node"
    assert launch_of(player, "case-one_node").experiment.after.config == {"packing": "shuffled"}


def test_changes_that_are_all_rejected_leave_the_loss_reproduced_but_not_closed(
    imbalance: Any, player_of: MakePlayer
) -> None:
    imbalance.verdicts["perturbation:balance-cost"] = "rejected"
    player = player_of(imbalance)
    assert player.play().reason is StopReason.NOT_CLOSED
    assert player.skips[Rung.CLOSING] == "no perturbation was supported"
    assert player.conclusion.perturbation == "rejected"
    assert player.conclusion.closing == "not_run"


def test_a_mechanism_without_a_known_change_says_where_to_name_one(
    imbalance: Any, case_of: MakeCase, player_of: MakePlayer
) -> None:
    player = player_of(imbalance, case_of(playbook=()))
    assert player.play().reason is StopReason.NOT_CLOSED
    assert "name one under workload.perturbed" in player.skips[Rung.PERTURBATION]


def test_a_step_that_got_faster_without_its_account_is_not_explained(imbalance: Any, player_of: MakePlayer) -> None:
    imbalance.verdicts["closing:balance-cost"] = "rejected"
    imbalance.statuses["closing:balance-cost"] = "unsupported"
    player = player_of(imbalance)
    assert player.play().reason is StopReason.NOT_CLOSED
    assert (player.conclusion.perturbation, player.conclusion.closing) == ("supported", "unsupported")


def test_what_no_experiment_shows_is_not_reproduced_and_names_nobody(imbalance: Any, player_of: MakePlayer) -> None:
    imbalance.verdicts = {f"scope:{scope.value}": "rejected" for scope in Scope}
    player = player_of(imbalance)
    assert player.play().reason is StopReason.NOT_REPRODUCED
    scopes = ("one_rank", "one_node", "two_nodes")
    assert player.launched == [f"{scope}-{arm}" for scope in scopes for arm in ("regressed", "sensitivity")]
    assert "was not reproduced" in player.skips[Rung.PERTURBATION]
    assert player.conclusion.mechanism is None
    assert player.conclusion.account is None
    assert player.conclusion.culprit == {"kind": "none", "members": []}


# Money, people, and machines that fail.


def test_a_launch_above_the_ask_line_is_asked_for_first(
    imbalance: Any, case_of: MakeCase, player_of: MakePlayer
) -> None:
    player = player_of(imbalance, case_of(budget={"device_hours": 10.0, "ask_above_device_hours": 0.01}))
    assert player.play().reason is StopReason.EXPLAINED
    asked = [step.gate for step in player.of(Ask)]
    assert asked
    assert all(step.device_hours > 0.01 for step in player.of(Ask))
    lines = {entry.body["experiment"]: entry.line for entry in player.docket.of(Kind.LAUNCHED)}
    answers = {entry.body["gate"]: entry.line for entry in player.docket.of(Kind.ANSWERED)}
    for gate in asked:
        assert answers[gate] < lines[gate]
    unasked = [step for step in player.of(Launch) if step.experiment.key not in asked]
    assert all(step.device_hours <= 0.01 for step in unasked)


def test_what_is_left_of_the_budget_is_the_other_line(imbalance: Any, case_of: MakeCase, player_of: MakePlayer) -> None:
    player = player_of(imbalance, case_of(budget={"device_hours": 0.03, "ask_above_device_hours": 5.0}))
    assert player.play().reason is StopReason.EXPLAINED
    spent = 0.0
    asked = {step.gate: step for step in player.of(Ask)}
    for step in player.of(Launch):
        assert (step.experiment.key in asked) is (step.device_hours > 0.03 - spent)
        spent += step.device_hours
    assert asked
    assert all("left of the budget" in step.question for step in asked.values())


def test_a_declined_launch_is_inconclusive_and_the_search_goes_on(
    imbalance: Any, case_of: MakeCase, player_of: MakePlayer
) -> None:
    imbalance.decisions["one_rank-regressed"] = "skip"
    player = player_of(imbalance, case_of(budget={"ask_above_device_hours": 0.0}))
    assert player.play().reason is StopReason.EXPLAINED
    assert player.verdicts()["scope:one_rank"] == "inconclusive"
    assert "one_rank-regressed" not in player.launched
    assert player.conclusion.first_scope == "one_node"


def test_an_abort_ends_it_there(imbalance: Any, case_of: MakeCase, player_of: MakePlayer) -> None:
    imbalance.decisions["one_node-regressed"] = "abort"
    player = player_of(imbalance, case_of(budget={"ask_above_device_hours": 0.0}))
    assert player.play().reason is StopReason.ABORTED
    assert player.launched == ["one_rank-regressed", "one_rank-sensitivity"]
    assert player.conclusion.mechanism is None


def test_a_launch_that_fails_once_is_tried_again(imbalance: Any, player_of: MakePlayer) -> None:
    imbalance.failures["one_node-regressed"] = 1
    player = player_of(imbalance)
    assert player.play().reason is StopReason.EXPLAINED
    again = [step for step in player.of(Launch) if step.experiment.key == "one_node-regressed"]
    assert [(step.launch, step.first_pair, step.pairs) for step in again] == [(1, 0, 6), (2, 0, 6)]


def test_a_launch_that_fails_twice_leaves_its_hypotheses_inconclusive(imbalance: Any, player_of: MakePlayer) -> None:
    imbalance.failures["one_node-regressed"] = 9
    imbalance.verdicts["scope:two_nodes"] = "supported"
    player = player_of(imbalance)
    player.play()
    assert player.launched.count("one_node-regressed") == 2
    assert player.verdicts()["scope:one_node"] == "inconclusive"
    assert player.conclusion.first_scope == "two_nodes"


def test_an_account_that_stays_open_gets_more_pairs_of_the_experiment_that_tried_the_change(
    imbalance: Any, player_of: MakePlayer
) -> None:
    imbalance.wanted["closing:balance-cost"] = [8, 12]
    player = player_of(imbalance)
    assert player.play().reason is StopReason.EXPLAINED
    tried = [step for step in player.of(Launch) if step.experiment.key == "balance-cost-one_node"]
    assert [(step.first_pair, step.pairs) for step in tried] == [(0, 6), (6, 2), (8, 4)]
    assert len({step.experiment.spec_digest() for step in tried}) == 1, "another plan would be another experiment"
    assert player.conclusion.closing == "closed"


def test_an_account_whose_further_pairs_fail_to_come_is_judged_on_what_there_is(
    imbalance: Any, player_of: MakePlayer
) -> None:
    imbalance.wanted["closing:balance-cost"] = [8]
    player = player_of(imbalance)
    take = player._take

    def first_launch_then_failures(step: Any) -> None:
        if isinstance(step, Launch) and step.experiment.key == "balance-cost-one_node" and step.launch > 1:
            imbalance.failures["balance-cost-one_node"] = 9
        take(step)

    player._take = first_launch_then_failures
    assert player.play().reason is StopReason.EXPLAINED
    assert player.launched.count("balance-cost-one_node") == 3
    assert player.state.pairs("balance-cost-one_node") == 6


def test_uneven_work_closes_on_the_waiting_and_the_leading_local_account_together(
    imbalance: Any, player_of: MakePlayer
) -> None:
    imbalance.reading = IMBALANCE | {"shares": {"skew": 0.6, "compute": 0.3, "input": 0.05, "transfer": 0.2}}
    player = player_of(imbalance)
    player.play()
    closing = player.state.hypothesis("closing:balance-cost")
    assert (closing.account, closing.together_with) == (Account.SKEW, (Account.COMPUTE,))
    assert "skew and compute" in closing.prediction.metric


def test_undecided_experiments_get_more_pairs_up_to_the_last_look(imbalance: Any, player_of: MakePlayer) -> None:
    imbalance.wanted["one_node-regressed"] = [8, 12]
    player = player_of(imbalance)
    assert player.play().reason is StopReason.EXPLAINED
    again = [step for step in player.of(Launch) if step.experiment.key == "one_node-regressed"]
    assert [(step.launch, step.first_pair, step.pairs) for step in again] == [(1, 0, 6), (2, 6, 2), (3, 8, 4)]


def test_no_look_goes_beyond_the_maximum(imbalance: Any, player_of: MakePlayer) -> None:
    imbalance.wanted["one_node-regressed"] = [40]
    player = player_of(imbalance)
    with pytest.raises(AssertionError, match="no end"):
        player.play(60)  # a judge that never decides; the real one stops at the last look
    pairs = [step.pairs for step in player.of(Launch) if step.experiment.key == "one_node-regressed"]
    assert sum(pairs) == 12


def test_more_pairs_that_fail_to_come_leave_what_there_is_to_be_judged(imbalance: Any, player_of: MakePlayer) -> None:
    imbalance.wanted["one_node-regressed"] = [8]
    player = player_of(imbalance)
    take = player._take

    def first_launch_then_failures(step: Any) -> None:
        if isinstance(step, Launch) and step.experiment.key == "one_node-regressed" and step.launch > 1:
            imbalance.failures["one_node-regressed"] = 9
        take(step)

    player._take = first_launch_then_failures
    assert player.play().reason is StopReason.EXPLAINED
    assert player.launched.count("one_node-regressed") == 3
    assert player.verdicts()["scope:one_node"] == "supported"


def test_the_climb_shares_its_error_and_hypotheses_side_by_side_say_how_many_they_are(
    imbalance: Any, suspects: Case, case_of: MakeCase, player_of: MakePlayer, world_of: type[Any]
) -> None:
    imbalance.verdicts["perturbation:first"] = "rejected"
    names = ("first", "balance-cost")
    player = player_of(imbalance, case_of(playbook=tuple(play_of(name, at + 5) for at, name in enumerate(names))))
    player.play()
    registered = [one.hypothesis for one in player.state.registrations.values()]
    by_key = {one.key: one for one in registered}
    assert by_key["scope:one_rank"].alpha == by_key["scope:one_node"].alpha == pytest.approx(0.02)
    assert (by_key["regression"].alpha, by_key["soak"].alpha) == (0.05, 0.05)
    accounts = [one for one in registered if one.key.startswith("account:")]
    assert {one.family for one in accounts} == {len(accounts)}
    assert {by_key[f"perturbation:{name}"].family for name in names} == {2}
    verdicts = {"scope:one_rank": "supported", "perturbation:replace-host": "supported"}
    swapped = player_of(world_of(reading=SLOW_HOST, verdicts=verdicts), suspects)
    swapped.play()
    assert {swapped.state.hypothesis(f"swap:{one}").family for one in ("hardware", "data", "interaction")} == {3}


# The control of a rejection.


def test_a_rejected_scope_waits_for_an_injected_delay_of_the_size_that_was_rejected(
    imbalance: Any, player_of: MakePlayer
) -> None:
    player = player_of(imbalance)
    player.play()
    control, tested = player.state.hypothesis("sensitivity:one_rank"), player.state.hypothesis("scope:one_rank")
    assert control.pi_ms == tested.reject_if.bound == 3.0
    launch = launch_of(player, "one_rank-sensitivity")
    assert (launch.pairs, launch.experiment.max_pairs) == (2, 2)
    assert launch.experiment.before.config == {"packing": "snake"}
    assert launch.experiment.after.config == {"packing": "snake", "injected_delay_ms": 3.0}
    assert launch.experiment.differs == ("config.injected_delay_ms",)
    assert launch.experiment.placement == launch_of(player, "one_rank-regressed").experiment.placement
    lines = {entry.body["hypothesis"]: entry.line for entry in player.docket.of(Kind.VERDICT)}
    evidence = {entry.body["experiment"]: entry.line for entry in player.docket.of(Kind.EVIDENCE)}
    assert registered(player)["sensitivity:one_rank"] < evidence["one_rank-sensitivity"]
    assert lines[player.state.ids["sensitivity:one_rank"]] < lines[player.state.ids["scope:one_rank"]]
    assert "sensitivity:one_node" not in registered(player)  # a supported scope needs none


@pytest.mark.parametrize("seen", ["rejected", "inconclusive"])
def test_a_scope_that_does_not_show_the_delay_is_not_rejected(seen: str, imbalance: Any, player_of: MakePlayer) -> None:
    imbalance.verdicts["sensitivity:one_rank"] = seen
    player = player_of(imbalance)
    assert player.play().reason is StopReason.EXPLAINED
    assert player.verdicts()["scope:one_rank"] == "inconclusive"


def test_a_scope_of_an_own_script_is_delayed_through_its_environment(
    imbalance: Any, case_of: MakeCase, player_of: MakePlayer
) -> None:
    work = {"builtin": False, "program": "/train.py", "healthy": ArmSpec(env={"A": "1"}), "regressed": ArmSpec()}
    player = player_of(imbalance, case_of(workload=work))
    player.play()
    delayed = launch_of(player, "one_rank-sensitivity").experiment
    assert delayed.after.env == {"A": "1", "NARROWS_INJECTED_DELAY_MS": "3"}
    assert delayed.differs == ("environment.NARROWS_INJECTED_DELAY_MS",)


def test_a_control_that_costs_more_than_the_ask_line_is_asked_for_and_may_be_declined(
    imbalance: Any, case_of: MakeCase, player_of: MakePlayer
) -> None:
    imbalance.decisions["one_rank-sensitivity"] = "skip"
    player = player_of(imbalance, case_of(budget={"ask_above_device_hours": 0.0}))
    player.play()
    assert "one_rank-sensitivity" in [step.gate for step in player.of(Ask)]
    assert "one_rank-sensitivity" not in player.launched
    assert player.verdicts()["scope:one_rank"] == "inconclusive"


def test_hosts_that_are_compared_by_placement_are_delayed_on_the_healthy_ones(
    suspects: Case, world_of: type[Any], player_of: MakePlayer
) -> None:
    player = player_of(world_of(reading=SLOW_HOST, verdicts={"scope:one_rank": "rejected"}), suspects)
    player.play()
    plain, delayed = (launch_of(player, f"one_rank-{what}").experiment for what in ("regressed", "sensitivity"))
    assert (delayed.mode, delayed.before) == (Mode.SWITCHBACK, plain.before)
    assert (delayed.after.ranks, delayed.after.shards) == (plain.before.ranks, plain.before.shards)


# What is on record, and when.


def test_given_runs_are_judged_without_a_launch(imbalance: Any, player_of: MakePlayer) -> None:
    player = player_of(imbalance)
    player.play()
    first = player.of(Register)[0]
    assert [one.key for one in first.hypotheses] == ["regression", "numerator"]
    assert [step.topic for step in player.of(Judge)][:2] == [Topic.GIVEN, Topic.RECONCILIATION]


def test_every_account_that_takes_time_is_a_hypothesis_but_for_the_residual(
    imbalance: Any, player_of: MakePlayer
) -> None:
    player = player_of(imbalance)
    player.play()
    accounts = [key for key in registered(player) if key.startswith("account:")]
    assert accounts == ["account:compute", "account:transfer", "account:skew", "account:input"]


@pytest.mark.parametrize(("nodes", "width"), [(1, 1), (1, 2), (2, 1), (3, 2), (4, 1)])
def test_each_scope_of_the_cluster_is_climbed_once(
    nodes: int, width: int, case_of: MakeCase, world_of: type[Any], player_of: MakePlayer
) -> None:
    case = case_of(nodes=nodes, ranks_per_node=width)
    verdicts = {f"scope:{scope.value}": "rejected" for scope in Scope}
    player = player_of(world_of(reading=INPUT, verdicts=verdicts), case)
    assert player.play().reason is StopReason.NOT_REPRODUCED
    climbed = [key for key in player.launched if not key.endswith("sensitivity")]
    assert climbed == [f"{scope.value}-regressed" for scope in case.scopes()]
    sizes = [step.experiment.world_size for step in player.of(Launch) if step.experiment.key in climbed]
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == nodes * width
