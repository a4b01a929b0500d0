"""YAML with the lines of its keys: values are taken one by one, and every problem is kept with its place."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from narrows.inquiry.errors import CaseError

FILL_IN = "FILL IN: "
"""A value that begins with this was left open by the command that wrote the file; the rest says what belongs there."""
HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(slots=True)
class Reader:
    """A mapping of the file with the lines of its keys; collects problems instead of stopping at the first."""

    path: Path
    problems: list[str] = field(default_factory=list)

    def say(self, line: int, key: str, problem: str) -> None:
        self.problems.append(f"{self.path}:{line}: {key}: {problem}")


@dataclass(slots=True)
class Section:
    reader: Reader
    key: str
    line: int
    items: dict[str, Any]
    lines: dict[str, int]
    present: bool = True
    used: set[str] = field(default_factory=set)

    def name(self, key: str) -> str:
        return f"{self.key}.{key}" if self.key else key

    def say(self, key: str, problem: str) -> None:
        self.reader.say(self.lines.get(key, self.line), self.name(key), problem)

    def take(
        self, key: str, accepts: Callable[[Any], bool], expected: str, default: Any = None, *, needed: bool = False
    ) -> Any:
        """The value of ``key`` if it is acceptable, else ``default`` with the problem noted."""
        self.used.add(key)
        if key not in self.items:
            if needed and self.present:
                self.reader.say(self.line, self.name(key), f"is missing; expected {expected}")
            return default
        value = self.items[key]
        if self.is_open(key):
            self.say(key, f"is to be filled in: {value.removeprefix(FILL_IN)}")
            return default
        if not accepts(value):
            self.say(key, f"is {show(value)}; expected {expected}")
            return default
        return value

    def is_open(self, key: str) -> bool:
        value = self.items.get(key)
        return isinstance(value, str) and value.startswith(FILL_IN)

    def section(self, key: str, *, needed: bool = False) -> Section:
        value = self.take(key, lambda v: isinstance(v, Node), "a mapping", needed=needed)
        if isinstance(value, Node):
            return Section(self.reader, self.name(key), self.lines[key], value.items, value.lines)
        return Section(self.reader, self.name(key), self.lines.get(key, self.line), {}, {}, present=False)

    def done(self, known: tuple[str, ...]) -> None:
        """Notes every key that nothing asked for."""
        for key in self.items:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]}?" if near else "expected one of " + ", ".join(known)
                self.say(key, f"is an unknown key; {hint}")


@dataclass(slots=True)
class Node:
    """A YAML mapping with the line of each key."""

    items: dict[str, Any]
    lines: dict[str, int]


def show(value: Any) -> str:
    text = repr(bare(value))
    return text if len(text) <= 60 else text[:57] + "..."


def bare(value: Any) -> Any:
    if isinstance(value, Node):
        return {key: bare(item) for key, item in value.items.items()}
    return [bare(item) for item in value] if isinstance(value, list) else value


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def is_count(least: int, most: int = 1 << 31) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, int) and not isinstance(v, bool) and least <= v <= most


def is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def is_hosts(value: Any) -> bool:
    """Host names become folder names."""
    return is_texts(value) and bool(value) and all(HOST.fullmatch(one) for one in value)


def is_environment(value: Any) -> bool:
    return isinstance(value, Node) and all(is_word(one) for one in value.items.values())


def is_word(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


def parse(path: Path) -> Section:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CaseError(f"{path}: there is no such case file; `narrows demo` writes examples to start from") from None
    except IsADirectoryError:
        raise CaseError(f"{path}: is a folder; expected a YAML file") from None
    except OSError as error:
        raise CaseError(f"{path}: cannot be read ({error.strerror}); expected a YAML file in UTF-8") from None
    except UnicodeDecodeError as error:
        raise CaseError(f"{path}: is not text in UTF-8 (byte {error.start}); expected a YAML file") from None
    reader = Reader(path)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        value = _convert(node, reader) if node is not None else None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        why = " ".join(str(getattr(error, "problem", None) or error).split())
        raise CaseError(f"{path}:{line}: not YAML: {why}") from None
    except RecursionError:
        raise CaseError(f"{path}:1: is nested too deeply, or contains itself; a case file needs four levels") from None
    if not isinstance(value, Node):
        holds = f"holds {show(value)}" if node is not None else "is empty"
        raise CaseError(f"{path}:1: {holds}; expected a mapping with case, question, runs, workload, ...")
    return Section(reader, "", 1, value.items, value.lines)


def _convert(node: yaml.Node, reader: Reader) -> Any:
    if isinstance(node, yaml.MappingNode):
        items: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in items:
                reader.say(line, key, f"stands twice (first in line {lines[key]}); keep one")
            items[key], lines[key] = _convert(value_node, reader), line
        return Node(items, lines)
    if isinstance(node, yaml.SequenceNode):
        return [_convert(one, reader) for one in node.value]
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node, deep=True)
    except ValueError as error:  # a date that no calendar has, a number of another base
        raise yaml.constructor.ConstructorError(problem=str(error), problem_mark=node.start_mark) from None
    finally:
        loader.dispose()
