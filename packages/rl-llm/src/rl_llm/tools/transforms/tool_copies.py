"""Copies of function tools: the same function and limits, with a process of their own."""

from __future__ import annotations

from rl_llm.tools.function_tools import FunctionTool, ToolRegistry
from rl_llm.tools.worker import Worker

__all__ = ["ToolCopy", "copied_registry"]


class ToolCopy(FunctionTool):
    """Another FunctionTool's function under the same name, schema and limits.

    It can be copied and pickled, and starts a process of its own at its first call. A trusted function is shared.

    Args:
        tool: what it is a copy of.
    """

    def __init__(self, tool: FunctionTool) -> None:
        self.schema, self.name = tool.schema, tool.name
        self.timeout_s, self.most_chars = tool.timeout_s, tool.most_chars
        self._function = tool._function
        worker = tool._worker
        self._worker = None if worker is None else Worker(worker._function, worker._most_calls)

    def __getstate__(self) -> dict[str, object]:
        worker = self._worker
        parts = None if worker is None else (worker._function, worker._most_calls)
        return {**self.__dict__, "_worker": parts}

    def __setstate__(self, state: dict[str, object]) -> None:
        parts = state.pop("_worker")
        self.__dict__.update(state)
        self._worker = Worker(*parts) if isinstance(parts, tuple) else None


def copied_registry(registry: ToolRegistry) -> ToolRegistry:
    """The same tools with processes of their own."""
    return ToolRegistry([ToolCopy(tool) for tool in registry])
