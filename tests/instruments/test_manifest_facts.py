"""The manifest: complete where the machine tells, silent where it does not, and without secrets."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import narrows.instruments as narrows
from narrows.instruments.environment import environment, is_secret, masked, masked_arguments
from narrows.instruments.hosts import nic_facts, nvml_facts
from narrows.instruments.placement import placement
from narrows.instruments.source import source_facts


def test_a_manifest_is_there_at_once_and_complete_at_close(tmp_path: Path) -> None:
    recorder = narrows.start(tmp_path / "run", config={"layers": 2}, launch="L1", seed=7, device="emulated")
    early = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (early["config"], early["launch"], early["seed"], early["emulated"]) == ({"layers": 2}, "L1", 7, True)
    recorder.enter("all_reduce", group="everyone").end()
    recorder.close()
    late = json.loads((tmp_path / "run" / "manifest.json").read_text())
    host = late["placement"][0]["host"]
    assert late["hosts"][host]["cpus"] >= 1
    assert late["hosts"][host]["boot_id"]
    assert late["groups"]["everyone"] == [0]
    assert late["packages"]["torch"]
    assert "arm" not in late


def test_a_topology_file_is_kept_in_the_manifest_and_one_that_is_gone_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    topology = {"hosts": {"n0": {"rack": "r1"}}}
    (tmp_path / "topology.json").write_text(json.dumps(topology))
    monkeypatch.setenv("NARROWS_TOPOLOGY", str(tmp_path / "topology.json"))
    narrows.start(tmp_path / "run").close()
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["topology"] == topology
    (tmp_path / "topology.json").unlink()
    assert "NARROWS_TOPOLOGY" not in capfd.readouterr().err
    narrows.start(tmp_path / "other").close()
    assert "topology" not in json.loads((tmp_path / "other" / "manifest.json").read_text())
    assert capfd.readouterr().err.count(f"NARROWS_TOPOLOGY={tmp_path / 'topology.json'}") == 1


def test_a_group_of_one_role_on_several_sets_of_ranks_is_listed_for_each_of_them(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for rank, members in ((1, [0, 1]), (2, [2, 3])):
        folder = run / "ranks" / f"{rank:05d}"
        folder.mkdir(parents=True)
        facts = {"schema": 1, "kind": "rank", "rank": rank, "local_rank": rank, "host": "n", "groups": {"tp": members}}
        (folder / "rank.json").write_text(json.dumps(facts))
    narrows.start(run).close()
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["groups"] == {"tp": [0, 1], "tp@2": [2, 3]}
    assert [place["rank"] for place in manifest["placement"]] == [0, 1, 2]


@pytest.mark.parametrize(
    "name", ["WANDB_API_KEY", "HF_TOKEN", "MASTER_PASSWORD", "SLURM_JWT_SECRET", "aws_secret_access_key", "apiKey"]
)
def test_names_of_secrets_are_recognised(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["tokens_per_rank", "TOKENIZERS_PARALLELISM", "keyframes", "monkey", "MASTER_PORT"])
def test_names_of_ordinary_things_are_not_secrets(name: str) -> None:
    assert not is_secret(name)


def test_the_environment_keeps_what_matters_and_masks_secrets() -> None:
    kept = environment(
        {
            "NCCL_DEBUG": "INFO",
            "OMP_NUM_THREADS": "1",
            "NCCL_AUTH_TOKEN": "abc",
            "GLOO_PROXY": "http://user:pw@host/",
            "HOME": "/root",
        }
    )
    assert kept == {
        "GLOO_PROXY": "http://***@host/",
        "NCCL_AUTH_TOKEN": "***",
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "1",
    }


def test_secrets_in_configuration_and_arguments_are_masked() -> None:
    assert masked({"lr": 1, "tracker": {"api_key": "abc", "tokens": 5}}) == {
        "lr": 1,
        "tracker": {"api_key": "***", "tokens": 5},
    }
    arguments = ["train.py", "--wandb-token", "abc", "--api-key=xyz", "--tokens", "7", "https://me:pw@host"]
    assert masked_arguments(arguments) == [
        "train.py", "--wandb-token", "***", "--api-key=***", "--tokens", "7", "https://***@host",
    ]  # fmt: skip


def test_the_digest_of_a_dirty_tree_follows_its_content(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    program = tmp_path / "train.py"
    program.write_text("a = 1\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    clean = source_facts(program)
    assert clean["dirty"] is False
    assert len(clean["git_revision"]) == 40
    assert "dirty_digest" not in clean
    program.write_text("a = 2\n")
    second = source_facts(program)
    program.write_text("a = 3\n")
    third = source_facts(program)
    (tmp_path / "new.py").write_text("b = 1\n")
    fourth = source_facts(program)
    assert second["dirty"] is True
    assert len({facts["dirty_digest"] for facts in (second, third, fourth)}) == 3


def test_outside_git_the_source_is_only_a_path(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("")
    assert source_facts(program) == {"path": str(tmp_path)}


class FakeNvml:
    """One GPU that answers most questions and refuses one, as NVML does by model."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2

    class NVMLError(Exception):
        """The base of pynvml's errors."""

    def __init__(self) -> None:
        self.shut = False

    def nvmlInit(self) -> None:  # noqa: N802  # pynvml's name
        self.shut = False

    def nvmlShutdown(self) -> None:  # noqa: N802  # pynvml's name
        self.shut = True

    def nvmlDeviceGetMigMode(self, _handle: Any) -> Any:  # noqa: N802  # pynvml's name
        raise self.NVMLError("Not Supported")

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlSystemGetDriverVersion": b"550.54",
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetName": "H100",
            "nvmlDeviceGetUUID": b"GPU-1",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=80),
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetApplicationsClock": 1755,
            "nvmlDeviceGetPersistenceMode": 1,
            "nvmlDeviceGetEccMode": [1, 1],
            "nvmlDeviceGetVbiosVersion": "96.00",
            "nvmlDeviceGetPciInfo": SimpleNamespace(busId=b"0000:01:00.0"),
        }
        return lambda *_: answers[name]


def test_gpu_facts_leave_out_what_the_gpu_does_not_answer() -> None:
    nvml = FakeNvml()
    facts = nvml_facts(nvml)
    assert facts["driver"] == "550.54"
    (gpu,) = facts["gpus"]
    assert (gpu["name"], gpu["uuid"], gpu["power_limit_w"], gpu["sm_clock_max_mhz"]) == ("H100", "GPU-1", 700.0, 1980)
    assert "mig" not in gpu
    assert nvml.shut


def test_a_network_card_that_is_down_has_no_speed(tmp_path: Path) -> None:
    for name, speed in (("eth0", "25000\n"), ("eth1", "-1\n"), ("lo", "10\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "speed").write_text(speed)
    (tmp_path / "bonding_masters").write_text("")
    assert nic_facts(tmp_path) == [{"name": "eth0", "speed_mbit": 25000}, {"name": "eth1"}]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "GROUP_RANK": "2"}, (5, 1, 8, 2)),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}, (3, 1, 4, 1)),
        ({}, (0, 0, 1, None)),
    ],
)
def test_the_place_is_what_the_launcher_says(variables: dict[str, str], expected: tuple[Any, ...]) -> None:
    place = placement({**variables, "NARROWS_HOST": "n1"})
    assert (place.rank, place.local_rank, place.world_size, place.node_rank) == expected
    assert place.host == "n1"
