"""Workload configurations: the table is the definition, and every mistake is named with what was expected."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrows.experiments.workload import (
    CollectiveConfig,
    StepConfig,
    collective_config,
    count_work,
    layer_ns,
    step_config,
)
from narrows.inquiry.workloads import BUILTIN, KnobKind, builtin_name, check_workload, defaults

lengths_lists = st.lists(st.integers(1, 1000), min_size=1, max_size=20)


@pytest.mark.parametrize(("program", "config"), [("step", StepConfig), ("collective", CollectiveConfig)])
def test_the_table_and_the_configuration_have_the_same_keys(program: str, config: type[Any]) -> None:
    assert [field.name for field in fields(config)] == list(BUILTIN[program])


@pytest.mark.parametrize("program", sorted(BUILTIN))
def test_defaults_are_accepted_and_every_knob_says_what_it_means(program: str) -> None:
    assert check_workload(program, defaults(program)) == []
    assert all(knob.meaning and knob.expected for knob in BUILTIN[program].values())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layrs": 3}, "layrs = 3 is an unknown key: did you mean layers?"),
        ({"zzz": 3}, "zzz = 3 is an unknown key: expected one of layers, hidden"),
        ({"loader_ms": 5}, "loader_ms = 5 has the wrong unit: expected loader_us, a whole number of us"),
        ({"loader_us": "5ms"}, "loader_us = '5ms' has the wrong type: expected a whole number of us"),
        ({"layers": 2.5}, "layers = 2.5 has the wrong type: expected a whole number from 1 to 200"),
        ({"layers": True}, "layers = True has the wrong type"),
        ({"recompute": 1}, "recompute = 1 has the wrong type: expected true or false"),
        ({"padding": -0.1}, "padding = -0.1 is out of range: expected a number from 0 to 4"),
        ({"padding": float("nan")}, "padding = nan is out of range"),
        ({"packing": "first_fit"}, "packing = 'first_fit' is out of range: expected one of snake, greedy"),
        ({"slow_link": 400}, "slow_link = 400 has the wrong type: expected null or a mapping with mbit, delay_us"),
        ({"slow_link": {"delay_ms": 2}}, "slow_link.delay_ms = 2 has the wrong unit: expected slow_link.delay_us"),
        ({"slow_rank": {"factor": 0.5}}, "slow_rank.factor = 0.5 is out of range: expected a number from 1 to 100"),
        ({"slow_host": {"factor": 1.1}}, "slow_host = {'factor': 1.1} lacks host"),
        ({"hidden": 66}, "heads = 4 is out of range: expected a divisor of hidden = 66"),
        ({"max_doc_tokens": 9000}, "max_doc_tokens = 9000 is out of range: expected at most tokens_per_rank = 4096"),
    ],
)
def test_a_bad_value_is_refused_with_key_value_and_expectation(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as refusal:
        step_config(values)
    assert message in str(refusal.value)


def test_all_mistakes_are_reported_at_once() -> None:
    assert len(check_workload("step", {"layrs": 1, "padding": -1, "heads": "four"})) == 3


@pytest.mark.parametrize("sizes", [[], 4096, [1], ["4k"]])
def test_bad_sizes_are_refused(sizes: object) -> None:
    with pytest.raises(ValueError, match="sizes_bytes"):
        collective_config({"sizes_bytes": sizes})


def test_an_unknown_program_is_refused() -> None:
    with pytest.raises(ValueError, match="program = 'train' is no built-in workload: expected one of step, collective"):
        defaults("train")


@pytest.mark.parametrize(
    "program", ["step", "experiments/step.py", "narrows.experiments.step", "/x/experiments/step.py"]
)
def test_a_builtin_program_is_known_under_its_usual_names(program: str) -> None:
    assert builtin_name(program) == "step"


def test_a_script_of_the_user_is_no_builtin_program() -> None:
    assert builtin_name("train.py") is None


def test_null_turns_a_fault_off_and_a_partial_fault_gets_its_defaults() -> None:
    assert step_config({"slow_link": None}).slow_link is None
    link = step_config({"slow_link": {"mbit": 100}}).slow_link
    default = next(field for field in BUILTIN["step"]["slow_link"].fields if field.name == "delay_us").default
    assert link is not None
    assert (link.mbit, link.delay_us) == (100, default)


def test_faults_of_a_rank_and_of_its_host_multiply() -> None:
    config = step_config({"slow_rank": {"rank": 2, "factor": 2}, "slow_host": {"host": "n1", "factor": 1.5}})
    assert config.slowdown(0, "n0", 0) == 1
    assert config.slowdown(2, "n0", 0) == 2
    assert config.slowdown(3, "n1", 1) == 1.5
    assert config.slowdown(2, "n1", 0) == 3


def test_a_slow_device_keeps_its_host_whatever_rank_it_is_given() -> None:
    config = step_config({"slow_rank": {"rank": 1, "host": "n1", "factor": 2}})
    assert config.slowdown(3, "n1", 1) == config.slowdown(1, "n1", 1) == 2
    assert config.slowdown(1, "n0", 1) == config.slowdown(2, "n1", 0) == 1


def test_every_fault_knob_is_off_by_default() -> None:
    faults = [knob for program in BUILTIN.values() for knob in program.values() if knob.kind is KnobKind.RECORD]
    assert {knob.name for knob in faults} == {"slow_rank", "slow_host", "slow_link"}
    assert all(knob.default is None for knob in faults)


@given(lengths_lists)
def test_padding_adds_to_executed_work_and_leaves_useful_work_alone(lengths: list[int]) -> None:
    plain, padded = count_work(step_config({}), lengths), count_work(step_config({"padding": 0.5}), lengths)
    useful = ("valid_tokens", "samples", "sum_sq_len", "model_flops")
    assert [plain[key] for key in useful] == [padded[key] for key in useful]
    assert plain["padded_tokens"] == 0
    assert padded["padded_tokens"] >= plain["valid_tokens"] / 2
    assert padded["executed_flops"] > padded["model_flops"]
    assert "executed_flops" not in plain
    assert layer_ns(step_config({"padding": 0.5}), lengths) > layer_ns(step_config({}), lengths)


def test_model_flops_follow_the_published_formula() -> None:
    config = step_config({"layers": 2, "hidden": 8})
    parameters, tokens, squares = 12 * 2 * 8 * 8, 30, 10**2 + 20**2
    assert count_work(config, [10, 20])["model_flops"] == 6 * parameters * tokens + 12 * 2 * 8 * squares


def test_recomputation_is_executed_work_of_one_more_forward() -> None:
    work = count_work(step_config({"recompute": True}), [100, 50])
    assert work["executed_flops"] * 3 == work["model_flops"] * 4


@given(lengths_lists, st.integers(2, 5))
def test_a_layer_costs_its_tokens_and_its_squared_lengths(lengths: list[int], scale: int) -> None:
    linear = step_config({"quadratic_ns_per_token2": 0.0})
    quadratic = step_config({"linear_ns_per_token": 0.0})
    longer = [length * scale for length in lengths]
    assert layer_ns(linear, longer) == pytest.approx(scale * layer_ns(linear, lengths))
    assert layer_ns(quadratic, longer) == pytest.approx(scale**2 * layer_ns(quadratic, lengths))


def test_the_table_is_read_without_torch() -> None:
    code = "import sys, narrows.inquiry.workloads, narrows.experiments; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
