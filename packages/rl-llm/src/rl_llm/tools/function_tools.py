"""Python functions as tools: a schema for the model, checked arguments, a timeout that holds, a bounded result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from rl_core.errors import SpecError, UnknownNameError
from rl_core.registry.errors_text import close_match
from rl_llm.tools.json_schema import argument_errors, function_schema
from rl_llm.tools.tool_calls import ToolCall
from rl_llm.tools.worker import FunctionReference, Worker, result_text

__all__ = ["FunctionTool", "ToolRegistry", "ToolResult"]


@dataclass(frozen=True, kw_only=True)
class ToolResult:
    """What a call gave. Its texts come from outside: ``neutralise`` them before they enter a chat."""

    ok: bool
    """Whether the function returned."""
    text: str
    """What it returned; empty in a failure."""
    error: str | None = None
    """What went wrong, in words for the model."""
    wall_s: float = 0.0
    """Seconds that the call took, from the caller's side."""
    tag: str | None = None
    """The call's own tag."""


class FunctionTool:
    '''A typed function that a model may call.

    The function runs in a process of its own, which is ended when a call takes too long (a thread could not be). That
    process imports the function's module and nothing else of this one; it is started at the first call, and kept.

    Args:
        function: stands at the top of a module; annotations and docstring make its schema, see ``function_schema``.
        name: instead of the function's name.
        description: instead of the first paragraph of its docstring.
        timeout_s: seconds for one call.
        most_chars: a longer result is cut, and says so.
        most_calls: calls of one process before another takes over: 1 for functions that must not remember.
        trusted: call it in this process, without a timeout; also for lambdas, methods and what a notebook defines.

    Raises:
        SpecError: parameters that JSON cannot give, or a function that another process cannot find.

    Example:
        >>> def add(a: int, b: int) -> int:
        ...     """Add two numbers."""
        ...     return a + b
        >>> tool = FunctionTool(add, trusted=True)
        >>> tool.run({"a": 1, "b": 2}).text
        '3'
        >>> tool.run({"a": 1}).error
        "missing argument 'b'"
    '''

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout_s: float = 10.0,
        most_chars: int = 8192,
        most_calls: int | None = None,
        trusted: bool = False,
    ) -> None:
        if timeout_s <= 0 or most_chars <= 0 or (most_calls is not None and most_calls <= 0):
            raise SpecError(
                f"timeout_s, most_chars and most_calls are positive; got {timeout_s!r}, {most_chars!r}, {most_calls!r}"
            )
        self.schema = function_schema(function, name=name, description=description)
        self.name: str = self.schema["function"]["name"]
        self.timeout_s = timeout_s
        self.most_chars = most_chars
        self._function = function
        self._worker = None if trusted else Worker(FunctionReference.to(function), most_calls)

    def run(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Call the function with arguments that a model gave.

        Args:
            arguments: by name. Wrong ones give a result with an error; nothing that they hold raises.

        Raises:
            WorkerError: the process cannot start, for example because the function's module cannot be imported.
        """
        start = time.monotonic()
        problems = argument_errors(self.schema["function"]["parameters"], arguments)
        if problems:
            return ToolResult(ok=False, text="", error="; ".join(problems[:5]), wall_s=time.monotonic() - start)
        if self._worker is None:
            ok, text = self._call_here(arguments)
        else:
            answer = self._worker.call(dict(arguments), self.timeout_s, self.most_chars)
            ok, text = answer.ok, answer.text
        text = self._cut(text)
        wall_s = time.monotonic() - start
        return ToolResult(ok=ok, text=text if ok else "", error=None if ok else text, wall_s=wall_s)

    def close(self) -> None:
        """End the process; a later call starts another."""
        if self._worker is not None:
            self._worker.close()

    def _call_here(self, arguments: Mapping[str, Any]) -> tuple[bool, str]:
        try:
            return True, result_text(self._function(**arguments))
        except Exception as error:
            return False, f"{type(error).__name__}: {error}"

    def _cut(self, text: str) -> str:
        if len(text) <= self.most_chars:
            return text
        return f"{text[: self.most_chars]}\n[cut after {self.most_chars} characters]"


class ToolRegistry:
    """The tools that an episode may use, by name; a context manager.

    Args:
        tools: tools, or functions (which get the defaults of ``FunctionTool``).

    Raises:
        SpecError: two tools of one name.

    Example:
        >>> def double(x: float) -> float:
        ...     return 2 * x
        >>> tools = ToolRegistry([FunctionTool(double, trusted=True)])
        >>> from rl_llm.tools.tool_calls import parse_tool_calls
        >>> [call] = parse_tool_calls('<tool_call>{"name": "double", "arguments": {"x": 4}}</tool_call>')
        >>> tools.run(call).text
        '8'
        >>> tools.run(ToolCall(name="dubble", arguments={})).error
        "there is no tool 'dubble'; there are: double"
    """

    def __init__(self, tools: Iterable[FunctionTool | Callable[..., Any]]) -> None:
        self._tools: dict[str, FunctionTool] = {}
        for entry in tools:
            tool = entry if isinstance(entry, FunctionTool) else FunctionTool(entry)
            if tool.name in self._tools:
                raise SpecError(f"two tools are named {tool.name!r}; give one another name=")
            self._tools[tool.name] = tool

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The tools' schemas, for a chat template's ``tools``."""
        return [tool.schema for tool in self._tools.values()]

    def run(self, call: ToolCall) -> ToolResult:
        """Run one call; a malformed one, and one of an unknown tool, give a result with an error."""
        if call.error is not None:
            return ToolResult(ok=False, text="", error=call.error, tag=call.tag)
        tool = self._tools.get(call.name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            error = f"there is no tool {call.name[:80]!r}; there are: {known}"
            return ToolResult(ok=False, text="", error=error, tag=call.tag)
        result = tool.run(call.arguments)
        return ToolResult(ok=result.ok, text=result.text, error=result.error, wall_s=result.wall_s, tag=call.tag)

    def run_all(self, calls: Sequence[ToolCall], *, workers: int = 8) -> list[ToolResult]:
        """Run many calls, those of different tools at the same time; the results keep the order."""
        with ThreadPoolExecutor(workers, "tools") as pool:
            return list(pool.map(self.run, calls))

    def close(self) -> None:
        """End the tools' processes."""
        for tool in self._tools.values():
            tool.close()

    def __getitem__(self, name: str) -> FunctionTool:
        if name not in self._tools:
            raise UnknownNameError(f"there is no tool {name!r}{close_match(name, list(self._tools))}")
        return self._tools[name]

    def __iter__(self) -> Iterator[FunctionTool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __enter__(self) -> ToolRegistry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
