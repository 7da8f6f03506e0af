"""Arithmetic that a model wrote: exact where it is arithmetic, refused where it is anything else."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_core.errors import RLError
from rl_llm.tools.arithmetic import ArithmeticTextError, evaluate_arithmetic, numbers_in_arithmetic


@st.composite
def expressions(draw, depth=4):
    """A text and the text that computes it with Python's own fractions."""
    kind = draw(st.sampled_from(["number", "number", "binary", "sign", "parentheses"])) if depth else "number"
    if kind == "number":
        number = draw(st.integers(0, 10**6))
        return str(number), f"Fraction({number})"
    if kind == "binary":
        (left, left_exact), (right, right_exact) = draw(expressions(depth - 1)), draw(expressions(depth - 1))
        operator = draw(st.sampled_from(["+", "-", "*", "/"]))
        space = draw(st.sampled_from(["", " ", "\t", "  "]))
        # No parentheses are added: precedence is part of what is compared.
        return f"{left}{space}{operator}{space}{right}", f"{left_exact}{operator}{right_exact}"
    text, exact = draw(expressions(depth - 1))
    if kind == "sign":
        sign = draw(st.sampled_from(["+", "-"]))
        return f"{sign}{text}", f"{sign}{exact}"
    return f"({text})", f"({exact})"


@given(expressions())
def test_the_value_is_that_of_pythons_fractions(case):
    text, exact = case
    if len(text) > 512:
        return
    try:
        expected = eval(exact, {"Fraction": Fraction})
    except ZeroDivisionError:
        with pytest.raises(ArithmeticTextError, match="division by zero"):
            evaluate_arithmetic(text)
    else:
        assert evaluate_arithmetic(text) == expected


@given(st.text(alphabet="0123456789+-*/(). \n", max_size=40))
def test_any_text_gives_a_fraction_or_our_error(text):
    for decimals in (False, True):
        try:
            assert isinstance(evaluate_arithmetic(text, decimals=decimals), Fraction)
        except ArithmeticTextError:
            continue


@given(st.text(max_size=40))
def test_any_text_at_all_gives_a_fraction_or_our_error(text):
    try:
        assert isinstance(evaluate_arithmetic(text), Fraction)
    except ArithmeticTextError as error:
        assert isinstance(error, RLError)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1/3 + 1/6", Fraction(1, 2)),
        ("2 + 3 * 4", 14),
        ("(2 + 3) * 4", 20),
        ("7 - 2 - 1", 4),
        ("8 / 4 / 2", 1),
        ("--3", 3),
        ("  12\n+\n1 ", 13),
        ("-(4)", -4),
    ],
)
def test_small_cases_by_hand(text, value):
    assert evaluate_arithmetic(text) == value


def test_decimals_are_exact_and_only_on_request():
    assert evaluate_arithmetic("0.1 + 0.2", decimals=True) == Fraction(3, 10)
    assert evaluate_arithmetic("1. * .5", decimals=True) == Fraction(1, 2)
    with pytest.raises(ArithmeticTextError, match=r"only digits, \+ - \* / and parentheses are permitted; got '\.'"):
        evaluate_arithmetic("1.5 * 2")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("9**9**9", r"got \*\*"),
        ("2 ** 2", r"got \*\*"),
        ("7 // 2", r"got //"),
        ("7 % 2", "got '%'"),
        ("x", "got 'x'"),
        ("(1).real", "got '.'"),
        ("__import__('os')", "got '_'"),
        ("abs(1)", "got 'a'"),
        ("1e9", "got 'e'"),
        ("0x10", "got 'x'"),
        ("1_000", "got '_'"),
        ("1j", "got 'j'"),
        ("1, 2", "got ','"),
        ("1 < 2", "got '<'"),
        ("[1]", r"got '\['"),
        ("1 = 1", "got '='"),
        ("٣ + 1", "got '٣'"),
        ("1(2)", "got Call"),
        ("()", "got Tuple"),
        ("", "not an arithmetic expression"),
        ("1 +", "not an arithmetic expression"),
        ("(1", "not an arithmetic expression"),
        ("007", "not an arithmetic expression"),
        ("1 2", "not an arithmetic expression"),
        ("1 / (2 - 2)", "division by zero"),
        ("9" * 33, "at most 32 digits"),
        ("1+" * 300 + "1", "at most 512 characters"),
        ("-" * 100 + "1", "at most 64 deep"),
        ("1" + "+1" * 100, "at most 64 deep"),
        ("(" * 250 + "1" + ")" * 250, "not an arithmetic expression"),
    ],
)
def test_everything_else_is_refused_with_a_reason(text, message):
    with pytest.raises(ArithmeticTextError, match=message):
        evaluate_arithmetic(text)
    with pytest.raises(ArithmeticTextError) if "zero" not in message else pytest.raises(AssertionError):
        numbers_in_arithmetic(text)
        raise AssertionError


def test_hostile_nesting_within_wide_limits_is_an_error_too():
    for text in ("(" * 100_000, "-" * 100_000 + "1", "(" * 50_000 + "1" + ")" * 50_000):
        with pytest.raises(ArithmeticTextError):
            evaluate_arithmetic(text, max_chars=10**6)


def test_numbers_are_listed_in_their_order():
    assert numbers_in_arithmetic("(25 - 3) * 3 / -25") == (25, 3, 3, 25)
    assert numbers_in_arithmetic("0.5 * 2", decimals=True) == (Fraction(1, 2), 2)
    assert evaluate_arithmetic("1.50", decimals=True) == Fraction(3, 2)
