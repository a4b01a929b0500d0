"""What a host runs on, as a flat table of fields: short enough to be compared, kept and sent with an event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

Fields = dict[str, str]

_PLAIN = ("kernel", "os", "driver", "cuda", "cpu_model", "cpus", "bios")
# Facts that say what else runs on the host, or when it was booted, not what it is.
_PASSING = frozenset({"boot_id", "cpus_allowed", "memory_bytes", "nics", "gpus", *_PLAIN})
_GPU = {
    "name": "gpus",
    "vbios": "gpu_vbios",
    "power_limit_w": "gpu_power_limit_w",
    "sm_clock_application_mhz": "gpu_sm_clock_application_mhz",
    "ecc": "gpu_ecc",
    "mig": "gpu_mig",
    "persistence": "gpu_persistence",
}
_PACKAGES = ("python", "torch", "triton", "transformer-engine", "flash-attn", "deepspeed", "megatron-core")
_FAMILIES = {"nvidia-nccl": "nccl", "nvidia-cudnn": "cudnn", "nvidia-cublas": "cublas"}


def host_fields(facts: Mapping[str, Any]) -> Fields:
    """The fields of a host's facts, as a manifest holds them under ``hosts.NAME``.

    Several GPUs or cards make one field: ``8 x NVIDIA H100``. What changes by itself (boots, free memory) is left out;
    a fact of another name, a site's own, is kept as it is.
    """
    found = {name: str(facts[name]) for name in _PLAIN if name in facts}
    if "memory_bytes" in facts:
        found["memory_gib"] = str(round(int(facts["memory_bytes"]) / 2**30))
    for fact, name in _GPU.items():
        if values := _counted(one.get(fact) for one in facts.get("gpus") or ()):
            found[name] = values
    cards = [one for one in facts.get("nics") or () if one.get("driver")]  # the others are no hardware
    if cards:
        found["nics"] = _counted(_card(one) for one in cards)
    found |= {name: _text(value) for name, value in facts.items() if name not in _PASSING}
    return {f"host.{name}": value for name, value in found.items()}


def package_fields(packages: Mapping[str, str]) -> Fields:
    """The versions that a training step runs on, whatever CUDA they were packed for."""
    found = {name: packages[name] for name in _PACKAGES if name in packages}
    for prefix, name in _FAMILIES.items():
        versions = [version for package, version in packages.items() if package.startswith(prefix)]
        if versions:
            found[name] = versions[0]
    return {f"packages.{name}": value for name, value in found.items()}


def run_fields(manifest: Mapping[str, Any]) -> Fields:
    """What a run's manifest says of the job itself: its topology, the shape of its work, the scheduler."""
    placed = manifest.get("placement") or ()
    counts = Counter(str(one["host"]) for one in placed)
    found = {}
    if counts:
        found["job.topology"] = " + ".join(f"{nodes} x {ranks} ranks" for ranks, nodes in _grouped(counts))
    slurm = any(str(name).startswith("SLURM_") for name in manifest.get("environment") or ())
    found["job.scheduler"] = "slurm" if slurm else "none"
    shape = {name: value for name, value in dict(manifest.get("workload") or {}).items() if _is_shape(name, value)}
    return found | {f"shape.{name}": _text(value) for name, value in shape.items()}


def manifest_fields(manifest: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Every field of a manifest with the values that it has, over all of its hosts."""
    found: dict[str, list[str]] = {}
    tables = [host_fields(facts) for facts in dict(manifest.get("hosts") or {}).values()]
    for table in (*tables, package_fields(manifest.get("packages") or {}), run_fields(manifest)):
        for name, value in table.items():
            if value not in found.setdefault(name, []):
                found[name].append(value)
    return {name: tuple(values) for name, values in found.items()}


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, dict[str, str | None]]:
    """The fields that differ, each with what it ``was`` and what it is ``now``; None: it was not there."""
    names = [name for name in dict.fromkeys((*before, *after)) if before.get(name) != after.get(name)]
    return {name: {"was": before.get(name), "now": after.get(name)} for name in names}


def _grouped(counts: Mapping[str, int]) -> list[tuple[int, int]]:
    return sorted(Counter(counts.values()).items(), reverse=True)


def _is_shape(name: str, value: Any) -> bool:
    """The rest of a recorded workload says which experiment it was."""
    return name not in ("experiment", "num_shards", "schedule", "seed") and isinstance(value, (str, int, float))


def _card(one: Mapping[str, Any]) -> str:
    rate = f" {one['speed_mbit']} Mbit/s" if one.get("speed_mbit") else ""
    return f"{one['driver']}{rate} mtu {one.get('mtu', '?')}"


def _counted(values: Any) -> str:
    known = Counter(_text(value) for value in values if value is not None)
    if sum(known.values()) == 1:
        return next(iter(known))
    return ", ".join(f"{count} x {value}" for value, count in sorted(known.items()))


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(item)}" for name, item in sorted(value.items()))
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(item) for item in value)
    return str(value).lower() if isinstance(value, bool) else str(value)
