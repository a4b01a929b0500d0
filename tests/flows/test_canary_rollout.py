"""Upgraded hosts against hosts that were not upgraded: the sets, the outcomes, the baseline, what is kept and said."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import pytest

from narrows.flows.canary_rollout_baseline import find_baseline
from narrows.flows.canary_rollout_report import finish
from narrows.flows.canary_rollout_run import held, open_rollout, take_steps
from narrows.flows.canary_rollout_sets import Wanted, read_sets, rollout_of
from narrows.flows.casefile import load_case
from narrows.flows.cli import app
from narrows.flows.launching import LaunchPlan, LaunchResult
from narrows.inquiry.design import ArmKind
from narrows.inquiry.docket import Docket, Kind
from narrows.inquiry.errors import CaseError, LaunchError
from narrows.inquiry.rollout import Admission, Rollout, next_step
from narrows.inquiry.steps import Register
from narrows.templates.canary_rollout import NEXT, report_text

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "canary-rollout.md").read_text(encoding="utf-8")
OLD, NEW = {"host.driver": "550"}, {"host.driver": "560"}


def test_host_lists_are_read_as_slurm_writes_them_and_spare_control_hosts_are_named() -> None:
    assert read_sets("node[01-02],gpu7", "a[1-2], b, c") == (("node01", "node02", "gpu7"), ("a1", "a2", "b"), ("c",))


@pytest.mark.parametrize(
    ("upgraded", "control", "why"),
    [
        ("n1,n2", "n2,n3", "n2: in both sets"),
        ("n1,n1", "n2,n3", "n1 twice"),
        ("n[1-2", "n3,n4", "a bracket does not close"),
        ("", "n1", "names no host"),
        ("n1;rm", "n2", "holds 'n1;rm'"),
        ("n1,n2", "n3", "at least as many control hosts"),
    ],
)
def test_sets_that_cannot_be_compared_are_refused_in_one_sentence(upgraded: str, control: str, why: str) -> None:
    with pytest.raises(CaseError, match=re.escape(why)) as error:
        read_sets(upgraded, control)
    assert len(error.value.places) == 1


def test_options_out_of_range_are_refused_and_the_last_look_can_be_moved() -> None:
    wanted = Wanted(upgraded="n2", control="n1")
    for wrong, why in (({"margin_percent": 0.0}, "--margin 0"), ({"max_pairs": 3}, "--max-pairs 3"),
                       ({"steps": 3}, "--steps 3"), ({"device": "tpu"}, "--device tpu")):  # fmt: skip
        with pytest.raises(CaseError, match=why):
            rollout_of(replace(wanted, **wrong))  # type: ignore[arg-type]  # each of its own type
    rollout, _ = rollout_of(replace(wanted, max_pairs=20))
    assert rollout.judging.looks == (4, 6, 8, 12, 20)


@dataclass
class Machines:
    """A launcher whose hosts are a formula: ``slower_ms`` says what each adds to a rank's compute."""

    arm_type: type[Any]
    slower_ms: dict[str, float] = field(default_factory=dict)
    down: bool = False
    blind: bool = False
    noise_ms: float = 0.02
    launches: int = 0

    def submit(self, plan: LaunchPlan, **_: object) -> Machines:
        if self.down:
            raise LaunchError(f"{plan.name}: n2 does not answer")
        self.launches += 1
        text = json.loads(Path(plan.argv[plan.argv.index("--plan") + 1]).read_text())
        host_of = {rank: host for host, ranks in plan.hosts for rank in ranks}
        for arm, overrides in text["arms"].items():
            own = [one for one in text["segments"] if one["arm"] == arm]
            hosts = tuple(host_of[rank] for rank in own[0]["active"])
            delay = 0.0 if self.blind else float(overrides.get("injected_delay_ms", 0.0))
            steps = own[0]["steps"]

            def compute(rank: int, step: int, hosts: Any = hosts, delay: Any = delay, steps: Any = steps) -> float:
                wobble = self.noise_ms * ((step // steps * 7) % 5 - 2)
                return 20.0 + delay + float(self.slower_ms.get(hosts[rank], 0.0)) + wobble

            run = self.arm_type(
                hosts=hosts, compute=compute, steps=steps, config=text["base"] | overrides,
                began_ns=self.launches * 10**13,
            )  # fmt: skip
            run.write(Path(text["out"]) / arm, arm=arm, segments={one["segment"]: one["pair"] for one in own})
        return self

    def poll(self) -> int | None:
        return 0

    def logs(self) -> tuple[Path, ...]:
        return ()

    def cancel(self) -> None:
        return

    def result(self, *_: object, **__: object) -> LaunchResult:
        return LaunchResult(name="model", returncode=0, seconds=0.1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return


Measure = Callable[..., dict[str, Any]]


@pytest.fixture
def machines(recorded_arm: type[Any]) -> Machines:
    return Machines(recorded_arm)


@pytest.fixture
def measure(machines: Machines, tmp_path: Path) -> Measure:
    """The record of n2 and n3 against n0 and n1, after ``upgraded`` was installed on the former."""

    def run(*, before: bool = False, given: tuple[Path, ...] = (), driver: Any = NEW, **more: Any) -> dict[str, Any]:
        wanted = Wanted(upgraded="n[2-3]", control="n[0-1]", before=before, steps=8, **more)
        rollout, left_out = rollout_of(replace(wanted, device="emulated", ranks_per_node=1))
        hosts = {"n0": OLD, "n1": OLD} | dict.fromkeys(("n2", "n3"), OLD if before else driver)
        baseline = find_baseline(rollout, given, tmp_path)
        session = open_rollout(tmp_path, rollout, hosts, baseline, left_out, launcher=machines, say=lambda _line: None)
        take_steps(session, rollout)
        return finish(session, rollout)

    return run


def test_one_slower_upgraded_host_is_named_with_its_loss_and_its_account(measure: Measure, machines: Machines) -> None:
    machines.slower_ms = {"n3": 3.0}
    record = measure()
    assert record["outcome"] == "regressed"
    assert record["effect_ms"] == pytest.approx(3.0, abs=0.2)
    assert (record["account"], record["carried_by"]["hosts"]) == ("compute", ["n3"])
    assert record["fingerprints"] == {
        "host.driver": {"control": {"550": ["n0", "n1"]}, "upgraded": {"560": ["n2", "n3"]}}
    }
    text = report_text(record)
    assert "carried by: host n3" in text
    assert "host.driver: 550 on the control hosts, 560 on the upgraded ones" in text
    assert "hosts and upgrade are one here" in text


def test_a_slower_upgrade_leaves_a_case_of_its_own_runs_and_nothing_else_does(
    measure: Measure, machines: Machines, tmp_path: Path
) -> None:
    assert measure()["new_case"] is None
    machines.slower_ms = {"n3": 3.0}
    assert measure(before=True)["new_case"] is None
    machines.slower_ms = {"n3": 6.0}
    record = measure()
    case = load_case(tmp_path / record["new_case"])
    assert case.workload.kind is ArmKind.PLACEMENT
    assert (case.workload.healthy.hosts, case.workload.regressed.hosts) == (("n0", "n1"), ("n2", "n3"))
    assert (case.cluster.launcher, case.cluster.nodes, case.cluster.ranks_per_node) == ("local", 2, 1)
    text = (tmp_path / record["new_case"]).read_text()
    assert text.startswith("# Upgraded hosts are slower than hosts that were not upgraded: n2, n3 against n0, n1.\n")
    assert "before the upgrade is not taken out of these runs" in text
    assert f"narrows investigate {record['new_case']}" in report_text(record)


def test_equal_sets_are_admitted_once_a_delay_of_the_margin_was_seen(
    measure: Measure, machines: Machines, tmp_path: Path
) -> None:
    record = measure()
    assert (record["outcome"], record["admitted_as"]) == ("admit", "equivalent")
    assert "an injected delay" in record["sentence"]
    assert machines.launches == 2
    docket = Docket.open(tmp_path / record["folder"] / "docket.jsonl")
    kinds = [entry.kind for entry in docket]
    assert kinds.index(Kind.REGISTERED) < kinds.index(Kind.LAUNCHED)
    report = (tmp_path / record["report"]).read_text()
    assert report.startswith("# Canary roll-out: admit\n")
    assert "| step |" in report


def test_a_measurement_that_sees_no_delay_admits_nothing(measure: Measure, machines: Machines) -> None:
    machines.blind = True
    record = measure()
    assert record["outcome"] == "inconclusive"
    assert "insensitive" in record["sentence"]


def test_an_open_question_says_how_many_more_pairs_it_takes(measure: Measure, machines: Machines) -> None:
    machines.noise_ms, machines.slower_ms = 0.2, {"n2": 0.45, "n3": 0.45}  # the margin is 0.24 ms
    record = measure()
    assert (record["outcome"], record["pairs"]) == ("inconclusive", 12)
    assert re.search(r"about \d+ more pairs would decide \(--max-pairs \d+\)", report_text(record))


def test_a_baseline_in_the_workspace_tells_slower_hosts_from_a_slower_upgrade(
    measure: Measure, machines: Machines
) -> None:
    machines.slower_ms = {"n3": 3.0}
    baseline = measure(before=True)
    assert "hosts and upgrade" not in report_text(baseline)
    same = measure()
    assert same["outcome"] == "admit"
    assert same["baseline"]["source"] == baseline["folder"]
    assert same["baseline"]["effect_ms"] == pytest.approx(3.0, abs=0.2)
    assert "upgraded n3: host.driver: 550 -> 560" in report_text(same)
    machines.slower_ms = {"n2": 6.0, "n3": 3.0}
    lost = measure(margin_percent=2.0)
    assert lost["outcome"] == "regressed"
    assert lost["effect_ms"] == pytest.approx(3.0, abs=0.2)


def test_a_baseline_holds_when_its_old_run_directories_are_removed_as_the_page_says(
    measure: Measure, tmp_path: Path
) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "team-server.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- old experiments -->\n```sh\n(.*?)\n```", page)
    assert found is not None
    baseline = measure(before=True)
    experiments = tmp_path / baseline["folder"] / "experiments"
    for name in ("cases", "revalidations", "rollouts/young/experiments"):
        (tmp_path / name).mkdir(parents=True)
    os.utime(experiments, (0, 0))
    subprocess.run(["sh", "-c", f"{found.group(1)} -exec rm -r {{}} +"], cwd=tmp_path, check=True)
    assert not experiments.exists()
    assert (tmp_path / "rollouts/young/experiments").exists()
    shutil.rmtree(tmp_path / "rollouts" / "young")
    assert measure()["baseline"]["source"] == baseline["folder"]


def test_the_report_asks_whether_the_hosts_were_upgraded_when_nothing_changed(measure: Measure) -> None:
    measure(before=True)
    assert any("were they upgraded?" in one for one in measure(driver=OLD)["limits"])


def test_runs_of_both_sets_are_a_baseline_and_runs_of_other_hosts_are_refused(
    measure: Measure, machines: Machines, recorded_arm: type[Any], tmp_path: Path
) -> None:
    runs = []
    for turn, hosts in enumerate((("n0", "n1"), ("n2", "n3"))):
        extra = 2.0 * turn
        arm = recorded_arm(hosts=hosts, compute=lambda _r, step, e=extra: 20.0 + e + 0.01 * (step // 12 % 3))
        runs.append(arm.write(tmp_path / f"before-{turn}", turn=turn))
    machines.slower_ms = {"n2": 2.0, "n3": 2.0}
    record = measure(given=tuple(runs))
    assert record["outcome"] == "admit"
    assert record["baseline"]["source"] == "2 given runs"
    with pytest.raises(CaseError, match="no run of the upgraded hosts"):
        measure(given=(runs[0],))
    stranger = recorded_arm(hosts=("n0", "n9")).write(tmp_path / "stranger")
    with pytest.raises(CaseError, match="ran on n0, n9; expected a run on all upgraded hosts"):
        measure(given=(stranger,))


def test_a_host_that_does_not_answer_is_one_clear_error(measure: Measure, machines: Machines) -> None:
    machines.down = True
    with pytest.raises(LaunchError, match=r"nothing could be measured: .*n2 does not answer.* or leave it out"):
        measure()


def test_a_killed_roll_out_is_continued_and_two_processes_do_not_measure_at_once(
    machines: Machines, tmp_path: Path
) -> None:
    rollout, _ = rollout_of(Wanted(upgraded="n2", control="n0", device="emulated"))
    given = {"launcher": machines, "say": lambda _line: None}
    first = open_rollout(tmp_path, rollout, {}, None, **given)
    assert open_rollout(tmp_path, rollout, {}, None, **given).directory == first.directory
    assert open_rollout(tmp_path, rollout, {"n2": NEW}, None, **given).directory != first.directory
    with held(tmp_path), pytest.raises(CaseError, match="another process is measuring"), held(tmp_path):
        pass


def test_the_hypothesis_is_registered_first_with_what_would_reject_it() -> None:
    rollout: Rollout
    rollout, _ = rollout_of(Wanted(upgraded="n2", control="n0", margin_percent=2.0))
    step = next_step(rollout, Docket(None))
    assert isinstance(step, Register)
    (one,) = step.hypotheses
    assert one.prediction.low == one.reject_if.bound == 2.0
    assert one.prediction.unit == "%"


def test_the_page_names_every_option_and_every_outcome() -> None:
    options = {
        name
        for one in app["canary-rollout"].assemble_argument_collection()
        for name in one.names
        if "--empty-" not in name
    }
    prefects = {"--no-prompt", "--name", "--pool", "--param"}
    assert set(re.findall(r"(--[a-z][a-z-]+)", PAGE)) - prefects <= options
    assert {name for name in options if name.startswith("--")} <= set(re.findall(r"(--[a-z][a-z-]+)", PAGE))
    assert all(f"*{one.value}*" in PAGE for one in Admission)
    assert set(NEXT) == {one.value for one in Admission}
