"""``narrows run -- PROGRAM ARGUMENTS``: the user's own launch, recorded, with its exit code and its signals."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from narrows.flows.processes import GRACE_S, MARK, Job, require_main_thread, tethered
from narrows.inquiry.errors import LaunchError, RunDirectoryError

_FORWARDED = {signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2}
_SI_USER = 0  # sigaction(2): sent by kill(2); a terminal's Ctrl-C says SI_KERNEL
_TORCHRUN = ("-m", "torch.distributed.run")


def run_instrumented(
    argv: Sequence[str], run_dir: Path | None = None, *, join: bool = False, note: Callable[[str], None] | None = None
) -> int:
    """The exit code of ``argv``, as a shell would give it, after it ran with narrows' recorder inside.

    ``join``: ``run_dir`` may hold the files of this job's other nodes already. Raises ``LaunchError`` when there is no
    such program, and ``RunDirectoryError`` for a folder that is not empty or cannot be written.
    """
    require_main_thread("narrows run")
    note = note or (lambda line: print(line, file=sys.stderr))
    command = resolve(argv)
    folder = prepare(run_dir, join=join)
    single = {"NARROWS_SINGLE": "1"} if _is_plain_script(command) else {}
    code = _spawn(command, {**os.environ, **recording_environment(folder), **single})
    note(summary(folder))
    with contextlib.suppress(OSError):
        folder.rmdir()  # only when it is still empty
    return code


def resolve(argv: Sequence[str]) -> list[str]:
    """``argv`` with its program found; ``torchrun`` needs not be on PATH. Raises ``LaunchError`` with the next move."""
    if not argv:
        raise ValueError("there is nothing to run; write: narrows run -- torchrun --nproc-per-node 2 train.py")
    program = argv[0]
    if shutil.which(program):
        return list(argv)
    if program == "torchrun" and importlib.util.find_spec("torch"):
        return [sys.executable, *_TORCHRUN, *argv[1:]]
    if program.endswith(".py"):
        raise LaunchError(f"{program} is no program; write: narrows run -- python {' '.join(argv)}")
    if os.sep in program and Path(program).exists():
        what = (
            "is a folder"
            if Path(program).is_dir()
            else f"may not be executed; chmod +x {program}, or name what runs it"
        )
        raise LaunchError(f"{program} {what}")
    raise LaunchError(f"there is no program {program!r} on PATH; check the name, or give its path")


def _is_plain_script(command: Sequence[str]) -> bool:
    """Whether it is ``python [options] SCRIPT.py``: one process, which no launcher will name a rank."""
    script = next((argument for argument in command[1:] if not argument.startswith("-")), "")
    return Path(command[0]).name.startswith("python") and script.endswith(".py") and "-m" not in command[1:3]


def prepare(run_dir: Path | None, *, join: bool = False) -> Path:
    """The absolute run directory, made and empty, or with ``join`` perhaps not. Raises ``RunDirectoryError``."""
    folder = (run_dir or _dated()).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        full = any(folder.iterdir())
    except OSError as error:
        raise RunDirectoryError(f"cannot use {folder} as a run directory: {error.strerror}") from error
    if full and not join:
        raise RunDirectoryError(
            f"the run directory {folder} is not empty; choose another, or say that this is a further node of the same "
            "job with --join"
        )
    return folder


def _dated() -> Path:
    stem = time.strftime("runs/%Y%m%d-%H%M%S")
    names = (Path(stem if number == 1 else f"{stem}-{number}") for number in range(1, 1000))
    return next(path for path in names if not path.exists())


def recording_environment(run_dir: Path, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that make every Python process of a job record into ``run_dir``."""
    path = [str(bootstrap_folder()), *filter(None, [inherited.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(path), "NARROWS_RUN_DIR": str(run_dir.absolute())}


def bootstrap_folder() -> Path:
    """The folder whose ``sitecustomize`` starts the recorder; found without importing torch."""
    spec = importlib.util.find_spec("narrows.instruments")
    places = list(spec.submodule_search_locations or []) if spec else []
    assert places, "narrows.instruments is not installed"
    return Path(places[0]) / "bootstrap"


def _spawn(command: Sequence[str], environment: Mapping[str, str]) -> int:
    # In our own process group, so that the program keeps the terminal. Signals are held back here and passed on one by
    # one; the shim starts the program with none held back.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_FORWARDED, signal.SIGCHLD})
    job = Job()  # for its mark: what a killed launcher leaves behind is found by it
    try:
        marks = f"{environment.get(MARK, '')}:{job.mark}"
        child = subprocess.Popen(tethered(command), env={**environment, MARK: marks})
        while child.poll() is None:
            _pass_on(child)
        if child.returncode != 0:
            job.stop(GRACE_S)
    finally:
        signal.sigtimedwait({signal.SIGCHLD}, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _pass_on(child: subprocess.Popen[bytes]) -> None:
    got = signal.sigtimedwait({*_FORWARDED, signal.SIGCHLD}, 1.0)
    if got is None or got.si_signo == signal.SIGCHLD:
        return
    from_terminal = got.si_code != _SI_USER and got.si_signo in (signal.SIGINT, signal.SIGQUIT)
    if not from_terminal:  # the terminal told the program itself
        child.send_signal(got.si_signo)


def summary(run_dir: Path) -> str:
    """One line: where the records are and how many, or why there may be none."""
    steps = {path.parent.name: _num_records(path) for path in sorted(run_dir.glob("ranks/*/steps.jsonl"))}
    if not any(steps.values()):
        return (
            f"narrows: {run_dir}: no step was recorded; a step is seen at each optimizer.step() of a torch.distributed "
            "program, or where the program calls recorder.step()"
        )
    low, high = min(steps.values()), max(steps.values())
    each = f"{high}" if low == high else f"{low} to {high}"
    return f"narrows: {run_dir}: {len(steps)} rank{'s' * (len(steps) > 1)}, {each} steps recorded"


def _num_records(path: Path) -> int:
    """The whole lines after the header."""
    with path.open("rb") as stream:
        return max(0, sum(line.endswith(b"\n") for line in stream) - 1)
