"""The simulated cluster: what it writes is read without loss, adds up, and depends on its seed alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from simulation.documents import Lengths, packed
from simulation.faults import Fault
from simulation.fitting import fitted, step_ms
from simulation.kinds import KINDS
from simulation.launcher import SimulatedCluster
from simulation.noise import QUIET

from narrows.inquiry.accounts import ACCOUNTS
from narrows.reducers.ledger import Ledger, build_ledger
from narrows.reducers.rundir import read_run

Record = Callable[..., SimulatedCluster]
ROOT = Path(__file__).parents[2]


def ledger_of(folder: Path) -> Ledger:
    return build_ledger(read_run(folder))


@pytest.mark.parametrize("pipeline", [1, 2])
def test_a_simulated_run_is_read_without_loss_and_its_ledger_adds_up(
    tmp_path: Path, record: Record, pipeline: int
) -> None:
    record(tmp_path / "run", pipeline=pipeline)

    for arm in ("healthy", "regressed"):
        ledger = ledger_of(tmp_path / "run" / arm)
        windows = ledger.end_ns_RS - ledger.start_ns_RS
        assert ledger.losses == ()
        assert ledger.coverage == 1.0
        assert ledger.account_ns_RSA.shape == (16, 20, len(ACCOUNTS))
        assert (ledger.account_ns_RSA.sum(axis=2) == windows).all()


def test_pipeline_stages_wait_for_each_other_and_the_wait_is_recorded(tmp_path: Path, record: Record) -> None:
    record(tmp_path / "run", pipeline=2)
    ledger = ledger_of(tmp_path / "run" / "healthy")

    at = [account.value for account in ACCOUNTS].index("pipeline")
    assert ledger.account_ns_RSA[:, :, at].sum() > 0.02 * ledger.account_ns_RSA.sum()


def test_the_same_seed_writes_the_same_bytes_and_another_seed_others(tmp_path: Path, record: Record) -> None:
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        record(tmp_path / name, seed=seed)

    def steps(name: str) -> bytes:
        return (tmp_path / name / "healthy" / "ranks" / "00003" / "steps.jsonl").read_bytes()

    assert steps("one") == steps("same")
    assert steps("one") != steps("other")


def test_a_fault_reaches_only_the_image_and_the_ranks_that_it_names(tmp_path: Path, record: Record) -> None:
    fault = Fault(image="new", hosts=("n2",), local=1, launch_us=4000)
    arms = {"healthy": {"label": "old"}, "regressed": {"label": "new"}}
    record(tmp_path / "run", arms=arms, noise=QUIET, faults=(fault,))
    at = [account.value for account in ACCOUNTS].index("host")
    host_ms = [
        ledger_of(tmp_path / "run" / arm).account_ns_RSA[:, :, at].mean(axis=1) / 1e6
        for arm in ("healthy", "regressed")
    ]

    change = host_ms[1] - host_ms[0]
    assert 3.0 < change[5] < 4.1  # what runs beside a transfer is the transfer's
    assert np.delete(change, 5) == pytest.approx(0.0, abs=0.1)


@pytest.mark.parametrize("policy", ["snake", "greedy", "cost_balanced", "shuffled"])
def test_every_packing_deals_the_same_tokens(policy: str) -> None:
    lengths = Lengths(mean=128, sigma=1.0, longest=512)
    dealt = packed(lengths, 2048, 16, policy, 7, 3)

    assert dealt.tokens_N.sum() == 16 * 2048
    assert dealt.documents_N.sum() == packed(lengths, 2048, 16, "snake", 7, 3).documents_N.sum()


def test_only_greedy_packing_piles_up_squares_at_level_tokens() -> None:
    lengths = Lengths(mean=128, sigma=1.0, longest=512)
    greedy, snake = (packed(lengths, 2048, 16, policy, 7, 3) for policy in ("greedy", "snake"))

    assert greedy.squares_N.max() > 1.5 * snake.squares_N.max()
    assert greedy.tokens_N.max() < 1.05 * greedy.tokens_N.mean()


@pytest.mark.parametrize("name", ["compute-all", "one-rail", "os-jitter"])
def test_a_fault_is_fitted_to_the_effect_that_was_asked_for(name: str) -> None:
    planted = fitted(name, 0.05)
    before, after = (step_ms(KINDS[name], planted, regressed=one) for one in (False, True))

    assert after / before - 1 == pytest.approx(0.05, rel=0.05)


def test_there_are_at_least_twenty_four_kinds_of_fault() -> None:
    assert len(KINDS) >= 24


def test_nothing_that_judges_knows_of_the_simulator_and_the_simulator_not_of_the_rules() -> None:
    judges = [path for folder in ("reducers", "flows", "inquiry") for path in (ROOT / folder).rglob("*.py")]
    simulator = [ROOT / "benchmarks" / "simulation" / f"{name}.py"
                 for name in ("documents", "faults", "noise", "recording", "step", "writing", "launcher")]  # fmt: skip
    told = [path for path in judges if re.search(r"\bsimulation\b.*import|import.*\bsimulation\b", path.read_text())]

    assert len(judges) > 100
    assert told == []
    assert [path for path in simulator if "narrows.reducers" in path.read_text()] == []


def test_what_was_planted_stands_in_no_file_of_a_run(tmp_path: Path, record: Record) -> None:
    fault = Fault(image="new", hosts=("n2",), compute=0.4242)
    record(tmp_path / "run", arms={"healthy": {"label": "old"}, "regressed": {"label": "new"}}, faults=(fault,))

    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file() and path.name != "plan.json"]
    assert len(files) == 2 * (1 + 16 * 4)
    assert [path for path in files if "0.4242" in path.read_text() or "fault" in path.read_text()] == []
