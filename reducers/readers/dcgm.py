"""``dcgmi diag`` results, text and JSON, of DCGM 2 to 4.

Skip is not Pass. A failure whose every reason is of the kind *configuration* (severity 5) says that a setting is not
as DCGM wants it, and nothing about the hardware.

Source: severities as in DCGM's dcgm_errors.h (``dcgmErrorSeverity_t``): 2 isolate, 4 triage, 5 configuration, 6 reset.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from narrows.reducers.readers.common import NotUnderstood, UnreadableError, UnreadList, as_text, described, shown, whole

_ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
_CONFIGURATION = 5
_SECTION = re.compile(r"^\|?-+\s+([A-Za-z ]+?)\s+-+")
_ENTITY = re.compile(r"^([A-Za-z]+?)s?\s*:?\s*(\d+)\s*:\s*(\w[\w ]*)$")
_RESULT = re.compile(r"^(Pass|Fail|Skip|Warn|Not Run)(?:\s*-\s*(.*))?$", re.IGNORECASE)
_DETAIL = ("Warning", "Error", "Info")


class Outcome(StrEnum):
    """What a test came to; ``unknown`` where its status is none of DCGM's words."""

    PASS = "pass"  # noqa: S105 - a test passed
    FAIL = "fail"
    WARN = "warn"
    SKIP = "skip"
    NOT_RUN = "not run"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagWarning:
    """A reason: DCGM's text, and its numbers where given."""

    text: str
    error_id: int | None = None
    category: int | None = None
    severity: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagResult:
    """One test on one entity; ``entity`` is ``all`` where the result is the test's as a whole."""

    category: str
    test: str
    entity: str
    outcome: Outcome
    warnings: tuple[DiagWarning, ...] = ()
    info: tuple[str, ...] = ()

    @property
    def configuration_only(self) -> bool:
        """Whether it failed for settings alone. False where the severities are not given."""
        return bool(self.warnings) and all(one.severity == _CONFIGURATION for one in self.warnings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diag:
    """A whole run of the diagnostic. ``error`` is what stopped it, where something did.

    ``configuration_failures``: the tests that failed for settings alone.
    """

    results: tuple[DiagResult, ...]
    version: str | None = None
    driver: str | None = None
    error: str | None = None
    configuration_failures: tuple[str, ...] = ()
    not_understood: NotUnderstood = field(default_factory=NotUnderstood)

    @property
    def failed(self) -> tuple[DiagResult, ...]:
        return tuple(one for one in self.results if one.outcome is Outcome.FAIL)


def looks_like_json(text: str) -> bool:
    return any(f'"{root}"' in text for root in _ROOTS)


def looks_like_text(text: str) -> bool:
    return bool(re.search(r"^\|\s*Diagnostic\s*\|\s*Result\s*\|", text, re.MULTILINE))


def read_dcgm(data: bytes, name: str = "input") -> Diag:
    """The diagnostic in ``data``, text or JSON; lines before the JSON are passed over.

    Raises:
        UnreadableError: there is no diagnostic in it.
    """
    text = as_text(data)
    if looks_like_json(text):
        return _read_json(text, name)
    if looks_like_text(text):
        return _read_text(text)
    raise UnreadableError(
        f"{name}: has neither a DCGM diagnostic's JSON nor its table; give the output of dcgmi diag -r N -j"
    )


def _read_json(text: str, name: str) -> Diag:
    start = text.find("{")
    try:
        value, _ = json.JSONDecoder().raw_decode(text[start:])
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{name}: the JSON is not whole ({error}); run dcgmi diag -j again") from None
    root = next((value[key] for key in _ROOTS if isinstance(value, dict) and key in value), None)
    if not isinstance(root, Mapping):
        raise UnreadableError(f"{name}: has no '{_ROOTS[0]}' or '{_ROOTS[1]}'; give the output of dcgmi diag -r N -j")
    unread = UnreadList()
    metadata = value.get("metadata") if isinstance(value.get("metadata"), Mapping) else {}
    places = (metadata, value, root)
    if text[:start].strip():
        unread.add(1, text[:start], "before the JSON")
    results = tuple(_results(root, unread))
    return Diag(
        results=results,
        configuration_failures=tuple(
            f"{one.test} {one.entity}" for one in results if one.outcome is Outcome.FAIL and one.configuration_only
        ),
        version=_first(places, ("version", "DCGM Version")),
        driver=_first(places, ("Driver Version Detected", "driver_version")),
        error=_first(places, ("runtime_error", "error")),
        not_understood=unread.done(),
    )


def _first(places: tuple[Mapping[str, Any], ...], keys: tuple[str, ...]) -> str | None:
    found = (place[key] for place in places for key in keys if isinstance(place.get(key), str))
    return next(found, None)


def _mappings(value: object, what: str, unread: UnreadList) -> Iterator[Mapping[str, Any]]:
    for item in value if isinstance(value, list) else ():
        if isinstance(item, Mapping):
            yield item
        else:
            unread.add(0, described(item), f"a {what} is not an object")


def _results(root: Mapping[str, Any], unread: UnreadList) -> Iterator[DiagResult]:
    for category in _mappings(root.get("test_categories"), "category", unread):
        for test in _mappings(category.get("tests"), "test", unread):
            results = list(_mappings(test.get("results"), "result", unread))
            summary = test.get("test_summary")
            if not results and isinstance(summary, Mapping):
                results = [summary]
            for result in results:
                yield _result(described(category.get("category", "")), described(test.get("name", "")), result, unread)


def _result(category: str, test: str, result: Mapping[str, Any], unread: UnreadList) -> DiagResult:
    status = described(result.get("status", ""))
    outcome = _outcome(status)
    if outcome is Outcome.UNKNOWN:
        unread.add(0, f"{category} / {test}: {status!r}", "a status that DCGM is not known to give")
    return DiagResult(
        category=category,
        test=test,
        entity=_entity(result),
        outcome=outcome,
        warnings=tuple(_warnings(result.get("warnings"))),
        info=tuple(_texts(result.get("info"))),
    )


def _entity(result: Mapping[str, Any]) -> str:
    """``GPU 0`` of ``gpu_id``, ``gpu_ids`` or ``entity_id``, as a number, text or list."""
    kind = described(result.get("entity_group", "GPU"))
    for key in ("entity_id", "gpu_id", "gpu_ids"):
        if key in result:
            value = result[key]
            ids = value if isinstance(value, list) else described(value).split(",")
            return f"{kind} {','.join(described(one).strip() for one in ids)}"
    return "all"


def _outcome(text: str) -> Outcome:
    word = " ".join(text.lower().replace("_", " ").split())
    word = {"warning": "warn", "skipped": "skip", "notrun": "not run", "passed": "pass", "failed": "fail"}.get(
        word, word
    )
    return Outcome(word) if word in {one.value for one in Outcome} else Outcome.UNKNOWN


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value] if value else []
    return [described(one) for one in value if isinstance(one, (str, int))] if isinstance(value, list) else []


def _warnings(value: object) -> Iterator[DiagWarning]:
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, Mapping):
            yield DiagWarning(
                text=described(one.get("warning", one.get("message", ""))),
                error_id=whole(one.get("error_id")),
                category=whole(one.get("error_category")),
                severity=whole(one.get("error_severity")),
            )
        elif isinstance(one, str) and one:
            yield DiagWarning(text=one)


def _read_text(text: str) -> Diag:
    unread = UnreadList()
    facts: dict[str, str] = {}
    results: list[DiagResult] = []
    section = ""
    for line, left, right, heading in _rows(text):
        if heading:
            section = heading
        elif section == "Metadata":
            facts[left] = right
        elif not _take(results, section, left, right):
            unread.add(line, f"{left} | {right}", "a row that is no result, warning or entity")
    return Diag(
        results=tuple(results),
        version=next((facts[key] for key in facts if "DCGM Version" in key), None),
        driver=next((facts[key] for key in facts if "Driver Version" in key), None),
        not_understood=unread.done(),
    )


def _take(results: list[DiagResult], section: str, left: str, right: str) -> bool:
    """Add what a row says; False where it says nothing known."""
    if left in _DETAIL:
        if not results:
            return False
        results[-1] = _with(results[-1], left, right)
        return True
    entity = _ENTITY.match(right)
    if not left and entity and results:
        results.append(_text_result(section, results[-1].test, f"{entity[1]} {entity[2]}", entity[3]))
        return True
    result = _RESULT.match(right)
    if not left or result is None:
        return False
    results.append(_text_result(section, left, "all", result[1]))
    where = result[2] or ""
    if where and where.lower() != "all":
        results[-1] = _replaced(results[-1], entity=where)
    return True


def _text_result(section: str, test: str, entity: str, status: str) -> DiagResult:
    return DiagResult(category=section, test=test, entity=entity, outcome=_outcome(status))


def _with(result: DiagResult, kind: str, text: str) -> DiagResult:
    if kind == "Info":
        return _replaced(result, info=(*result.info, text))
    return _replaced(result, warnings=(*result.warnings, DiagWarning(text=text)))


def _replaced(result: DiagResult, **changes: Any) -> DiagResult:
    values = {name: getattr(result, name) for name in ("category", "test", "entity", "outcome", "warnings", "info")}
    return DiagResult(**{**values, **changes})


def _rows(text: str) -> Iterator[tuple[int, str, str, str]]:
    """(line, left, right, section heading). A row whose left cell is empty continues the one before it.

    The table is cut at a fixed width, in the middle of words: a cell that is full goes on without a space.
    """
    held: tuple[int, str, str, str] | None = None
    full = False
    for line, raw in enumerate(text.splitlines(), start=1):
        if heading := _SECTION.match(raw.strip()):
            if held:
                yield held
            held, full = (line, "", "", heading[1].strip()), False
            continue
        cells = raw.strip().strip("|").split("|")
        if len(cells) != 2 or set(raw.strip()) <= set("+-=|") or cells[0].strip() == "Diagnostic":
            continue
        left, right = cells[0].strip(), cells[1]
        continues = not left and held and not held[3] and not _ENTITY.match(right.strip())
        if continues and held:
            held = (held[0], held[1], held[2] + ("" if full else " ") + right.strip(), "")
        else:
            if held:
                yield held
            held = (line, left, shown(right), "")
        full = not right[-2:].isspace() and right[:1].isspace()
    if held:
        yield held
