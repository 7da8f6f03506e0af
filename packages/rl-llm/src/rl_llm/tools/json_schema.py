"""JSON schemas of typed Python functions, and the checking of arguments against them."""

from __future__ import annotations

import inspect
import math
import re
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from rl_core.errors import SpecError

__all__ = ["argument_errors", "function_schema"]

_SCALARS: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_ENTRY = re.compile(r"(\w+)\s*(?:\([^)]*\))?:\s*(.*)")
_SECTION = re.compile(r"[A-Z][A-Za-z ]*:")


def function_schema(
    function: Callable[..., Any], *, name: str | None = None, description: str | None = None
) -> dict[str, Any]:
    '''The tool schema (OpenAI's and Qwen's form) of a function with annotations and a Google-style docstring.

    Annotations may be ``str``, ``int``, ``float``, ``bool``, ``list``, ``list[T]``, ``dict``, ``dict[str, T]``,
    ``Literal[...]``, ``T | None`` and unions of those. A parameter with a default is optional.

    Args:
        function: what the model may call.
        name: instead of the function's own.
        description: instead of the docstring's first paragraph.

    Returns:
        ``{"type": "function", "function": {"name", "description", "parameters"}}``.

    Raises:
        SpecError: a parameter without an annotation, or with one that JSON has no type for.

    Example:
        >>> def add(a: int, b: int = 1) -> int:
        ...     """Add two numbers.
        ...
        ...     Args:
        ...         a: the first.
        ...     """
        ...     return a + b
        >>> function_schema(add)["function"]["parameters"]["properties"]
        {'a': {'type': 'integer', 'description': 'the first.'}, 'b': {'type': 'integer', 'default': 1}}
    '''
    title = name or function.__name__
    summary, described = _docstring(inspect.getdoc(function) or "")
    hints = get_type_hints(function)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        where = f"parameter {parameter.name!r} of tool {title!r}"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise SpecError(f"{where} cannot be given by name: no *args, **kwargs or positional-only parameters")
        if parameter.name not in hints:
            raise SpecError(f"{where} has no annotation; write for example '{parameter.name}: str'")
        schema = _schema_of(hints[parameter.name], where)
        if parameter.name in described:
            schema["description"] = described[parameter.name]
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        else:
            schema["default"] = parameter.default
        properties[parameter.name] = schema
    parameters = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    body = {"name": title, "description": summary if description is None else description, "parameters": parameters}
    return {"type": "function", "function": body}


def argument_errors(parameters: Mapping[str, Any], arguments: object) -> list[str]:
    """What is wrong with arguments, in words for the model; empty where nothing is.

    An integer is accepted for a number, and nothing else is converted: ``"3"`` is no integer, ``True`` no number.

    Args:
        parameters: the ``parameters`` of a schema by ``function_schema``.
        arguments: what the model gave.

    Example:
        >>> schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        >>> argument_errors(schema, {"a": "3"})
        ["'a' must be an integer, got the text '3'"]
    """
    if not isinstance(arguments, dict):
        return [f"the arguments must be an object, got {_shown(arguments)}"]
    properties = parameters["properties"]
    errors = [f"missing argument {name!r}" for name in parameters["required"] if name not in arguments]
    for name, value in arguments.items():
        if name not in properties:
            known = ", ".join(properties) or "none"
            errors.append(f"unknown argument {str(name)[:80]!r}; there are: {known}")
        else:
            errors += _value_errors(properties[name], value, repr(name))
    return errors


def _schema_of(hint: Any, where: str) -> dict[str, Any]:
    origin, args = get_origin(hint), get_args(hint)
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    if hint is type(None):
        return {"type": "null"}
    if hint is list or origin is list:
        return {"type": "array", **({"items": _schema_of(args[0], where)} if args else {})}
    if hint is dict or origin is dict:
        if args and args[0] is not str:
            raise SpecError(f"{where} is a dict whose keys are {args[0]}; JSON has texts as keys only")
        return {"type": "object", **({"additionalProperties": _schema_of(args[1], where)} if args else {})}
    if origin is Literal and all(isinstance(value, str | int | bool) for value in args):
        return {"enum": list(args)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema_of(arg, where) for arg in args]}
    raise SpecError(
        f"{where} is annotated with {hint}, which has no JSON type; use str, int, float, bool, list[T], "
        "dict[str, T], Literal[...], or a union of them with None"
    )


def _value_errors(schema: Mapping[str, Any], value: Any, where: str) -> list[str]:
    if "anyOf" in schema:
        tried = [_value_errors(option, value, where) for option in schema["anyOf"]]
        if any(not errors for errors in tried):
            return []
        wanted = " or ".join(_described(option) for option in schema["anyOf"])
        return [f"{where} must be {wanted}, got {_shown(value)}"]
    if "enum" in schema:
        # True == 1 in Python, not in JSON
        fits = any(type(value) is type(option) and value == option for option in schema["enum"])
        return [] if fits else [f"{where} must be {_described(schema)}, got {_shown(value)}"]
    if not _is_a(schema["type"], value):
        return [f"{where} must be {_described(schema)}, got {_shown(value)}"]
    errors: list[str] = []
    if schema["type"] == "array" and "items" in schema:
        for i, entry in enumerate(value):
            errors += _value_errors(schema["items"], entry, f"{where}[{i}]")
    if schema["type"] == "object" and "additionalProperties" in schema:
        for key, entry in value.items():
            errors += _value_errors(schema["additionalProperties"], entry, f"{where}[{key[:80]!r}]")
    return errors[:5]


def _is_a(kind: str, value: Any) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "number":
        return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    types_of = {"string": str, "integer": int, "array": list, "object": dict, "null": type(None)}
    return kind in types_of and isinstance(value, types_of[kind])


def _described(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(repr(option) for option in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_described(option) for option in schema["anyOf"])
    names = {"string": "a text", "integer": "an integer", "array": "a list", "object": "an object", "null": "null"}
    return names.get(schema["type"], f"a {schema['type']}")


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f"the text {value[:60]!r}"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, int) and value.bit_length() > 256:
        return "a very long integer"
    return repr(value)[:60]


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """First paragraph, and the descriptions of the section "Args"."""
    lines = text.splitlines()
    summary = []
    for line in lines:
        if not line.strip():
            break
        summary.append(line.strip())
    described: dict[str, str] = {}
    inside, name = False, ""
    indent: int | None = None
    for line in lines:
        bare = line.strip()
        if _SECTION.fullmatch(bare) and not line.startswith(" "):
            inside = bare in ("Args:", "Arguments:", "Parameters:")
        elif inside and bare:
            depth = len(line) - len(line.lstrip())
            indent = depth if indent is None else indent
            entry = _ENTRY.fullmatch(bare) if depth == indent else None
            if entry:
                name = entry[1]
                described[name] = entry[2]
            elif name:
                described[name] += f" {bare}"
    return " ".join(summary), described
