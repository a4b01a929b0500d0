"""One canonical form: what is equal has one digest, what differs has another."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrows.inquiry.codec import SCHEMA, canonical, check_schema, digest, plain

SCALARS = st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    SCALARS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Thing:
    name: str
    sizes: tuple[int, ...]
    colour: Colour
    place: PurePosixPath


def _reordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _reordered(item) for key, item in reversed(value.items())}
    return [_reordered(item) for item in value] if isinstance(value, list) else value


@given(VALUES)
def test_the_order_of_keys_does_not_matter(value: Any) -> None:
    assert canonical(value) == canonical(_reordered(value))


@given(VALUES)
def test_the_canonical_form_is_json_that_means_the_same(value: Any) -> None:
    assert json.loads(canonical(value)) == value
    assert canonical(json.loads(canonical(value))) == canonical(value)


@given(VALUES, VALUES)
def test_different_values_have_different_digests(first: Any, second: Any) -> None:
    assert (digest(first) == digest(second)) is (canonical(first) == canonical(second))
    assert first == second or digest(first) != digest(second)


@given(st.dictionaries(st.text(max_size=5), VALUES, min_size=1, max_size=4), st.data())
def test_any_change_of_one_entry_changes_the_digest(value: dict[str, Any], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(value)))
    changed = copy.deepcopy(value)
    changed[key] = [value[key]]
    shorter = {name: item for name, item in value.items() if name != key}
    assert len({digest(value), digest(changed), digest(shorter)}) == 3


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_cannot_hold_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical({"effect_ms": [1.0, number]})


def test_dataclasses_enums_paths_and_sets_become_plain_values() -> None:
    thing = Thing("a", (1, 2), Colour.RED, PurePosixPath("x/y"))
    assert plain(thing) == {"name": "a", "sizes": [1, 2], "colour": "red", "place": "x/y"}
    assert type(plain(thing)["colour"]) is str
    assert plain({3: frozenset({"b", "a"})}) == {"3": ["a", "b"]}


@pytest.mark.parametrize("found", [None, True, 0, -1, 1.0, "1"])
def test_a_schema_is_a_whole_number_of_at_least_one(found: object) -> None:
    with pytest.raises(ValueError, match=r"x\.json: schema is .* expected a whole number"):
        check_schema(found, "x.json")


def test_a_newer_schema_says_to_upgrade() -> None:
    check_schema(SCHEMA, "x.json")
    with pytest.raises(ValueError, match=f"schema {SCHEMA + 1} is newer than {SCHEMA}.*upgrade"):
        check_schema(SCHEMA + 1, "x.json")
