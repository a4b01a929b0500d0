"""Makes .venv hold narrows (editable) and what it needs; does nothing where it already does.

    python scripts/install.py run    # what `make demo` needs
    python scripts/install.py dev    # what `make check` and `make test` need as well

Standard library only: it runs before anything is installed. The Makefile calls it.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
STAMP = VENV / "narrows-installed.json"
TARGETS = {"run": ".", "dev": ".[dev]"}
SHOW_PROGRESS_EVERY_S = 15.0
# Lines of pip after which it may say nothing for long: a download of 50 MB or more, and the unpacking.
ANNOUNCES_A_WAIT = re.compile(r"Downloading .*\((?:[5-9]\d|\d{3,})\.?\d* MB\)|Downloading .* GB\)|Installing collected")


def main() -> int:
    parser = argparse.ArgumentParser(description="Makes .venv hold narrows and what it needs.")
    parser.add_argument("extras", choices=sorted(TARGETS))
    parser.add_argument("--exact", action="store_true", help="refuse a .venv of another Python version than this one")
    arguments = parser.parse_args()
    with _only_one_at_a_time():
        if arguments.exact and (refusal := _version_refusal()):
            print(refusal, file=sys.stderr)
            return 1
        stamp = _read_stamp()
        if _fits(stamp, arguments.extras):
            return 0
        return _install(arguments.extras, stamp)


def requirements_digest() -> str:
    """The digest of what decides an installation; a changed lint rule in pyproject.toml is not a part of it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    decides = {
        "build-system": project["build-system"],
        "project": project["project"],
        "setuptools": project["tool"]["setuptools"],
        "constraints": (ROOT / "constraints.txt").read_text(encoding="utf-8"),
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


@contextmanager
def _only_one_at_a_time() -> Iterator[None]:
    """`make -j demo test` calls this twice at once; the second waits and then finds its work done or smaller."""
    directory = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _read_stamp() -> dict[str, str]:
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def _fits(stamp: dict[str, str], extras: str) -> bool:
    covers = stamp.get("extras") in (extras, "dev")
    current = stamp.get("digest") == requirements_digest() and stamp.get("root") == str(ROOT)
    return covers and current and _works(VENV_PYTHON)


def _works(python: Path) -> bool:
    return _version_of(python) is not None


def _version_of(python: Path) -> str | None:
    command = [str(python), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def _version_refusal() -> str | None:
    wanted = f"{sys.version_info.major}.{sys.version_info.minor}"
    present = _version_of(VENV_PYTHON)
    if present in (None, wanted):
        return None
    return f"narrows: .venv holds Python {present} and PYTHON names {wanted}. To change over: make distclean"


def _install(extras: str, stamp: dict[str, str]) -> int:
    started = time.monotonic()
    _prepare_venv(stamp)
    # A stamp must never outlive an installation that broke half-way.
    STAMP.unlink(missing_ok=True)
    first = "" if stamp else ": one to two minutes the first time, more where PyTorch is downloaded"
    print(f"installing into .venv{first}", flush=True)
    status = _pip_install(extras)
    if status != 0:
        return status
    STAMP.write_text(
        json.dumps({"extras": extras, "digest": requirements_digest(), "root": str(ROOT)}) + "\n", encoding="utf-8"
    )
    print(f"installed in {time.monotonic() - started:.0f} s", flush=True)
    return 0


def _prepare_venv(stamp: dict[str, str]) -> None:
    base = Path(sys.executable).resolve()  # asked now: this may be the very .venv that goes
    # Console scripts hold absolute paths: an environment that was moved with its checkout is made anew.
    moved = stamp.get("root", str(ROOT)) != str(ROOT)
    if moved or (VENV.exists() and not _works(VENV_PYTHON)):
        print("the old .venv was made elsewhere or no longer starts: making it anew", flush=True)
        shutil.rmtree(VENV)
    if not VENV.exists():
        subprocess.run([str(base), "-m", "venv", str(VENV)], check=True)


def _pip_install(extras: str) -> int:
    """pip's exit status; its output is shown only when it failed, and a sign of life every few seconds."""
    command = [
        str(VENV_PYTHON), "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--progress-bar", "off",
        "-c", str(ROOT / "constraints.txt"), "-e", TARGETS[extras],
    ]  # fmt: skip
    started = shown = time.monotonic()
    lines: list[str] = []
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            lines.append(line)
            quiet_for = time.monotonic() - shown
            if ANNOUNCES_A_WAIT.search(line) or (quiet_for > SHOW_PROGRESS_EVERY_S and "Successfully" not in line):
                shown = time.monotonic()
                print(f"  {shown - started:4.0f} s  {' '.join(line.split())[:90]}", flush=True)
    if pip.returncode != 0:
        sys.stderr.write("".join(lines[-40:]))
        print(f"narrows: pip failed (its last lines stand above). Again: {' '.join(command)}", file=sys.stderr)
    return pip.returncode


if __name__ == "__main__":
    sys.exit(main())
