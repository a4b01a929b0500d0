"""The golden files of rendered texts, and the way to the synthetic cases beside this file."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

HERE = Path(__file__).parent
GOLDEN = HERE / "golden"


def _load(name: str) -> None:
    """Makes a helper beside this file importable: pytest's importlib mode leaves ``sys.path`` alone, and so do we."""
    spec = spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


_load("synthetic_cases")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/templates/golden anew")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with its golden file, or writes that file under ``--update-golden``."""
    update = request.config.getoption("--update-golden", default=False)

    def check(name: str, text: str) -> None:
        # Digests follow the whole registration, so that any rule added there would change every one of them.
        text = re.sub(r"`(?:[0-9a-f]{64}|[0-9a-f]{12})`", "`digest`", text)
        path = GOLDEN / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        expected = path.read_text(encoding="utf-8")
        assert text == expected, f"{name} changed; look at it, then run pytest tests/templates --update-golden"

    return check
