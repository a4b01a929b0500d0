"""The playbook: which change tests which mechanism. Data in ``playbook.yaml``, read once and checked."""

from __future__ import annotations

from functools import cache
from importlib import resources

import msgspec
import yaml

from narrows.inquiry.playbook import Play


@cache
def load_playbook() -> tuple[Play, ...]:
    """The plays in their order of preference. A broken file is our own bug, and says so by ``msgspec``'s error."""
    text = resources.files("narrows.flows").joinpath("playbook.yaml").read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text)["plays"], tuple[Play, ...])
