"""How numbers are written: digits that mean something, never a sign on zero, never a number that is none."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrows.templates.numbers import Number, fixed, hours, number, real, share, significant

finite = st.floats(min_value=-1e6, max_value=1e6, allow_nan=False)


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (7.214, 6.81, 7.63, "+7.21 ms [+6.81, +7.63]"),
        (41.23, 41.0, 41.4, "+41.2 ms [+41.0, +41.4]"),
        (123.4, 120.2, 126.6, "+123 ms [+120, +127]"),
        (0.05, -0.07, 0.17, "+0.05 ms [-0.07, +0.17]"),
        (0.0123, 0.011, 0.0136, "+0.012 ms [+0.011, +0.014]"),
        (-0.001, -2.1, 2.2, "0.00 ms [-2.10, +2.20]"),
    ],
)
def test_value_and_interval_share_the_decimals_that_suit_them(value: float, low: float, high: float, text: str) -> None:
    assert Number(value=value, low=low, high=high, signed=True).text == text


def test_counts_carry_commas_and_no_unit() -> None:
    assert Number(value=1_910_000.0, unit="").text == "1,910,000"
    assert Number(value=1.372, unit="").text == "1.37"


@pytest.mark.parametrize("value", [None, math.nan, math.inf, "7", True, [1.0]])
def test_what_is_no_number_is_absent(value: object) -> None:
    assert real(value) is None
    assert number(value) is None


def test_an_interval_with_an_end_missing_is_left_out() -> None:
    assert number(1.0, interval=[0.5, math.inf]) == Number(value=1.0)
    assert number(1.0, interval=None) == Number(value=1.0)


def test_there_is_no_share_of_nothing() -> None:
    assert share(1.0, 0.0) is None


@given(finite, st.integers(min_value=0, max_value=3))
def test_zero_carries_no_sign_and_the_text_is_the_value_to_its_last_digit(value: float, decimals: int) -> None:
    text = fixed(value, decimals, signed=True)

    assert float(text) == pytest.approx(value, abs=0.51 * 10.0**-decimals)
    assert float(text) != 0 or text[0] not in "+-"


@given(finite)
def test_no_more_than_three_significant_digits_below_a_thousand(value: float) -> None:
    shown = fixed(abs(value), significant(value)).replace(".", "").lstrip("0")

    assert len(shown) <= 4 if abs(value) < 1000 else True
    assert significant(value) <= 3


def test_hours_keep_three_digits() -> None:
    assert hours(0.0123456) == "0.0123"
