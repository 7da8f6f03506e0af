"""``SimpleToolTransform`` and ``ExecuteToolsInOrder``: the calls that a policy writes go to Python functions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import LifoQueue
from typing import Any

from rl_core.errors import SpecError
from rl_llm.data.tokenizer_protocol import Tokenizer
from rl_llm.tools.function_tools import FunctionTool, ToolRegistry, ToolResult
from rl_llm.tools.tool_calls import CallStyle, ToolCall, parse_tool_calls
from rl_llm.tools.transforms.tool_copies import copied_registry
from rl_llm.tools.transforms.tool_turns import ToolAnswer, ToolTurns, WhenSpent

__all__ = ["CallParser", "ExecuteToolsInOrder", "SimpleToolTransform"]

CallParser = Callable[[str], Sequence[ToolCall]]
Tools = ToolRegistry | Mapping[str, Callable[..., Any]] | Iterable[FunctionTool | Callable[..., Any]]


class SimpleToolTransform(ToolTurns[ToolCall]):
    r"""Makes the tool calls in the policy's message, in order, one tool turn each.

    The turn is::

        Tool add executed successfully:
        3

    or ``Tool add failed:`` with the reason: malformed text, no such tool, wrong arguments, an exception, no result in
    time. Arguments are checked against the function's annotations before it is called, and a function runs in a process
    of its own, which is ended when it takes too long; see :class:`~rl_llm.FunctionTool`. Rows are served side by side,
    by up to ``workers`` processes of each function, so that a function shares no memory with its other calls. Functions
    run with this user's rights: only their arguments come from the model.

    Let the template show the tools: ``ChatEnv(..., template_kwargs={"tools": transform.schemas})``, with a template
    that knows them (the built-in one does not).

    Args:
        tools: functions by name, a ToolRegistry, or functions and FunctionTools.
        tool_schemas: by name, instead of a function's own in ``schemas``; arguments are still checked by annotations.
        parser: how calls are read: "qwen", "xml" or "json" (see :func:`~rl_llm.parse_tool_calls`), or a function from a
            message to ToolCalls. None: "qwen" or "xml", by the mark that comes first.
        tool_call_pattern: a regular expression instead, with two groups: the name, and the arguments as JSON.
        tool_name: the role of the turns.
        timeout: seconds of a call; functions that come as FunctionTools, or in a registry, have their own.
        tokenizer: whose special tokens are broken up in results; the environment's own are in any case.
        max_calls: calls of one episode; None: any number.
        when_spent: "tell" the policy that its calls are used up, or "truncate" the episode.
        max_calls_per_turn: calls of one message.
        most_chars: what is shown of a result; FunctionTools have their own.
        workers: how many rows are served at a time.
        trusted: call plain functions in this process, without a timeout; also for lambdas and what a notebook defines.

    Raises:
        SpecError: an option is not admitted, or a function cannot be a tool.

    Example:
        >>> def add(a: int, b: int) -> int:
        ...     return a + b
        >>> tools = SimpleToolTransform({"add": add}, trusted=True)
        >>> [call] = tools.read_calls('<tool>add\n{"a": 1, "b": 2}</tool>')
        >>> tools.make_calls({0: [call]})[0][0].text
        'Tool add executed successfully:\n3'
    """

    noun = "tool call"

    def __init__(
        self,
        tools: Tools,
        tool_schemas: Mapping[str, Mapping[str, Any]] | None = None,
        parser: CallStyle | CallParser | None = None,
        tool_call_pattern: str | None = None,
        tool_name: str = "tool",
        timeout: float = 10.0,
        *,
        tokenizer: Tokenizer | None = None,
        max_calls: int | None = None,
        when_spent: WhenSpent = "tell",
        max_calls_per_turn: int = 16,
        most_chars: int = 8192,
        workers: int = 4,
        trusted: bool = False,
    ) -> None:
        super().__init__(
            tokenizer=tokenizer,
            tool_name=tool_name,
            max_calls=max_calls,
            when_spent=when_spent,
            max_calls_per_turn=max_calls_per_turn,
        )
        if workers < 1:
            raise SpecError(f"workers={workers}; it is at least 1")
        self.registry = _registry(tools, timeout, most_chars, trusted)
        self.parser, self.pattern = parser, _checked_pattern(tool_call_pattern, parser)
        self.schemas = _schemas(self.registry, tool_schemas or {})
        """For a template's ``tools``."""
        self.workers = workers
        self._lanes = self._new_lanes()

    # ---------------------------------------------------------------- reading
    def read_calls(self, text: str) -> list[ToolCall]:
        """The calls in a message; what looks like one and is none has an ``error``."""
        if self.pattern is not None:
            return [_matched(match) for match in self.pattern.finditer(text)]
        if callable(self.parser):
            return [_checked_call(call) for call in self.parser(text)]
        return parse_tool_calls(text, self.parser or _style_of(text))

    # ---------------------------------------------------------------- running
    def make_calls(self, calls: Mapping[int, Sequence[ToolCall]]) -> dict[int, list[ToolAnswer]]:
        """Make all rows' calls."""
        with ThreadPoolExecutor(min(self.workers, len(calls) or 1), "tools") as pool:
            return dict(zip(calls, pool.map(self._in_lane, calls.values()), strict=True))

    def _in_lane(self, calls: Sequence[ToolCall]) -> list[ToolAnswer]:
        """One row's calls, by one set of processes. The last one given back is taken first: few are ever started."""
        lane = self._lanes.get()
        try:
            return self.run_calls(lane, calls)
        finally:
            self._lanes.put(lane)

    def run_calls(self, registry: ToolRegistry, calls: Sequence[ToolCall]) -> list[ToolAnswer]:
        """One row's calls, in order."""
        return [_answer(call, registry.run(call)) for call in calls]

    def close(self) -> None:
        """End the functions' processes."""
        super().close()
        for lane in list(self._lanes.queue):
            lane.close()

    # ---------------------------------------------------------------- copies
    def _new_lanes(self) -> LifoQueue[ToolRegistry]:
        lanes: LifoQueue[ToolRegistry] = LifoQueue()
        for _ in range(self.workers - 1):
            lanes.put(copied_registry(self.registry))
        lanes.put(self.registry)
        return lanes

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "registry": copied_registry(self.registry), "_lanes": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._lanes = self._new_lanes()

    def __repr__(self) -> str:
        names = ", ".join(tool.name for tool in self.registry)
        return f"{type(self).__name__}({names}; max_calls={self.max_calls})"


class ExecuteToolsInOrder(SimpleToolTransform):
    r"""Makes the calls of a message in order, and answers all of them with one turn, a line of JSON for each.

    Two calls give for example::

        {"_tool": "add", "_index": 0, "_tag": "first", "result": "3"}
        {"_tool": "sub", "_index": 1, "error": "missing argument 'b'"}

    Args:
        registry: the tools.
        parser: as in :class:`SimpleToolTransform`.
        stop_on_error: after a call that failed the others are not made; their lines say so.
        tool_name: the role of the turn.
        tokenizer: whose special tokens are broken up in results; the environment's own are in any case.
        max_calls: calls of one episode; None: any number.
        when_spent: "tell" the policy that its calls are used up, or "truncate" the episode.
        max_calls_per_turn: calls of one message.
        workers: how many rows are served at a time.

    Example:
        >>> def add(a: int, b: int) -> int:
        ...     return a + b
        >>> tools = ExecuteToolsInOrder(ToolRegistry([FunctionTool(add, trusted=True)]), "qwen")
        >>> calls = tools.read_calls('<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>')
        >>> tools.make_calls({0: calls})[0][0].text
        '{"_tool": "add", "_index": 0, "result": "3"}'
    """

    def __init__(
        self,
        registry: ToolRegistry,
        parser: CallStyle | CallParser | None = None,
        stop_on_error: bool = False,
        tool_name: str = "tool",
        *,
        tokenizer: Tokenizer | None = None,
        max_calls: int | None = None,
        when_spent: WhenSpent = "tell",
        max_calls_per_turn: int = 16,
        workers: int = 4,
    ) -> None:
        super().__init__(
            registry,
            parser=parser,
            tool_name=tool_name,
            tokenizer=tokenizer,
            max_calls=max_calls,
            when_spent=when_spent,
            max_calls_per_turn=max_calls_per_turn,
            workers=workers,
        )
        self.stop_on_error = stop_on_error

    def run_calls(self, registry: ToolRegistry, calls: Sequence[ToolCall]) -> list[ToolAnswer]:
        """One row's calls, in order, in one answer."""
        lines: list[str] = []
        outcomes: list[str] = []
        for index, call in enumerate(calls):
            if self.stop_on_error and "error" in outcomes:
                result = ToolResult(ok=False, text="", error="not run: an earlier call failed", tag=call.tag)
                outcomes.append("refused")
            else:
                result = registry.run(call)
                outcomes.append("ok" if result.ok else "error")
            lines.append(_line(index, call, result))
        return [ToolAnswer(text="\n".join(lines), outcomes=outcomes)]


def _registry(tools: Tools, timeout: float, most_chars: int, trusted: bool) -> ToolRegistry:
    if isinstance(tools, ToolRegistry):
        return tools

    def tool(function: FunctionTool | Callable[..., Any], name: str | None = None) -> FunctionTool:
        if isinstance(function, FunctionTool):
            return function
        return FunctionTool(function, name=name, timeout_s=timeout, most_chars=most_chars, trusted=trusted)

    if isinstance(tools, Mapping):
        return ToolRegistry([tool(function, name) for name, function in tools.items()])
    return ToolRegistry([tool(function) for function in tools])


def _schemas(registry: ToolRegistry, given: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    names = [tool.name for tool in registry]
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise SpecError(f"tool_schemas describes {', '.join(map(repr, unknown))}; the tools are {', '.join(names)}")
    return [dict(given.get(tool.name, tool.schema)) for tool in registry]


def _checked_pattern(pattern: str | None, parser: object) -> re.Pattern[str] | None:
    if pattern is None:
        if parser is not None and not callable(parser):
            parse_tool_calls("", parser)  # type: ignore[arg-type]  # an unknown style is refused here
        return None
    if parser is not None:
        raise SpecError("give a parser or a tool_call_pattern, not both")
    try:
        compiled = re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise SpecError(f"tool_call_pattern={pattern!r} is no regular expression: {error}") from error
    if compiled.groups != 2:
        raise SpecError(
            f"tool_call_pattern has two groups, the tool's name and its arguments as JSON; {pattern!r} has "
            f"{compiled.groups}"
        )
    return compiled


def _checked_call(call: object) -> ToolCall:
    if not isinstance(call, ToolCall):
        raise SpecError(f"a parser gives ToolCall objects, ToolCall(name=..., arguments={{...}}); got {call!r}")
    return call


def _style_of(text: str) -> CallStyle:
    qwen, xml = text.find("<tool_call>"), re.search(r"<tool[\s>]", text)
    return "xml" if xml is not None and not 0 <= qwen < xml.start() else "qwen"


def _matched(match: re.Match[str]) -> ToolCall:
    value = {"name": (match[1] or "").strip(), "arguments": (match[2] or "").strip() or "{}"}
    [call] = parse_tool_calls(json.dumps([value]), "json")
    return call


def _answer(call: ToolCall, result: ToolResult) -> ToolAnswer:
    name = f"Tool {call.name[:80]}" if call.name else "Tool call"
    tag = f" ({call.tag[:80]})" if call.tag else ""
    if result.ok:
        return ToolAnswer(text=f"{name}{tag} executed successfully:\n{result.text}", outcomes=["ok"])
    return ToolAnswer(text=f"{name}{tag} failed:\n{result.error}", outcomes=["error"])


def _line(index: int, call: ToolCall, result: ToolResult) -> str:
    told = {"result": result.text} if result.ok else {"error": result.error}
    tag = {"_tag": call.tag[:80]} if call.tag else {}
    return json.dumps({"_tool": call.name[:80], "_index": index, **tag, **told}, ensure_ascii=False)
