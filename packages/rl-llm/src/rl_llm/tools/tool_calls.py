"""Reading the tool calls that a model wrote, in the formats that models are taught."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from rl_core.errors import SpecError

__all__ = ["CallStyle", "ToolCall", "parse_tool_calls"]

CallStyle = Literal["qwen", "xml", "json"]

_STYLES = ("qwen", "xml", "json")
_QWEN_OPENING = re.compile(r"<tool_call>")
_XML_OPENING = re.compile(r"<tool((?:\s+[a-z]+=\"[^\"<>]*\")*)\s*>")
_ATTRIBUTE = re.compile(r"\s+([a-z]+)=\"([^\"<>]*)\"")
_MOST_CHARS, _MOST_CALLS = 1_000_000, 128  # what is beyond is no message of a model


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """One call in a message; a malformed one has an ``error`` and is not to be executed."""

    name: str
    """The tool; empty where the message does not say it."""
    arguments: dict[str, Any]
    """Arguments by name; empty in a malformed call."""
    tag: str | None = None
    """What the model called this call, to be repeated with its result."""
    error: str | None = None
    """What is wrong with the text, in words for the model."""
    raw: str = ""
    """The text of the call."""


def parse_tool_calls(text: str, style: CallStyle = "qwen") -> list[ToolCall]:
    r"""The calls in a message, in order.

    ::

        "qwen"   <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>
        "xml"    <tool name="add" tag="first">{"a": 1}</tool>     or    <tool>add\n{"a": 1}</tool>
        "json"   the whole message: {"message": "...", "tools": [{"tool": "add", "args": {"a": 1}, "tag": "first"}]},
                 one {"name": "add", "arguments": {"a": 1}}, or a list of such

    Bad text never raises: what looks like a call and is none gives a ``ToolCall`` with an ``error``. In style "json" a
    message that is no JSON has no calls.

    Args:
        text: the assistant's message.
        style: the format.

    Raises:
        SpecError: there is no such style.

    Example:
        >>> [call] = parse_tool_calls('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
        >>> call.name, call.arguments
        ('add', {'a': 1})
        >>> parse_tool_calls('<tool_call>{"name": </tool_call>')[0].error
        'the call is not valid JSON: Expecting value at character 8'
    """
    if style not in _STYLES:
        raise SpecError(f"style is one of {', '.join(_STYLES)}; got {style!r}")
    if len(text) > _MOST_CHARS:
        return [ToolCall(name="", arguments={}, error=f"the message has more than {_MOST_CHARS} characters")]
    if style == "json":
        return _whole_message(text)
    return _marked(text, _QWEN_OPENING, "</tool_call>") if style == "qwen" else _marked(text, _XML_OPENING, "</tool>")


def _marked(text: str, opening: re.Pattern[str], closing: str) -> list[ToolCall]:
    calls: list[ToolCall] = []
    found = opening.search(text)
    while found:
        if len(calls) == _MOST_CALLS:
            return [*calls, ToolCall(name="", arguments={}, error=f"there are more than {_MOST_CALLS} calls")]
        end = _end_of_body(text, found.end(), closing)
        stop = len(text) if end is None else end + len(closing)
        raw = text[found.start() : stop]
        if end is None:
            calls.append(ToolCall(name="", arguments={}, error=f"the call is not closed by {closing}", raw=raw))
        elif opening is _QWEN_OPENING:
            calls.append(_qwen(text[found.end() : end], raw))
        else:
            calls.append(_xml(found[1], text[found.end() : end], raw))
        found = opening.search(text, stop)
    return calls


def _end_of_body(text: str, start: int, closing: str) -> int | None:
    """Where the closing mark stands: behind a whole JSON value if there is one, which may quote the mark itself."""
    brace = text.find("{", start)
    first = text.find(closing, start)
    if brace != -1 and first > brace:
        try:
            _, end = _decoder().raw_decode(text, brace)
        except (ValueError, RecursionError):
            return first
        after = end + len(text[end:]) - len(text[end:].lstrip())
        if text.startswith(closing, after):
            return after
    return None if first == -1 else first


def _qwen(body: str, raw: str) -> ToolCall:
    value, error = _json(body)
    if error:
        return ToolCall(name="", arguments={}, error=error, raw=raw)
    return _from_value(value, raw)


def _xml(attributes: str, body: str, raw: str) -> ToolCall:
    given = dict(_ATTRIBUTE.findall(attributes))
    name, tag = given.get("name", ""), given.get("tag")
    if not name:
        name, _, body = body.strip().partition("\n")
        name = name.strip()
    if not name or re.search(r"[\s{}<>\"]", name):
        error = 'the call names no tool: write <tool name="NAME">{...}</tool>'
        return ToolCall(name="", arguments={}, tag=tag, error=error, raw=raw)
    value, problem = _json(body) if body.strip() else ({}, None)
    if problem is None and not isinstance(value, dict):
        problem = f"the arguments are a JSON object; got {_kind(value)}"
    if problem is not None:
        return ToolCall(name=name, arguments={}, tag=tag, error=problem, raw=raw)
    return ToolCall(name=name, arguments=value, tag=tag, raw=raw)


def _whole_message(text: str) -> list[ToolCall]:
    value, error = _json(text)
    if error:
        return []
    if isinstance(value, dict) and "tools" in value:
        value = value["tools"]
        if not isinstance(value, list):
            return [ToolCall(name="", arguments={}, error=f'"tools" is a list; got {_kind(value)}', raw=text)]
    elif not isinstance(value, list) and not (isinstance(value, dict) and {"name", "tool"} & value.keys()):
        return []  # JSON, but no call
    entries = value if isinstance(value, list) else [value]
    calls = [_from_value(entry, json.dumps(entry)) for entry in entries[:_MOST_CALLS]]
    if len(entries) > _MOST_CALLS:
        calls.append(ToolCall(name="", arguments={}, error=f"there are more than {_MOST_CALLS} calls"))
    return calls


def _from_value(value: Any, raw: str) -> ToolCall:
    """A call from ``{"name" or "tool", "arguments" or "args", "tag" or "id"}``."""
    if not isinstance(value, dict):
        return ToolCall(name="", arguments={}, error=f"a call is a JSON object; got {_kind(value)}", raw=raw)
    name = value.get("name", value.get("tool"))
    arguments = value.get("arguments", value.get("args", {}))
    tag = value.get("tag", value.get("id"))
    tag = tag if tag is None or isinstance(tag, str) else str(tag)
    if not isinstance(name, str) or not name:
        return ToolCall(name="", arguments={}, tag=tag, error='the call has no "name" of a tool', raw=raw)
    if isinstance(arguments, str):  # some models write the object as a text
        arguments, error = _json(arguments)
        if error:
            return ToolCall(name=name, arguments={}, tag=tag, error=error, raw=raw)
    if not isinstance(arguments, dict):
        error = f'"arguments" is a JSON object; got {_kind(arguments)}'
        return ToolCall(name=name, arguments={}, tag=tag, error=error, raw=raw)
    return ToolCall(name=name, arguments=arguments, tag=tag, raw=raw)


def _json(text: str) -> tuple[Any, str | None]:
    try:
        return _decoder().decode(text.strip()), None
    except json.JSONDecodeError as error:
        return None, f"the call is not valid JSON: {error.msg} at character {error.pos}"
    except (ValueError, RecursionError) as error:
        return None, f"the call is not valid JSON: {error}"


def _decoder() -> json.JSONDecoder:
    return json.JSONDecoder(parse_constant=_no_constant)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
