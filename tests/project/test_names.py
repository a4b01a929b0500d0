"""Files in flows/ and experiments/ are loaded under more than one name: what they may be called, and may hold."""

from __future__ import annotations

import ast
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The files that Prefect and torchrun are known to load; others of their kind are found by what stands in them.
KNOWN_ENTRIES = {"experiments/collective.py", "experiments/step.py", "flows/investigate.py"}


def _sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def _is_main_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}


def _is_flow(node: ast.AST) -> bool:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    names = (ast.unparse(decorator).partition("(")[0] for decorator in node.decorator_list)
    return any(name.rpartition(".")[2] == "flow" for name in names)


def _is_entry(source: Path) -> bool:
    tree = ast.parse(source.read_text(encoding="utf-8"))
    if source.is_relative_to(ROOT / "experiments"):
        return any(_is_main_guard(node) for node in tree.body)
    return any(_is_flow(node) for node in ast.walk(tree))


def _entries() -> set[str]:
    found = {
        str(path.relative_to(ROOT))
        for folder in ("experiments", "flows")
        for path in _sources(folder)
        if _is_entry(path)
    }
    return found | KNOWN_ENTRIES


@pytest.mark.parametrize("folder", ["flows", "experiments"])
def test_no_file_takes_the_name_of_a_module_that_others_import(folder: str) -> None:
    """Prefect and torchrun put the folder first on sys.path, where `profile.py` breaks `import cProfile`."""
    taken = (set(sys.stdlib_module_names) | set(packages_distributions())) - {"narrows"}
    names = {entry.stem for entry in (ROOT / folder).iterdir() if entry.suffix == ".py" or entry.is_dir()}

    assert {"__init__"} <= names
    assert (names - {"__init__", "__pycache__"}) & taken == set()


@pytest.mark.parametrize("entry", sorted(_entries()))
def test_no_class_is_defined_in_a_file_that_is_loaded_twice(entry: str) -> None:
    """Loaded by path and by import, a class exists twice, and `isinstance` says no to its own instances."""
    tree = ast.parse((ROOT / entry).read_text(encoding="utf-8"))

    assert [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)] == []
