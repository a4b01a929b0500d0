"""The thresholds of bottleneck labels, which a user can replace."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from narrows.inquiry.errors import in_words
from narrows.reducers.traces.errors import TraceError
from narrows.reducers.traces.labels import Thresholds, thresholds_from


def thresholds_of(path: Path | None) -> Thresholds:
    """Those of a YAML file, by name; the project's own without one.

    Raises ``TraceError`` for a file that cannot be read, is no mapping, or holds a name or value that is none.
    """
    if path is None:
        return Thresholds()
    try:
        return thresholds_from(_read(path))
    except ValueError as error:
        raise TraceError(f"{path}: {error}") from None


def _read(path: Path) -> Mapping[str, object]:
    import yaml

    try:
        text = path.read_text()
        found, node = yaml.safe_load(text), yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        raise TraceError(f"{path}: the thresholds cannot be read: {in_words(error)}; give a YAML file") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise TraceError(
            f"{path}: the thresholds cannot be read: {in_words(error)}; give a YAML file in UTF-8"
        ) from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise TraceError(f"{path}: expected a mapping of thresholds, as in flows/bottleneck.yaml")
    entries = node.value if isinstance(node, yaml.MappingNode) else []
    names = [str(key.value) for key, _ in entries]  # YAML's own reader keeps the last of two without a word
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise TraceError(f"{path}: {', '.join(twice)}: stands twice; keep one")
    return found
