"""What `narrows doctor` looks at on this machine: versions, clock, storage, devices, limits, launcher."""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from narrows.flows.launching import launch
from narrows.flows.local_launcher import LocalLauncher
from narrows.flows.plan_files import jobs
from narrows.inquiry.design import HEALTHY, REGRESSED, Arm, Experiment, Mode
from narrows.inquiry.errors import NarrowsError
from narrows.inquiry.scopes import Rung, Scope, placement
from narrows.reducers.rundir import read_run

LEAST_FREE_GB = 5
LEAST_OPEN_FILES = 4096
LEAST_SHARED_MEMORY_MB = 256
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # it is looked at, not written
_CLOCK_UNSYNCHRONISED = 5
_REMOTE = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "fuse", "cifs", "smb")


class State(StrEnum):
    """How a check came out. ``WARN`` works, with a risk that is named."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at; ``fix`` says what to do where it is not well."""

    area: str
    state: State
    text: str
    fix: str = ""


def versions(_folder: Path) -> Iterator[Check]:
    python = ".".join(map(str, sys.version_info[:3]))
    yield Check(area="versions", state=State.OK, text=f"narrows {version('narrows')}, Python {python}")
    for package in ("torch", "prefect"):
        try:
            yield Check(area="versions", state=State.OK, text=f"{package} {version(package)}")
        except PackageNotFoundError:
            yield Check(area="versions", state=State.FAIL, text=f"{package} is not installed",
                        fix=f"install it into {sys.prefix}")  # fmt: skip


def clocks(_folder: Path) -> Iterator[Check]:
    """Whether the kernel's clock is kept by a time service: hosts are aligned on it before collectives refine it."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))
    except (OSError, AttributeError):
        return
    if state == _CLOCK_UNSYNCHRONISED:
        yield Check(area="clock", state=State.WARN, text="the kernel's clock is kept by no time service",
                    fix="run chrony or ptp4l on every host; within one host nothing is lost")  # fmt: skip
    elif state >= 0:
        yield Check(area="clock", state=State.OK, text="the kernel's clock is synchronised")


def storage(folder: Path) -> Iterator[Check]:
    """Whether a case can be kept in ``folder``: written, replaced whole, locked; and how much room there is."""
    folder = folder.absolute()
    kind = _filesystem(folder)
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".narrows-doctor-") as name:
            problem = _try_files(Path(name))
    except OSError as error:
        yield Check(area="storage", state=State.FAIL, text=f"{folder} cannot be written: {error.strerror}",
                    fix="work in a folder of your own, which every node sees under the same path")  # fmt: skip
        return
    if problem:
        yield Check(area="storage", state=State.FAIL, text=f"{folder} ({kind}): {problem}",
                    fix="keep cases on a file system with locks and atomic renames")  # fmt: skip
        return
    free_gb = shutil.disk_usage(folder).free / 1e9
    shared = kind.startswith(_REMOTE)
    where = f"{folder} on {kind}{', shared' if shared else ', of this machine'}: {free_gb:.0f} GB free"
    if free_gb < LEAST_FREE_GB:
        yield Check(area="storage", state=State.WARN, text=where,
                    fix=f"make room: below {LEAST_FREE_GB} GB a long run may stop writing")  # fmt: skip
    elif kind in ("tmpfs", "ramfs"):
        yield Check(area="storage", state=State.WARN, text=where, fix="a reboot empties it; keep cases on a disk")
    else:
        yield Check(area="storage", state=State.OK, text=where)


def _try_files(folder: Path) -> str:
    """What does not work in ``folder``, or nothing."""
    first, second = folder / "a", folder / "b"
    first.write_text("new")
    second.write_text("old")
    first.replace(second)
    if second.read_text() != "new":
        return "a replaced file shows its old content"
    with second.open("r+") as one, second.open("r+") as other:
        try:
            fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return f"files cannot be locked ({error.strerror})"
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return ""
    return "a locked file can be locked again: two investigations could hold one case"


def _filesystem(folder: Path) -> str:
    """The type of the file system that holds ``folder``: that of the longest mount point above it."""
    best, kind = "", "unknown"
    try:
        lines = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return kind
    for line in lines:
        _, point, found, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        if folder.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, found
    return kind


def devices(_folder: Path) -> Iterator[Check]:
    """The GPUs that the driver knows, and whether this PyTorch can use them."""
    names, driver = _nvml_devices()
    usable, cuda = _torch_devices()
    if not names and not usable:
        yield Check(area="devices", state=State.OK, text="no GPU here; the emulated device and the CPU are used")
        return
    text = f"{len(names)} GPUs by the driver ({', '.join(sorted(set(names)))}; {driver}), {usable} by PyTorch"
    if usable < len(names):
        fix = (
            "this PyTorch was built without CUDA; install a CUDA build"
            if not cuda
            else "look at CUDA_VISIBLE_DEVICES, and whether the driver is as new as this PyTorch needs"
        )
        yield Check(area="devices", state=State.FAIL if not usable else State.WARN, text=text, fix=fix)
    else:
        yield Check(area="devices", state=State.OK, text=text)


def _torch_devices() -> tuple[int, bool]:
    """How many GPUs PyTorch can use, and whether it was built for them; asked of a process of its own."""
    code = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0, torch.version.cuda)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    count, _, cuda = done.stdout.strip().rpartition("\n")[2].partition(" ")
    return (int(count), cuda != "None") if count.isdigit() else (0, False)


def _nvml_devices() -> tuple[list[str], str]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return [], ""
    try:
        found = [pynvml.nvmlDeviceGetHandleByIndex(at) for at in range(pynvml.nvmlDeviceGetCount())]
        return [str(pynvml.nvmlDeviceGetName(one)) for one in found], f"driver {pynvml.nvmlSystemGetDriverVersion()}"
    except pynvml.NVMLError as error:
        return [], f"NVML: {error}"
    finally:
        pynvml.nvmlShutdown()


def limits(_folder: Path) -> Iterator[Check]:
    """What lets large jobs fail late: open files, shared memory, a host name that does not resolve."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = soft != resource.RLIM_INFINITY and soft < LEAST_OPEN_FILES
    yield Check(
        area="limits",
        state=State.WARN if low else State.OK,
        text=f"{soft} open files a process",
        fix=f"ulimit -n {min(hard, 65536) if hard > 0 else 65536}: each rank opens several files" if low else "",
    )
    if SHARED_MEMORY.is_dir():
        size_mb = shutil.disk_usage(SHARED_MEMORY).total / 1e6
        small = size_mb < LEAST_SHARED_MEMORY_MB
        yield Check(
            area="limits",
            state=State.WARN if small else State.OK,
            text=f"{size_mb:.0f} MB of shared memory",
            fix="in a container: --shm-size=8g; loaders and NCCL hand data over through it" if small else "",
        )
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
        yield Check(area="limits", state=State.OK, text=f"the host's name, {name}, resolves")
    except OSError:
        own = os.environ.get("GLOO_SOCKET_IFNAME")
        yield Check(
            area="limits",
            state=State.OK if own else State.WARN,
            text=f"the host's name, {name}, does not resolve" + (f"; gloo uses {own}" if own else ""),
            fix="" if own else "add it to /etc/hosts, or set GLOO_SOCKET_IFNAME: gloo looks it up",
        )


def launcher(_folder: Path) -> Iterator[Check]:
    """Whether torchrun starts two ranks here, and what they recorded can be read."""
    with tempfile.TemporaryDirectory(prefix="narrows-doctor-") as name:
        folder = Path(name)
        experiment = Experiment(
            key="doctor",
            rung=Rung.ONE_NODE,
            scope=Scope.ONE_NODE,
            program="step",
            before=Arm(name=HEALTHY),
            after=Arm(name=REGRESSED, config={"slow_input": 100}),
            placement=placement(("localhost",), 2),
            mode=Mode.SWITCHBACK,
            device="emulated",
            differs=("config.slow_input",),
            num_shards=2,
            steps=4,
            washout=1,
        )
        (job,) = jobs(experiment, folder, first_pair=0, pairs=1)
        try:
            seconds = launch(LocalLauncher(), job.plan).seconds
            recorded = len(read_run(job.runs[HEALTHY]).ranks)
        except NarrowsError as error:
            fix = "run it by hand: torchrun --nproc-per-node 2 SCRIPT; look for a firewall on loopback"
            yield Check(area="launcher", state=State.FAIL, text=f"torchrun with two ranks failed: {error}", fix=fix)
            return
    text = f"torchrun started {recorded} ranks over gloo and their record was read, {seconds:.0f} s"
    yield Check(area="launcher", state=State.OK, text=text)
