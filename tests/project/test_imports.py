"""What an import brings along: training processes and `narrows --help` must stay light."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# What `import narrows.instruments` may load beyond torch and the standard library.
LIGHT = {"narrows", "msgspec", "pynvml"}


def _modules_after(program: str) -> set[str]:
    """The names in sys.modules of a fresh process that ran this program."""
    ending = "\nimport json, sys\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    command = [sys.executable, "-c", program + ending]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    modules: list[str] = json.loads(done.stdout.splitlines()[-1])
    return set(modules)


def _top(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_instruments_add_nothing_heavy_to_a_training_process() -> None:
    """torch brings numpy where it is installed; so what counts is what comes on top of torch."""
    with_torch = _modules_after("import torch, torch.distributed")

    added = _top(_modules_after("import torch, torch.distributed, narrows.instruments")) - _top(with_torch)

    assert "narrows" in added
    # An underscore in front: the standard library's accelerators, and setuptools' finder of editable installs.
    assert {name for name in added - set(sys.stdlib_module_names) if name[0] != "_"} <= LIGHT


def test_help_imports_neither_prefect_nor_torch() -> None:
    program = (
        "import sys\n"
        "from narrows.flows.cli import main\n"
        "sys.argv = ['narrows', '--help']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
    )

    loaded = _top(_modules_after(program))

    assert loaded & {"prefect", "torch", "pandas", "scipy", "matplotlib"} == set()
    assert "narrows" in loaded


@pytest.mark.parametrize("package", ["inquiry", "reducers", "templates"])
def test_what_reads_evidence_needs_neither_torch_nor_prefect(package: str) -> None:
    program = (
        f"import importlib, pkgutil, narrows.{package} as package\n"
        "for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "    importlib.import_module(module.name)\n"
    )

    loaded = _top(_modules_after(program))

    assert loaded & {"prefect", "torch"} == set()
    assert "narrows" in loaded
