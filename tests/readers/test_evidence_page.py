"""The page says every kind, every format and every field that the machine form can have."""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path

import pytest

from narrows.reducers.readers import flight_reading, nccl_pairs, reading
from narrows.reducers.readers.detect import Kind
from narrows.reducers.readers.log_formats import FORMATS

PAGE = (Path(__file__).parents[2] / "docs" / "evidence.md").read_text()
ROOTS = [*typing.get_args(reading.Value), flight_reading.FlightReading, nccl_pairs.PairReading]


def held(kind: type) -> list[type]:
    """``kind`` and every dataclass within its fields."""
    found, left = [], [kind]
    while left:
        one = left.pop()
        if dataclasses.is_dataclass(one) and one not in found:
            found.append(one)
            left += typing.get_type_hints(one).values()
        left += typing.get_args(one)
    return found


@pytest.mark.parametrize("kind", ROOTS, ids=lambda kind: kind.__name__)
def test_every_field_stands_in_the_page(kind):
    names = {field.name for one in held(kind) for field in dataclasses.fields(one)}
    words = set(PAGE.replace("`", " ").replace(",", " ").replace("{", " ").replace("}", " ").replace('"', " ").split())
    words |= {word.rstrip(":;.[]") for word in words}
    assert names - words == set()
    assert len(names) > 3


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.UNKNOWN])
def test_every_kind_has_its_row(kind):
    assert f"\n| `{kind.value}` |" in PAGE


@pytest.mark.parametrize("name", [one.name for one in FORMATS])
def test_every_format_of_a_log_stands_in_the_page(name):
    assert f"`{name}`" in PAGE
