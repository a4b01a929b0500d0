"""What only a CUDA device can show. Run by ``make gpu-check``; skipped, with a reason, where there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from narrows.reducers.ledger import build_ledger
from narrows.reducers.rundir import read_run

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here")]

SIZES = {"layers": 4, "hidden": 256, "tokens_per_rank": 2048, "mean_doc_tokens": 128, "max_doc_tokens": 512}


def launch(folder: Path, ranks: int, arms: dict[str, dict[str, object]]) -> Path:
    """Plays two pairs of the arms on the first ``ranks`` GPUs and returns the launch's folder."""
    names = list(arms)
    segments = [
        {"segment": at, "pair": at // 2, "arm": names[arm], "steps": 14, "washout": 4, "first_batch": 14 * (at // 2)}
        for at, arm in enumerate((0, 1, 1, 0))
    ]
    plan = {
        "schema": 1, "kind": "plan", "experiment": "gpu", "launch": 1, "program": "step", "out": str(folder / "out"),
        "device": "cuda", "seed": 3, "base": SIZES, "arms": arms, "num_shards": ranks, "segments": segments,
    }  # fmt: skip
    (folder / "plan.json").write_text(json.dumps(plan))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone"]
    command += ["-m", "narrows.experiments.step", "--plan", str(folder / "plan.json")]
    subprocess.run(command, check=True, timeout=240, cwd=folder)
    return folder / "out"


def test_one_gpu_plays_both_arms_and_every_step_adds_up(tmp_path: Path) -> None:
    out = launch(tmp_path, 1, {"plain": {}, "padded": {"padding": 0.5}})
    runs = {name: read_run(out / name) for name in ("plain", "padded")}

    for run in runs.values():
        ledger = build_ledger(run)
        assert (ledger.account_ns_RSA.sum(axis=2) == ledger.end_ns_RS - ledger.start_ns_RS)[ledger.present_RS].all()
        assert run.manifest["device"] == "cuda"
        assert not run.manifest["emulated"]
        assert run.manifest["hosts"], "the host's facts, with its GPUs and driver, are part of the manifest"


def test_the_manifest_names_the_gpu_and_its_driver(tmp_path: Path) -> None:
    out = launch(tmp_path, 1, {"plain": {}, "padded": {"padding": 0.5}})
    (facts,) = read_run(out / "plain").manifest["hosts"].values()

    assert facts["driver"]
    assert facts["gpus"][0]["name"] == torch.cuda.get_device_name(0)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices are here")
def test_two_gpus_reduce_their_gradients_over_nccl_with_device_times(tmp_path: Path) -> None:
    out = launch(tmp_path, 2, {"snake": {"packing": "snake"}, "greedy": {"packing": "greedy"}})
    calls = (out / "snake" / "ranks" / "00000" / "collectives.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in calls]

    assert any(one.get("op") == "all_reduce" for one in records)
    assert all(one["end_ns"] > one["enter_ns"] for one in records if one.get("op") == "all_reduce")
