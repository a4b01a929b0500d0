"""``narrows run``: an unmodified program leaves a run directory that accounts for its time."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from narrows.inquiry.accounts import Account
from narrows.reducers.ledger import Ledger, build_ledger
from narrows.reducers.rundir import read_run
from narrows.reducers.sweep import CODES
from narrows.reducers.units import Statistic, units
from narrows.reducers.views import rank_mean

pytestmark = pytest.mark.dist

SCRIPTS = Path(__file__).parents[1] / "instruments" / "scripts"
ACCOUNTED = 0.95
FAILING = """
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    raise RuntimeError("the shelf fell over")
dist.barrier()
"""


def _torchrun(cli: Any, run: Path, script: Path, *arguments: str) -> Any:
    return cli("run", "--out", run, "--", "torchrun", "--nproc-per-node", "2", script, *arguments)


def _usual_residual_share(ledger: Ledger) -> float:
    """The residual as a share of the step, in the median steady step.

    Not the mean: where other programs share the cores, a rank is taken away now and then for longer than a whole step.
    """
    view = rank_mean(ledger)
    steady_S = ~ledger.steps["warmup"].to_numpy()
    return float(np.median((view.account_ns_SA[:, CODES[Account.RESIDUAL]] / view.step_ns_S)[steady_S]))


@pytest.mark.parametrize("name", ["ddp_train.py", "fsdp2_train.py"])
def test_an_unmodified_script_is_accounted_for(cli: Any, tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    steps = 16
    done = _torchrun(cli, run, SCRIPTS / name, "--steps", str(steps))
    assert done.code == 0, done.err
    assert f"2 ranks, {steps} steps recorded" in done.err

    ledger = build_ledger(read_run(run))
    assert ledger.ranks == (0, 1)
    assert not ledger.losses
    assert ledger.coverage >= ACCOUNTED
    (unit,) = units(rank_mean(ledger), ledger, Statistic.MEAN).to_dict("records")
    warmed_up = ledger.steps["warmup"].sum()
    assert unit["steps"] == steps - warmed_up > 8
    assert _usual_residual_share(ledger) <= 1 - ACCOUNTED, unit
    for account in ("compute", "transfer"):
        assert unit[account] > 0, unit
    cli.leaves_nothing()


def test_a_failing_script_keeps_its_exit_code_and_says_where_it_failed(cli: Any, tmp_path: Path) -> None:
    script = tmp_path / "failing.py"
    script.write_text(FAILING)
    done = _torchrun(cli, tmp_path / "run", script)
    assert done.code == 1
    failure = json.loads((tmp_path / "run" / "ranks" / "00001" / "failure.json").read_text())
    assert "the shelf fell over" in json.dumps(failure["exceptions"])
    assert "failing.py" in json.dumps(failure)
    cli.leaves_nothing()


def test_the_exit_code_of_a_script_is_passed_through(cli: Any, tmp_path: Path) -> None:
    script = tmp_path / "ends.py"
    script.write_text("raise SystemExit(7)\n")
    assert cli("run", "--out", tmp_path / "run", "--", sys.executable, script).code == 7
