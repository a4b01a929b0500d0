"""The way to the maker of generated step records beside this file."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

NAME = "step_record_makers"
# pytest's importlib mode leaves sys.path alone, and so do we.
_SPEC = spec_from_file_location(NAME, Path(__file__).parent / f"{NAME}.py")
assert _SPEC is not None
assert _SPEC.loader is not None
sys.modules[NAME] = module_from_spec(_SPEC)
_SPEC.loader.exec_module(sys.modules[NAME])
