"""Facts of this machine that can change how fast it trains: kernel, processors, memory, GPUs, network cards."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def host_facts() -> dict[str, Any]:
    """The facts of this host; what the machine does not tell is absent. Never initialises CUDA."""
    facts: dict[str, Any] = {"kernel": os.uname().release, "cpus": os.cpu_count()}
    facts["cpus_allowed"] = len(os.sched_getaffinity(0))
    readers: dict[str, Callable[[], Any]] = {
        "boot_id": lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "cpu_model": _cpu_model,
        "memory_bytes": _memory_bytes,
        "nics": lambda: nic_facts(Path("/sys/class/net")),
        "os": lambda: _os_name(Path("/etc/os-release")),
        "bios": lambda: Path("/sys/class/dmi/id/bios_version").read_text().strip() or None,
        "nic_firmware": lambda: _firmware(Path("/sys/class/infiniband")) or None,
    }
    for name, reader in readers.items():
        with contextlib.suppress(OSError, ValueError, IndexError):
            if (value := reader()) is not None:
                facts[name] = value
    facts.update(nvml_facts())
    facts.update(site_facts())
    version = sys.modules.get("torch.version")
    if version is not None and version.cuda:
        facts["cuda"] = version.cuda
    return facts


def site_facts() -> dict[str, Any]:
    """What the site knows of this host and no library tells: a JSON object in the file NARROWS_HOST_FACTS names.

    It may hold firmware of switches and cards, a cooling loop, a maintenance level; nothing where it cannot be read.
    """
    path = os.environ.get("NARROWS_HOST_FACTS")
    if not path:
        return {}
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(Path(path).read_text(encoding="utf-8"))
        return dict(known) if isinstance(known, dict) else {}
    return {}


def _os_name(path: Path) -> str | None:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip().strip('"')
    return None


def _firmware(root: Path) -> dict[str, str]:
    """Firmware of the InfiniBand and RoCE cards under ``root`` by name."""
    return {path.name: (path / "fw_ver").read_text().strip() for path in sorted(root.iterdir())}


def nic_facts(root: Path) -> list[dict[str, Any]]:
    """The network cards under ``root`` except loopback: name, ``speed_mbit`` where the link tells it, driver."""
    cards = []
    for path in sorted(root.iterdir()):
        if path.name == "lo" or not path.is_dir():
            continue
        card: dict[str, Any] = {"name": path.name}
        with contextlib.suppress(OSError, ValueError):  # a link that is down answers EINVAL
            speed = int((path / "speed").read_text())
            if speed > 0:
                card["speed_mbit"] = speed
        with contextlib.suppress(OSError):
            card["mtu"] = int((path / "mtu").read_text())
        driver = path / "device" / "driver"
        if driver.exists():
            card["driver"] = driver.resolve().name
        cards.append(card)
    return cards


def nvml_facts(nvml: Any = None) -> dict[str, Any]:
    """``driver`` and ``gpus`` as NVML tells them, or nothing where the library is not there.

    ``nvml`` is the pynvml module, or anything with its functions. Power in W, clocks in MHz, memory in bytes.
    """
    nvml = _installed_nvml() if nvml is None else nvml
    if nvml is None:
        return {}
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return {}
    try:
        facts: dict[str, Any] = {"driver": _text(nvml.nvmlSystemGetDriverVersion())}
        facts["gpus"] = [_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        return facts
    except nvml.NVMLError:
        return {}
    finally:
        nvml.nvmlShutdown()


def _installed_nvml() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def gpu_identity() -> dict[str, Any] | None:
    """Index, name and UUID of the CUDA device that this process uses; None before CUDA is initialised."""
    cuda = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return None
    properties = cuda.get_device_properties(cuda.current_device())
    identity: dict[str, Any] = {"index": cuda.current_device(), "name": properties.name}
    if (uuid := getattr(properties, "uuid", None)) is not None:
        identity["uuid"] = f"GPU-{uuid}"
    return identity


def _gpu(nvml: Any, index: int) -> dict[str, Any]:
    """What NVML tells of one GPU; a question that this model does not answer is left out."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    questions: dict[str, Callable[[], Any]] = {
        "name": lambda: _text(nvml.nvmlDeviceGetName(handle)),
        "uuid": lambda: _text(nvml.nvmlDeviceGetUUID(handle)),
        "memory_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total,
        "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
        "sm_clock_max_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_clock_max_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "sm_clock_application_mhz": lambda: nvml.nvmlDeviceGetApplicationsClock(handle, nvml.NVML_CLOCK_SM),
        "persistence": lambda: bool(nvml.nvmlDeviceGetPersistenceMode(handle)),
        "ecc": lambda: bool(nvml.nvmlDeviceGetEccMode(handle)[0]),
        "mig": lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0]),
        "vbios": lambda: _text(nvml.nvmlDeviceGetVbiosVersion(handle)),
        "pci_bus_id": lambda: _text(nvml.nvmlDeviceGetPciInfo(handle).busId),
    }
    facts: dict[str, Any] = {"index": index}
    for name, ask in questions.items():
        with contextlib.suppress(nvml.NVMLError):
            facts[name] = ask()
    return facts


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _cpu_model() -> str | None:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model\t")):
            return line.partition(":")[2].strip()
    return None


def _memory_bytes() -> int | None:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return None
