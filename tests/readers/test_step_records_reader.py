"""Step records: what is read, what is refused, and what is counted instead of guessed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrows.reducers.readers.common import UnreadableError
from narrows.reducers.readers.step_records import StepRecords, looks_like, read_step_records

LINE = {"step": 3, "step_ms": 81.5, "data_ms": 1.5, "compute_ms": 70.0, "comm_ms": 6.0, "wait_ms": 0.5}


def read(*lines: dict[str, Any] | str) -> StepRecords:
    return read_step_records("\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines).encode(), "f")


def test_every_field_of_a_record_is_read() -> None:
    found = read(LINE | {"ts": 1790000000.25, "rank": 5, "world_size": 16, "node_rank": 1})
    (step,) = found.steps
    assert (step.step, step.step_ms, step.data_ms, step.compute_ms) == (3, 81.5, 1.5, 70.0)
    assert (step.comm_ms, step.wait_ms, step.unix_s) == (6.0, 0.5, 1790000000.25)
    assert (found.rank, found.world_size, found.host) == (5, 16, "node 1")


@pytest.mark.parametrize("name", ["host", "hostname"])
def test_a_host_by_name_goes_before_its_number(name: str) -> None:
    assert read(LINE | {name: "gpu17", "node_rank": 1}).host == "gpu17"


def test_step_and_its_time_are_enough_and_unknown_fields_are_let_be() -> None:
    found = read({"step": 0, "step_ms": 80, "loss": 6.5}, {"step": 1, "step_ms": 90})
    assert (found.parts, found.rank, found.host, found.median_step_ms) == ((), None, None, 85.0)


def test_a_part_counts_only_where_every_record_has_it() -> None:
    assert read(LINE, {"step": 4, "step_ms": 80.0, "data_ms": 1.0}).parts == ("data_ms",)


def test_records_are_put_in_the_order_of_their_steps() -> None:
    assert [one.step for one in read(LINE | {"step": 9}, LINE | {"step": 2}).steps] == [2, 9]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "truncated"),
        ("[1]", "Expected `object`"),
        ({"step": 4}, "step_ms"),
        ({"step": "4", "step_ms": 80}, "Expected `int`"),
        ({"step": -1, "step_ms": 80}, "below 0"),
        ({"step": 4, "step_ms": 0}, "not above 0"),
        ({"step": 4, "step_ms": 80, "comm_ms": -2}, "comm_ms -2 is below 0"),
        (LINE, "step 3 is there already"),
        ({"step": 10**30, "step_ms": 80}, "2^53"),
    ],
)
def test_what_cannot_be_a_record_is_counted_with_its_line_and_reason(line: dict[str, Any] | str, why: str) -> None:
    found = read(LINE, line)
    assert len(found.steps) == 1
    assert found.not_understood.count == 1
    assert found.not_understood.first[0].line == 2
    assert why in found.not_understood.first[0].why


def test_a_file_without_a_record_is_refused_by_name() -> None:
    with pytest.raises(UnreadableError, match="f: holds no step record"):
        read("hello")


def test_a_file_of_several_ranks_is_refused() -> None:
    with pytest.raises(UnreadableError, match=r"several ranks \(0, 1\)"):
        read(LINE | {"rank": 0}, LINE | {"step": 4, "rank": 1})


@given(st.lists(st.one_of(st.text(), st.binary().map(lambda data: data.decode("latin-1")))), st.integers(0, 200))
def test_no_damage_gives_a_traceback(noise: list[str], cut: int) -> None:
    data = "\n".join([*noise, json.dumps(LINE)]).encode("utf-8", "surrogatepass")[cut:]
    try:
        found = read_step_records(data, "f")
    except UnreadableError:
        return
    assert all(one.step_ms > 0 for one in found.steps)


def test_other_json_lines_are_not_taken_for_step_records() -> None:
    assert looks_like(json.dumps(LINE))
    for text in ('{"step": 1}', '{"step": 1, "loss": 2.0}', '{"schema": 1, "kind": "steps"}', "", "step 1 step_ms 80"):
        assert not looks_like(text)
