"""Every process that collects the tests must find the same ones: pytest's workers refuse to run what differs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_a_second_process_collects_the_same_tests_a_moment_later(request: pytest.FixtureRequest) -> None:
    """A name with the time, a process number or the order of a set in it is another one there."""
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests"]
    seed = str(int(os.environ.get("PYTHONHASHSEED", "0").replace("random", "0")) + 1)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    again = subprocess.run(
        words, cwd=ROOT, env=environment | {"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=False
    )
    assert again.returncode == 0, again.stdout[-2000:] + again.stderr[-2000:]
    there = set(again.stdout.splitlines())

    mine = {item.nodeid for item in request.session.items if item.path.is_relative_to(ROOT / "tests")}
    assert mine <= there, f"named otherwise in a second process: {sorted(mine - there)[:5]}"
