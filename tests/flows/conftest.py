"""The way to the model machines beside this file."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

HERE = Path(__file__).parent


def _load(name: str) -> None:
    """Makes a helper beside this file importable: pytest's importlib mode leaves ``sys.path`` alone, and so do we."""
    spec = spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


_load("model_machines")
