"""``ToolTurns``: after a step, what the policy asked for is done, and the answers follow its turn as messages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Transform, reset_rows
from rl_core.errors import EnvError, SpecError
from rl_llm.data.containers import ChatHistory
from rl_llm.data.history import Chat, History
from rl_llm.data.rendering import control_strings
from rl_llm.data.templates import resolve_template
from rl_llm.data.tokenizer_protocol import Tokenizer
from rl_llm.envs.chat import ChatEnv
from rl_llm.envs.row_merge import put_entries
from rl_llm.tools.special_tokens import neutralise

__all__ = ["ToolAnswer", "ToolTurns", "WhenSpent"]

CallT = TypeVar("CallT")
WhenSpent = Literal["tell", "truncate"]

_WHEN_SPENT = ("tell", "truncate")
_MARK = re.compile(r"<[^\s<>]+>|\[[A-Z_/]+\]")
_TAG = re.compile(r"</?[a-z_]+>")


@dataclass(frozen=True, kw_only=True)
class ToolAnswer:
    """What the policy is told about one call, or about several that belong together."""

    text: str
    """The content of the tool's turn; it may hold whatever a tool returned."""
    outcomes: Sequence[str]
    """How each call ended, for the counts: "ok", "error", "timeout", ..."""


class ToolTurns(Transform, Generic[CallT]):
    """Base of transforms of a ChatEnv in history mode that append turns of a tool, and nothing else.

    Of every row whose episode has not terminated, the message that the policy wrote in this step is read. Its calls are
    made, those of all rows together, and the answers are appended to ``next.history.prompt`` as messages of role
    ``tool_name``; a row without calls gets none. The environment then encodes them behind the policy's tokens, as not
    generated. Texts that the tokenizer or the template take for control tokens are broken up before (``neutralise``).

    A subclass defines ``read_calls`` and ``make_calls``, and ``noun``, what it calls a call.

    Args:
        tokenizer: whose special tokens are broken up, beside those of the environment's tokenizer.
        tool_name: the role of the turns.
        max_calls: calls of one episode; None: any number.
        when_spent: what a call beyond ``max_calls`` leads to. "tell": a turn that says so, and the episode goes on;
            "truncate": the same turn, and the episode ends.
        max_calls_per_turn: calls of one message; further ones are not made, and the policy is told.

    Raises:
        SpecError: an option is not admitted.
    """

    noun: str = "call"

    def __init__(
        self,
        *,
        tokenizer: Tokenizer | None = None,
        tool_name: str = "tool",
        max_calls: int | None = None,
        when_spent: WhenSpent = "tell",
        max_calls_per_turn: int = 16,
    ) -> None:
        super().__init__()
        if (max_calls is not None and max_calls < 0) or max_calls_per_turn < 1 or when_spent not in _WHEN_SPENT:
            raise SpecError(
                f"max_calls={max_calls!r} is None or at least 0, max_calls_per_turn={max_calls_per_turn!r} at least 1, "
                f"when_spent={when_spent!r} one of {', '.join(map(repr, _WHEN_SPENT))}"
            )
        self.tokenizer, self.tool_name = tokenizer, tool_name
        self.max_calls, self.when_spent, self.max_calls_per_turn = max_calls, when_spent, max_calls_per_turn
        self._spent: dict[int, int] = {}
        self._counts: Counter[str] = Counter()

    # ---------------------------------------------------------------- to be written by a subclass
    def read_calls(self, text: str) -> list[CallT]:
        """The calls in a message of the policy, in order; bad text never raises."""
        raise NotImplementedError(f"{type(self).__name__} must define read_calls")

    def make_calls(self, calls: Mapping[int, Sequence[CallT]]) -> dict[int, list[ToolAnswer]]:
        """Make the calls of all rows, rows side by side, each row's calls in their order.

        Args:
            calls: those of each row that has any.

        Returns:
            for each of these rows the answers, one turn each.
        """
        raise NotImplementedError(f"{type(self).__name__} must define make_calls")

    def forget(self, rows: Sequence[int] | None) -> None:
        """The episodes of these rows (None: of all) are over: give up what was kept for them."""

    def close(self) -> None:
        """Give up everything that is kept, processes among it; a later step starts anew."""
        self.forget(None)

    # ---------------------------------------------------------------- reset and step
    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        asked = reset_rows(tensordict)
        rows = None if asked is None else asked.nonzero().flatten().tolist()
        self.forget(rows)
        self._spent = {} if rows is None else {row: n for row, n in self._spent.items() if row not in rows}
        return tensordict_reset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        chats = self._chats(next_tensordict)
        said = self._said(tensordict, next_tensordict, chats)
        calls = {row: found for row, text in said.items() if (found := self.read_calls(text))}
        if calls:
            admitted = {row: self._admitted(row, found) for row, found in calls.items()}
            answers = self.make_calls({row: found for row, found in admitted.items() if found})
            spent = []
            for row, found in calls.items():
                turns = [*answers.get(row, []), *self._refusals(row, len(admitted[row]), len(found))]
                self._add_turns(chats[row], turns)
                if len(admitted[row]) < min(len(found), self.max_calls_per_turn):
                    spent.append(row)
            grown = ChatHistory(prompt=History.from_chats(chats), batch_size=next_tensordict.batch_size)
            put_entries(next_tensordict, {"history": grown})
            if spent and self.when_spent == "truncate":
                self._truncate(next_tensordict, spent)
        ended = _rows_with(next_tensordict, "done")
        if ended:
            self.forget(ended)
        return next_tensordict

    def _chats(self, tensordict: TensorDictBase) -> list[Chat]:
        history = tensordict.get("history", None)
        if history is None:
            raise EnvError(
                f"{type(self).__name__} reads the messages under 'history', which this environment does not write: it "
                "needs a ChatEnv with input_mode='history'"
            )
        chats: list[Chat] = history.prompt.to_chats()
        return chats

    def _said(self, root: TensorDictBase, nxt: TensorDictBase, chats: list[Chat]) -> dict[int, str]:
        """By row what the policy wrote in this step: never a message of an earlier one, nor one of another tool."""
        env = self._chat_env()
        role = "assistant" if env is None else env.policy_role
        over = set(_rows_with(nxt, "terminated"))
        said = {}
        for row, (before, chat) in enumerate(zip(self._chats(root), chats, strict=True)):
            added = chat[len(before) :] or chat[-1:]  # a policy may have put its message into the prompt itself
            mine = [message["content"] for message in added if message["role"] == role]
            if mine and row not in over:
                said[row] = mine[-1]
        return said

    # ---------------------------------------------------------------- budgets
    def _admitted(self, row: int, calls: list[CallT]) -> list[CallT]:
        count = min(len(calls), self.max_calls_per_turn)
        if self.max_calls is not None:
            count = min(count, self.max_calls - self._spent.get(row, 0))
            self._spent[row] = self._spent.get(row, 0) + count
        return calls[:count]

    def _refusals(self, row: int, made: int, found: int) -> list[ToolAnswer]:
        """What is told of the calls that were not made; nothing where all were."""
        if made == found:
            return []
        which = f"{self.noun} {found} was" if made + 1 == found else f"{self.noun}s {made + 1} to {found} were"
        why = f"one message may hold at most {self.max_calls_per_turn}"
        if made < min(found, self.max_calls_per_turn):
            why = f"the {self.max_calls} that this episode may have are used up"
        text = f"{which[0].upper()}{which[1:]} not run: {why}."
        return [ToolAnswer(text=text, outcomes=["refused"] * (found - made))]

    def _truncate(self, tensordict: TensorDictBase, rows: list[int]) -> None:
        for name in ("truncated", "done"):
            flags = tensordict.get(name).clone()
            flags[rows] = True
            tensordict.set(name, flags)

    # ---------------------------------------------------------------- turns
    def _add_turns(self, chat: Chat, answers: Sequence[ToolAnswer]) -> None:
        controls = self._controls()
        for answer in answers:
            self._counts.update(answer.outcomes)
            chat.append({"role": self.tool_name, "content": neutralise(answer.text, controls)})

    def _controls(self) -> set[str]:
        """What must not stand in a result: special tokens, marks in the vocabulary, tags that the template writes."""
        env = self._chat_env()
        pairs = [(self.tokenizer, resolve_template(self.tokenizer))]
        if env is not None:
            pairs.append((env.tokenizer, env.template))
        found: set[str] = set()
        for tokenizer, template in pairs:
            found.update(control_strings(tokenizer, template), _TAG.findall(template))
            if tokenizer is not None:  # tokens such as </tool_response> are not always declared special
                found.update(token for token in tokenizer.get_added_vocab() if _MARK.fullmatch(token))
        return found

    def _chat_env(self) -> ChatEnv | None:
        container = self.container
        base = None if container is None else container.base_env
        return base if isinstance(base, ChatEnv) else None

    # ---------------------------------------------------------------- logs and copies
    def pop_metrics(self) -> dict[str, float]:
        """How many calls ended how since the last call: "ok", "error", "timeout", ..., "refused"."""
        counts = {outcome: float(count) for outcome, count in sorted(self._counts.items())}
        self._counts.clear()
        return counts

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_spent": {}, "_counts": Counter()}


def _rows_with(tensordict: TensorDictBase, name: str) -> list[int]:
    """The rows in which a flag is set."""
    flag: Tensor | None = tensordict.get(name, None)
    if flag is None:
        return []
    return torch.nonzero(flag.reshape(flag.shape[0], -1).any(-1)).flatten().tolist()
