"""import-linter's contracts hold, and each of them would be reported if it did not."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
CONTRACTS = {contract["id"]: contract["name"] for contract in LINTER["contracts"]}
FOLDERS = [package.removeprefix("narrows.") for package in LINTER["root_packages"]]

# For each contract, one import that only it forbids or that it exists for: (importing folder, imported module).
VIOLATIONS = {
    "layers": ("reducers", "narrows.templates"),
    "inquiry-is-vocabulary": ("inquiry", "yaml"),
    "instruments-are-light": ("instruments", "yaml"),
    "evidence-alone": ("templates", "narrows.instruments"),
    "flows-launch-experiments": ("flows", "narrows.experiments"),
    "torch": ("reducers", "torch"),
    "orchestration": ("experiments", "prefect"),
    "processes": ("reducers", "subprocess"),
    "analysis": ("flows", "pandas"),
}


def _lint(cwd: Path, **environment: str) -> str:
    """What lint-imports reports about the `narrows` that is importable there."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    command.append(str(ROOT / "pyproject.toml"))
    # A fixed width: the report wraps a contract's name at the terminal's.
    variables = os.environ | {"COLUMNS": "200", "NO_COLOR": "1"} | environment
    done = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_every_contract_is_kept() -> None:
    report = _lint(ROOT)

    assert f"Contracts: {len(CONTRACTS)} kept, 0 broken." in report, report


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A tree of empty packages under the same import names, found before the installed ones."""
    for folder in FOLDERS:
        package = tmp_path / "narrows" / folder
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
    # The one exception that the contracts know; they refuse an exception that nothing uses any more.
    (tmp_path / "narrows" / "instruments" / "source.py").write_text("import subprocess\n", encoding="utf-8")
    return tmp_path


def test_every_contract_has_a_violation_here() -> None:
    assert set(VIOLATIONS) == set(CONTRACTS)


@pytest.mark.parametrize("contract", sorted(VIOLATIONS))
def test_a_planted_violation_is_reported_as_this_contract(contract: str, copy: Path) -> None:
    folder, module = VIOLATIONS[contract]
    (copy / "narrows" / folder / "planted.py").write_text(f"import {module}\n", encoding="utf-8")

    report = _lint(copy, PYTHONPATH=str(copy))

    assert f"{CONTRACTS[contract]} BROKEN" in report, report
    assert f"narrows.{folder}.planted -> {module}" in report


def test_the_exception_for_git_reaches_no_further_than_its_module(copy: Path) -> None:
    kept = _lint(copy, PYTHONPATH=str(copy))
    (copy / "narrows" / "instruments" / "planted.py").write_text("import subprocess\n", encoding="utf-8")
    broken = _lint(copy, PYTHONPATH=str(copy))

    assert f"{CONTRACTS['processes']} KEPT" in kept
    assert f"{CONTRACTS['processes']} BROKEN" in broken
