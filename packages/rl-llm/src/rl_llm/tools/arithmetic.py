"""Arithmetic that a model wrote, computed exactly and without running anything."""

from __future__ import annotations

import ast
import re
from fractions import Fraction

from rl_core.errors import RLError

__all__ = ["ArithmeticTextError", "evaluate_arithmetic", "numbers_in_arithmetic"]

_NOT_ARITHMETIC = re.compile(r"[^0-9+\-*/(). \t\r\n]")
_NUMBER = re.compile(r"[0-9]+")
_DECIMAL = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+")


class ArithmeticTextError(RLError, ValueError):
    """A text that is no arithmetic of the permitted kind, or that has no value."""


def evaluate_arithmetic(
    text: str, *, decimals: bool = False, max_chars: int = 512, max_depth: int = 64, max_digits: int = 32
) -> Fraction:
    """The exact value of integers, ``+ - * /`` and parentheses.

    The text is parsed, never executed: names, calls, powers, ``//``, ``%``, exponents and every other syntax are
    refused. Since there is no power, a value has no more digits than the text has.

    Args:
        text: for example ``"(3 + 4) * 2 / 5"``.
        decimals: permit numbers such as ``1.5``; they are exact, too.
        max_chars: longest text.
        max_depth: deepest nesting of operations.
        max_digits: longest number.

    Returns:
        The value.

    Raises:
        ArithmeticTextError: anything else than such a text, and division by zero.

    Example:
        >>> evaluate_arithmetic("(3 + 4) * 2 / 5")
        Fraction(14, 5)
        >>> evaluate_arithmetic("9 ** 9 ** 9")
        Traceback (most recent call last):
            ...
        rl_llm.tools.arithmetic.ArithmeticTextError: only + - * / are permitted; got ** in '9 ** 9 ** 9'
    """
    source, tree = _parsed(text, decimals, max_chars, max_depth, max_digits)
    return _value(tree, source)


def numbers_in_arithmetic(
    text: str, *, decimals: bool = False, max_chars: int = 512, max_depth: int = 64, max_digits: int = 32
) -> tuple[Fraction, ...]:
    """The numbers that a text of arithmetic uses, from left to right, as often as they stand there.

    A sign is an operation: ``-3`` uses 3. Arguments and errors are those of ``evaluate_arithmetic``.

    Example:
        >>> numbers_in_arithmetic("(25 - 3) * 3") == (25, 3, 3)
        True
    """
    source, tree = _parsed(text, decimals, max_chars, max_depth, max_digits)
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return tuple(_number(node, source) for node in sorted(constants, key=lambda node: node.col_offset))


def _parsed(text: str, decimals: bool, max_chars: int, max_depth: int, max_digits: int) -> tuple[str, ast.expr]:
    if len(text) > max_chars:
        raise ArithmeticTextError(f"arithmetic has at most {max_chars} characters; got {len(text)}: {_short(text)}")
    odd = _NOT_ARITHMETIC.search(text)
    if odd or ("." in text and not decimals):
        found = odd[0] if odd else "."
        permitted = "digits, decimal points" if decimals else "digits"
        raise ArithmeticTextError(f"only {permitted}, + - * / and parentheses are permitted; got {found!r} in {text!r}")
    if any(len(number) > max_digits for number in _NUMBER.findall(text)):
        raise ArithmeticTextError(f"numbers have at most {max_digits} digits; got a longer one in {_short(text)}")
    source = " ".join(text.split())  # one line, so that a node's column is its place
    try:
        tree = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ArithmeticTextError(f"not an arithmetic expression: {_short(text)} ({error})") from error
    _check(tree, source, max_depth)
    return source, tree


def _check(tree: ast.expr, source: str, max_depth: int) -> None:
    """Refuse whatever is not on the list, without recursion."""
    waiting = [(tree, 1)]
    while waiting:
        node, depth = waiting.pop()
        if depth > max_depth:
            raise ArithmeticTextError(f"operations are nested at most {max_depth} deep; got more in {_short(source)}")
        if isinstance(node, ast.BinOp):
            if not isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
                name = {"Pow": "**", "FloorDiv": "//"}.get(type(node.op).__name__, type(node.op).__name__)
                raise ArithmeticTextError(f"only + - * / are permitted; got {name} in {_short(source)}")
            waiting += [(node.left, depth + 1), (node.right, depth + 1)]
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
            waiting.append((node.operand, depth + 1))
        elif not isinstance(node, ast.Constant) or not isinstance(node.value, int | float):
            raise ArithmeticTextError(f"only numbers are permitted; got {type(node).__name__} in {_short(source)}")


def _value(node: ast.expr, source: str) -> Fraction:
    if isinstance(node, ast.Constant):
        return _number(node, source)
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand, source)
        return -value if isinstance(node.op, ast.USub) else value
    assert isinstance(node, ast.BinOp)
    left, right = _value(node.left, source), _value(node.right, source)
    if isinstance(node.op, ast.Add):
        return left + right
    if isinstance(node.op, ast.Sub):
        return left - right
    if isinstance(node.op, ast.Mult):
        return left * right
    if right == 0:
        raise ArithmeticTextError(f"division by zero in {_short(source)}")
    return left / right


def _number(node: ast.Constant, source: str) -> Fraction:
    """From the text, not from the float that the parser made of it."""
    text = source[node.col_offset : node.end_col_offset]
    if not _DECIMAL.fullmatch(text):
        raise ArithmeticTextError(f"not a plain number: {text!r}")
    whole, _, part = text.partition(".")
    return Fraction(int((whole + part) or "0"), 10 ** len(part))


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
