"""A user's own script: its runs recorded by ``narrows run``, its arms restarted, its loss found on one rank."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

# Two launches a pair, and a launch starts Python, torch and gloo anew: 26 of them.
pytestmark = [pytest.mark.dist, pytest.mark.slow, pytest.mark.timeout(1500)]

SCRIPT = Path(__file__).parent / "scripts" / "training.py"
EXTRA = ("--extra-ms", "20")


def _record(cli: Any, run: Path, *arguments: str) -> str:
    done = cli(
        "run", "--out", run, "--", sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py",
        *arguments,
    )  # fmt: skip
    assert done.code == 0, done.err
    return str(run.relative_to(cli.folder))


def _case(runs: dict[str, str]) -> dict[str, Any]:
    return {
        "case": "own-script",
        "question": "The step of train.py got slower with the new settings.",
        "runs": runs,
        "workload": {
            "program": "train.py",
            "args": ["--steps", "12"],
            "healthy": {},
            "regressed": {"args": list(EXTRA)},
        },
        "cluster": {"nodes": 1, "ranks_per_node": 2, "device": "cpu"},
        "budget": {"device_hours": 1, "ask_above_device_hours": 0.5},
        "judge": {"margin_percent": 5, "statistic": "low50", "pairs": 4},
    }


def test_a_slower_forward_is_reproduced_by_restarts_of_one_rank(
    cli: Any, investigated: Callable[..., Any], tmp_path: Path
) -> None:
    shutil.copy(SCRIPT, tmp_path / "train.py")
    runs = {"healthy": _record(cli, tmp_path / "healthy"), "regressed": _record(cli, tmp_path / "regressed", *EXTRA)}
    case_file = tmp_path / "case.yaml"
    case_file.write_text(yaml.safe_dump(_case(runs)))

    finished = cli("investigate", case_file, "--yes", "--no-ui", timeout_s=1200)
    one = investigated(case_file, finished)
    assert finished.code == 3, one.told()  # no change is known that would give the time back
    found = {key: one.conclusion[key] for key in ("regression", "account", "mechanism", "first_scope")}
    assert found == {
        "regression": "confirmed", "account": "compute", "mechanism": "compute", "first_scope": "one_rank",
    }, one.told()  # fmt: skip
    assert one.conclusion["culprit"]["kind"] == "all"
    assert one.conclusion["perturbation"] == "not_run"
    effect = one.state.judgement("scope:one_rank").effect_ms
    assert 10 < effect < 30, one.told()
    _check_restarts(one)


def test_the_case_that_compare_writes_of_two_runs_is_checked_and_begun(cli: Any, tmp_path: Path) -> None:
    shutil.copy(SCRIPT, tmp_path / "train.py")
    runs = [_record(cli, tmp_path / arm, *words) for arm, words in (("healthy", ()), ("regressed", EXTRA))]
    compared = cli("compare", *runs, "--case", "case.yaml")
    assert compared.code == 0, compared.err
    assert compared.err == ""  # nothing is left to be filled in
    written = yaml.safe_load((tmp_path / "case.yaml").read_text())
    assert written["workload"] == {"program": "train.py", "healthy": {}, "regressed": {"args": list(EXTRA)}}
    assert cli("check", "case.yaml").code == 0
    begun = cli("investigate", "case.yaml", "--until", "1", "--yes", "--no-ui", timeout_s=900)
    assert begun.code in (0, 3), begun.err
    assert "lies above the margin" in begun.out + begun.err


def _check_restarts(one: Any) -> None:
    """Every unit was a launch of its own, in ABBA order, with its arm's arguments and the recorder inside."""
    folders = sorted(one.directory.glob("experiments/one_rank-regressed/launch-*/*-*"))
    assert len(folders) == 8
    arms = [folder.name.partition("-")[2] for folder in folders]
    assert {tuple(arms[:4]), tuple(arms[4:])} <= {
        ("healthy", "regressed", "regressed", "healthy"),
        ("regressed", "healthy", "healthy", "regressed"),
    }
    for folder, arm in zip(folders, arms, strict=True):
        manifest = json.loads((folder / arm / "manifest.json").read_text())
        assert ("--extra-ms" in manifest["argv"]) == (arm == "regressed")
        assert len(list((folder / arm / "ranks").iterdir())) == 1
