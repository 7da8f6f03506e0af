"""``PythonInterpreter``: the Python that a policy writes is run in a sandbox, and it reads what was printed."""

from __future__ import annotations

import logging
import math
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal

from rl_core.errors import SpecError
from rl_llm.data.tokenizer_protocol import Tokenizer
from rl_llm.tools.code_blocks import python_blocks
from rl_llm.tools.sandbox.levels import Level
from rl_llm.tools.sandbox.limits import Limits
from rl_llm.tools.sandbox.result import Result
from rl_llm.tools.sandbox.sandbox import Sandbox
from rl_llm.tools.sandbox.session import Session
from rl_llm.tools.transforms.tool_turns import ToolAnswer, ToolTurns, WhenSpent

__all__ = ["PythonInterpreter"]

_LOG = logging.getLogger(__name__)


class PythonInterpreter(ToolTurns[str]):
    r"""Runs the fenced ``python`` blocks of the policy's message in a sandbox, in order, one tool turn each.

    The turn is::

        Code block 1 executed successfully:
        42

    or ``Code block 1 failed:`` with the traceback, or with what ended it: too much time, memory or output, a crash. The
    episode goes on in any case. Rows run side by side. The program sees the standard library and no more, unless the
    sandbox is given folders; see :class:`~rl_llm.Sandbox` for what it is kept from.

    The level of isolation is ``level``, stands in the ``repr``, and is logged once, with why stronger ones are not
    available: as information, or as a warning where the level has no namespaces.

    Args:
        tokenizer: whose special tokens are broken up in results; the environment's own are in any case.
        tool_name: the role of the turns.
        persistent: variables last from one block to the next, over turns, until the row is reset: one interpreter per
            row. A block that is stopped ends the interpreter, and the policy is told. False: each block stands alone.
        timeout: wall-clock seconds of a block.
        sandbox: a Sandbox, or the level of a new one; "auto" is the strongest that this machine grants.
        limits: of memory, output, ...; where ``limits.wall_s`` is shorter than ``timeout``, it holds.
        max_calls: blocks that one episode may run; None: any number.
        when_spent: "tell" the policy that its blocks are used up, or "truncate" the episode.
        max_calls_per_turn: blocks of one message.
        most_chars: what is shown of a block's output and of its error, each; the rest is cut, and the turn says so.
        workers: how many blocks run at a time; default: the number of cores and 4, at most 32. Each counts its own
            seconds, so that more of them than cores slow down what computes.

    Raises:
        SandboxError: no safe level works here, or the named one does not; the message has the reasons.
        SpecError: an option is not admitted.

    Where the machine grants a level::

        env = ChatEnv(tokenizer=tokenizer, batch_size=[1]).append_transform(PythonInterpreter())
    """

    noun = "code block"

    def __init__(
        self,
        tokenizer: Tokenizer | None = None,
        tool_name: str = "tool",
        persistent: bool = False,
        timeout: float = 10.0,
        *,
        sandbox: Sandbox | Level | Literal["auto"] = "auto",
        limits: Limits | None = None,
        max_calls: int | None = None,
        when_spent: WhenSpent = "tell",
        max_calls_per_turn: int = 16,
        most_chars: int = 8192,
        workers: int | None = None,
    ) -> None:
        super().__init__(
            tokenizer=tokenizer,
            tool_name=tool_name,
            max_calls=max_calls,
            when_spent=when_spent,
            max_calls_per_turn=max_calls_per_turn,
        )
        if not 0 < timeout < math.inf or most_chars < 1 or (workers is not None and workers < 1):
            raise SpecError(
                f"timeout, most_chars and workers are positive; got {timeout!r}, {most_chars!r}, {workers!r}"
            )
        self.persistent, self.most_chars = persistent, most_chars
        self.workers = min(32, (os.cpu_count() or 1) + 4) if workers is None else workers
        self.limits = _limits(timeout, limits)
        self.sandbox = sandbox if isinstance(sandbox, Sandbox) else Sandbox(sandbox, limits=self.limits)
        self._sessions: dict[int, Session] = {}
        weak = self.level in ("landlock", "unsafe_local")
        _LOG.log(logging.WARNING if weak else logging.INFO, "PythonInterpreter: %s", self.sandbox.explain())

    @property
    def level(self) -> str:
        """The isolation that blocks run under."""
        return self.sandbox.level

    def read_calls(self, text: str) -> list[str]:
        """The Python blocks of a message; one that is never closed is none."""
        return python_blocks(text)

    def make_calls(self, calls: Mapping[int, Sequence[str]]) -> dict[int, list[ToolAnswer]]:
        """Run all rows' blocks."""
        if not self.persistent:
            codes = [code for blocks in calls.values() for code in blocks]
            results = iter(self.sandbox.map(codes, workers=self.workers, limits=self.limits))
            return {
                row: [self._answer(number, next(results)) for number, _ in enumerate(blocks, start=1)]
                for row, blocks in calls.items()
            }
        with ThreadPoolExecutor(self.workers, "python-sessions") as pool:
            return dict(zip(calls, pool.map(self._in_session, calls, calls.values()), strict=True))

    def _in_session(self, row: int, blocks: Sequence[str]) -> list[ToolAnswer]:
        answers = []
        for number, code in enumerate(blocks, start=1):
            session = self._sessions.get(row)
            if session is None:
                session = self._sessions[row] = self.sandbox.session(limits=self.limits)
            result = session.run(code)
            if not session.alive:
                self._sessions.pop(row).close()
            answers.append(self._answer(number, result, lost=not session.alive))
        return answers

    def forget(self, rows: Sequence[int] | None) -> None:
        """End the interpreters of these rows."""
        for row in list(self._sessions) if rows is None else rows:
            session = self._sessions.pop(row, None)
            if session is not None:
                session.close()

    # ---------------------------------------------------------------- wording
    def _answer(self, number: int, result: Result, lost: bool = False) -> ToolAnswer:
        printed = _cut(result.stdout.rstrip("\n"), self.most_chars)
        if result.ok:
            text = f"Code block {number} executed successfully:\n{printed or '(it printed nothing)'}"
            return ToolAnswer(text=text, outcomes=["ok"])
        parts = [f"Code block {number} failed:", self._reason(result)]
        if printed:
            parts += ["It had printed:", printed]
        if lost:
            parts.append("The interpreter was ended with it: what earlier blocks defined is gone.")
        return ToolAnswer(text="\n".join(parts), outcomes=[result.status])

    def _reason(self, result: Result) -> str:
        limits = self.limits
        told: dict[str, Callable[[], str]] = {
            "timeout": lambda: f"it did not end within {limits.wall_s:g} s and was stopped.",
            "oom": lambda: f"it needed more memory than the {limits.memory_bytes >> 20} MiB that it may have.",
            "output_truncated": lambda: f"it printed more than {limits.output_bytes} bytes and was stopped.",
            "killed": lambda: _death(result.exit_code),
            "error": lambda: f"it ended with exit status {result.exit_code}.",
        }
        trace = _cut_front(result.stderr.rstrip("\n"), self.most_chars)
        if result.status == "error" and trace:
            return trace
        reason = told[result.status]()
        return f"{reason}\n{trace}" if trace and result.status != "output_truncated" else reason

    # ---------------------------------------------------------------- copies
    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_sessions": {}}

    def __repr__(self) -> str:
        return (
            f"PythonInterpreter(level={self.level!r}, persistent={self.persistent}, timeout={self.limits.wall_s:g}, "
            f"max_calls={self.max_calls})"
        )


def _limits(timeout: float, given: Limits | None) -> Limits:
    if given is None:
        return Limits(wall_s=timeout, cpu_s=math.ceil(timeout))
    return replace(given, wall_s=min(timeout, given.wall_s))


def _death(exit_code: int | None) -> str:
    if exit_code is None:
        return "its process was killed."
    if exit_code >= 0:
        return f"it ended the interpreter, with exit status {exit_code}."
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"its process was killed by {name}."


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}\n[cut after {most} characters]"


def _cut_front(text: str, most: int) -> str:
    """The end of a text: in a traceback that is what counts."""
    return text if len(text) <= most else f"[all but the last {most} characters cut]\n{text[-most:]}"
