from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrows.inquiry.accounts import Account
from narrows.inquiry.scopes import Scope
from narrows.inquiry.workloads import BUILTIN
from narrows.reducers.manifest_rules import DifferenceKind, touch_of
from narrows.reducers.manifests import ABSENT, Difference, diff_manifests, screen, undeclared

MANIFEST: dict[str, Any] = {
    "schema": 1,
    "kind": "manifest",
    "run": "healthy",
    "created_unix_ns": 1,
    "launch": "a1",
    "arm": "healthy",
    "program": "train.py",
    "argv": ["train.py", "--lr", "0.1", "--plan", "/tmp/a/plan.json", "--compile"],
    "device": "cuda",
    "emulated": False,
    "config": {"packing": "snake", "global_batch": 512, "overlap": True, "frobnicate": 1},
    "workload": {"layers": 4, "tokens_per_rank": 4096},
    "source": {"path": "/a", "git_revision": "abc", "dirty": False},
    "environment": {"NCCL_IB_HCA": "mlx5_0", "OMP_NUM_THREADS": "8", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x"},
    "packages": {"torch": "2.7.0", "nvidia-nccl-cu12": "2.26", "rich": "13"},
    "hosts": {
        host: {
            "kernel": "6.1",
            "boot_id": f"{host}-1",
            "driver": "535",
            "gpus": [{"index": 0, "uuid": f"{host}-g0", "power_limit_w": 700}],
            "nics": [{"name": "eth0", "speed_mbit": 200_000}, {"name": "eth1", "speed_mbit": 200_000}],
        }
        for host in ("n0", "n1")
    },
    "placement": [{"rank": r, "local_rank": r % 2, "host": f"n{r // 2}", "node_rank": r // 2} for r in range(4)],
    "groups": {"dp": [0, 1, 2, 3]},
    "seed": 7,
}


def _changed(path: str, value: Any) -> dict[str, Any]:
    manifest = copy.deepcopy(MANIFEST)
    at: Any = manifest
    *parents, last = path.split("/")
    for key in parents:
        at = at[int(key)] if isinstance(at, list) else at[key]
    if value is ABSENT:
        del at[last]
    else:
        at[int(last) if isinstance(at, list) else last] = value
    return manifest


def _only(path: str, value: Any) -> Difference:
    (difference,) = diff_manifests(MANIFEST, _changed(path, value))
    return difference


def test_a_manifest_does_not_differ_from_itself() -> None:
    assert diff_manifests(MANIFEST, copy.deepcopy(MANIFEST)) == ()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("run", "regressed"),
        ("created_unix_ns", 2),
        ("launch", "b2"),
        ("arm", "regressed"),
        ("environment/MASTER_PORT", "2"),
        ("environment/TORCHELASTIC_RUN_ID", "y"),
        ("environment/SLURM_JOB_ID", "12"),
        ("argv", ["train.py", "--compile", "--plan", "/tmp/b/plan.json", "--lr=0.1"]),
    ],
)
def test_what_differs_between_any_two_runs_is_left_out(path: str, value: Any) -> None:
    assert diff_manifests(MANIFEST, _changed(path, value)) == ()


@pytest.mark.parametrize(
    ("path", "value", "field", "kind", "account", "scope"),
    [
        ("config/packing", "greedy", "config.packing", "numerator", Account.SKEW, Scope.ONE_NODE),
        ("config/global_batch", 1024, "config.global_batch", "numerator", Account.COMPUTE, Scope.ONE_RANK),
        ("workload/layers", 5, "workload.layers", "numerator", Account.COMPUTE, Scope.ONE_RANK),
        ("config/overlap", False, "config.overlap", "comm", Account.TRANSFER, Scope.ONE_NODE),
        ("config/num_workers", 2, "config.num_workers", "input", Account.INPUT, Scope.ONE_RANK),
        ("config/loader_us", 2, "config.loader_us", "input", Account.INPUT, Scope.ONE_RANK),
        ("config/pin_memory", False, "config.pin_memory", "copy", Account.COPY, Scope.ONE_RANK),
        ("config/checkpoint_every", 5, "config.checkpoint_every", "checkpoint", Account.CHECKPOINT, Scope.ONE_RANK),
        ("config/precision", "fp32", "config.precision", "compute", Account.COMPUTE, Scope.ONE_RANK),
        ("packages/torch", "2.8.0", "packages.torch", "compute", Account.HOST, Scope.ONE_RANK),
        ("packages/nvidia-nccl-cu12", "2.27", "packages.nvidia-nccl-cu12", "comm", Account.TRANSFER, Scope.ONE_NODE),
        ("packages/flash-attn", "2.6", "packages.flash-attn", "compute", Account.COMPUTE, Scope.ONE_RANK),
        ("environment/NCCL_IB_HCA", "mlx5_1", "environment.NCCL_IB_HCA", "comm", Account.TRANSFER, Scope.TWO_NODES),
        ("environment/NCCL_ALGO", "Tree", "environment.NCCL_ALGO", "comm", Account.TRANSFER, Scope.ONE_NODE),
        ("environment/OMP_NUM_THREADS", "1", "environment.OMP_NUM_THREADS", "host", Account.HOST, Scope.ONE_RANK),
        ("environment/PYTORCH_CUDA_ALLOC_CONF", "x", "environment.PYTORCH_CUDA_ALLOC_CONF", "memory", Account.MEMORY,
         Scope.ONE_RANK),
        ("hosts/n1/driver", "550", "hosts.n1.driver", "compute", Account.COMPUTE, Scope.ONE_RANK),
        ("hosts/n1/kernel", "6.8", "hosts.n1.kernel", "host", Account.HOST, Scope.ONE_RANK),
        ("hosts/n1/gpus/0/power_limit_w", 500, "hosts.n1.gpus.0.power_limit_w", "compute", Account.COMPUTE,
         Scope.ONE_RANK),
        ("hosts/n1/gpus/0/uuid", "other", "hosts.n1.gpus.0.uuid", "placement", Account.COMPUTE, Scope.ONE_RANK),
        ("hosts/n0/nics/1/speed_mbit", 100_000, "hosts.n0.nics.eth1.speed_mbit", "comm", Account.TRANSFER,
         Scope.TWO_NODES),
        ("placement/3/host", "n9", "placement.rank 3", "placement", Account.TRANSFER, Scope.ONE_NODE),
        ("groups/dp", [0, 2, 1, 3], "groups.dp", "placement", Account.TRANSFER, Scope.FULL),
        ("source/git_revision", "def", "source.git_revision", "unknown", Account.INPUT, Scope.ONE_RANK),
        ("seed", 8, "seed", "numerator", Account.COMPUTE, Scope.ONE_RANK),
    ],
)  # fmt: skip
def test_a_difference_names_its_mechanism_accounts_and_smallest_scope(
    path: str, value: Any, field: str, kind: str, account: Account, scope: Scope
) -> None:
    difference = _only(path, value)
    assert (difference.field, difference.kind, difference.scope) == (field, kind, scope)
    assert account in difference.accounts
    assert difference.why


@pytest.mark.parametrize("path", ["packages/rich", "hosts/n0/boot_id", "source/path", "config/label"])
def test_harmless_differences_are_kept_and_move_no_account(path: str) -> None:
    difference = _only(path, "other")
    assert (difference.kind, difference.accounts) == (DifferenceKind.HARMLESS, ())


def test_an_unknown_field_may_touch_anything_and_is_never_dropped() -> None:
    for path in ("config/frobnicate", "environment/MYSTERY", "mystery"):
        difference = _only(path, 2)
        assert difference.kind is DifferenceKind.UNKNOWN
        assert set(difference.accounts) == set(Account) - {Account.RESIDUAL}


def test_a_field_that_one_run_lacks_is_a_difference() -> None:
    gone = _only("environment/NCCL_IB_HCA", ABSENT)
    assert (gone.healthy, gone.regressed) == ("mlx5_0", ABSENT)
    new = _only("environment/NCCL_ALGO", "Tree")
    assert (new.healthy, new.regressed) == (ABSENT, "Tree")


def test_a_null_differs_from_an_absent_field_and_true_from_one() -> None:
    assert _only("config/frobnicate", None).regressed is None
    assert _only("config/frobnicate", True).regressed is True


def test_options_are_compared_by_name() -> None:
    changed = _changed("argv", ["train.py", "--lr=0.2", "--plan", "/tmp/b/plan.json", "--compile"])
    (difference,) = diff_manifests(MANIFEST, changed)
    assert (difference.field, difference.healthy, difference.regressed) == ("argv.lr", "0.1", "0.2")


def test_a_fact_that_changed_alike_on_all_hosts_is_one_difference() -> None:
    changed = _changed("hosts/n0/driver", "550")
    changed["hosts"]["n1"]["driver"] = "550"
    (difference,) = diff_manifests(MANIFEST, changed)
    assert difference.words() == "hosts.*.driver: 535 -> 550"


def test_exchanged_hosts_are_one_difference_of_place_and_one_for_each_fact_that_is_new() -> None:
    changed = copy.deepcopy(MANIFEST)
    changed["hosts"]["n7"] = {**changed["hosts"].pop("n1"), "driver": "550", "boot_id": "n7-1"}
    for place in changed["placement"][2:]:
        place["host"] = "n7"
    fields = {difference.field: difference.words() for difference in diff_manifests(MANIFEST, changed)}
    assert fields == {
        "hosts": "hosts: n1 -> n7",
        "hosts.*.driver": "hosts.*.driver: 535 -> 550",
        "placement.ranks 2-3": "placement.ranks 2-3: n1 -> n7",
    }


def test_what_changes_the_work_comes_first_and_harmless_differences_last() -> None:
    changed = _changed("config/packing", "greedy")
    changed["packages"] |= {"rich": "14", "torch": "2.8.0"}
    changed["environment"]["NCCL_ALGO"] = "Tree"
    changed["config"]["frobnicate"] = 2
    kinds = [difference.kind for difference in diff_manifests(MANIFEST, changed)]
    assert kinds == ["numerator", "compute", "comm", "unknown", "harmless"]


@pytest.mark.parametrize("name", list(BUILTIN["step"]))
def test_every_knob_of_the_built_in_step_has_the_kind_of_its_table(name: str) -> None:
    knob = BUILTIN["step"][name]
    touch = touch_of(f"config.{name}", "experiments/step.py")
    assert touch.kind.value == knob.touches.value
    assert touch.why == knob.meaning
    assert bool(touch.accounts) is (touch.kind is not DifferenceKind.HARMLESS)


def test_a_record_knob_differs_as_a_whole() -> None:
    healthy = {**MANIFEST, "program": "step", "config": {"slow_link": {"mbit": 700.0, "host": ""}}}
    regressed = {**healthy, "config": {"slow_link": {"mbit": 70.0, "host": ""}}}
    (difference,) = diff_manifests(healthy, regressed)
    assert (difference.field, difference.scope) == ("config.slow_link", Scope.TWO_NODES)


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(["config/packing", "packages/torch", "hosts/n0/kernel", "environment/NEW", "seed"]), st.text())
def test_swapping_the_runs_swaps_the_values_and_nothing_else(path: str, value: str) -> None:
    changed = _changed(path, value)
    one, other = diff_manifests(MANIFEST, changed), diff_manifests(changed, MANIFEST)
    swapped = tuple(dataclasses.replace(d, healthy=d.regressed, regressed=d.healthy) for d in other)
    assert one == swapped


def test_a_difference_whose_accounts_did_not_move_is_struck_off() -> None:
    changed = _changed("config/overlap", False)
    changed["config"]["num_workers"] = 1
    differences = diff_manifests(MANIFEST, changed)
    bounds = dict.fromkeys(Account, 1.0) | {Account.INPUT: 30.0}
    screening = screen(differences, bounds, delta_ms=50.0)
    assert [d.field for d in screening.kept] == ["config.num_workers"]
    assert [d.field for d in screening.eliminated] == ["config.overlap"]


def test_a_difference_whose_account_was_not_measured_is_kept() -> None:
    differences = diff_manifests(MANIFEST, _changed("config/overlap", False))
    assert screen(differences, {Account.COMPUTE: 0.0}, delta_ms=50.0).kept == differences


def test_differences_that_the_arms_did_not_declare_confound() -> None:
    changed = _changed("config/packing", "greedy")
    changed["packages"] |= {"torch": "2.8.0", "rich": "14"}
    differences = diff_manifests(MANIFEST, changed)
    assert [d.field for d in undeclared(differences, ["config.packing"])] == ["packages.torch"]
    assert [d.field for d in undeclared(differences, ["config", "packages"])] == []
