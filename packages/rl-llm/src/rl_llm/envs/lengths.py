"""``LengthPolicy``: what happens to prompts that leave a model no room to answer, decided where data are read."""

from __future__ import annotations

import logging
from typing import Any

from rl_core.errors import SpecError
from rl_llm.data.history import Chat, History
from rl_llm.data.rendering import render_text
from rl_llm.data.templates import resolve_template
from rl_llm.data.tokenizer_protocol import Tokenizer
from rl_llm.envs.opening import opening_chats

__all__ = ["LengthPolicy"]

_LOG = logging.getLogger(__name__)
_ACTIONS = ("drop", "truncate", "raise")


class LengthPolicy:
    """Drop, truncate or refuse prompts of ``limit`` tokens or more, and count them.

    A prompt is what the policy will read: all messages and the header of its turn, through the chat template.

    Args:
        tokenizer: counts.
        limit: the first length that is too long (a model's context, or less to leave room for an answer).
        action: "drop" the sample, "truncate" the content of its last message, or "raise".
        keep: which side of a truncated content stays, "start" or "end".
        data_key: the column with the question.
        system_prompt: counted with every prompt.
        chat_template: a jinja template.
        chat_template_name: a registered template.

    Raises:
        SpecError: an option is not admitted.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        limit: int,
        action: str = "drop",
        *,
        keep: str = "start",
        data_key: str = "query",
        system_prompt: str | None = None,
        chat_template: str | None = None,
        chat_template_name: str | None = None,
    ) -> None:
        if action not in _ACTIONS or keep not in ("start", "end"):
            raise SpecError(f"action={action!r} is one of {', '.join(_ACTIONS)}, and keep={keep!r} 'start' or 'end'")
        if limit < 1:
            raise SpecError(f"limit={limit}; a prompt has at least one token, so the limit is at least 1")
        self.tokenizer, self.limit, self.action, self.keep = tokenizer, limit, action, keep
        self.data_key, self.system_prompt = data_key, system_prompt
        self.template = resolve_template(tokenizer, chat_template, chat_template_name)
        self._stats = {"seen": 0, "dropped": 0, "truncated": 0, "longest": 0}

    def length(self, question: Any) -> int:
        """The number of tokens of a prompt."""
        return len(self._ids(self._chat(question)))

    def _chat(self, question: Any) -> Chat:
        system = None if self.system_prompt is None else ("system", self.system_prompt)
        value = question if isinstance(question, (str, History)) else [question]
        return opening_chats(value, 1, key=self.data_key, system=system)[0]

    def _ids(self, chat: Chat) -> list[int]:
        text = render_text(chat, self.tokenizer, self.template, add_generation_prompt=True)
        return self.tokenizer.encode(text, add_special_tokens=False)

    def apply(self, sample: dict[str, Any]) -> dict[str, Any] | None:
        """The sample, a shorter one, or None where it is dropped.

        Raises:
            SpecError: the prompt is too long with action "raise", or even without the text that truncation may remove.
        """
        question = sample[self.data_key]
        size = self.length(question)
        self._stats["seen"] += 1
        self._stats["longest"] = max(self._stats["longest"], size)
        if size < self.limit:
            return sample
        if self.action == "raise":
            raise SpecError(
                f"a prompt has {size} tokens, the limit is {self.limit} (exclusive): {str(question)[:80]!r}. Shorten "
                "the data, raise the limit, or choose action='drop' or 'truncate'"
            )
        self._tell(size)
        if self.action == "drop":
            self._stats["dropped"] += 1
            return None
        self._stats["truncated"] += 1
        return {**sample, self.data_key: self._truncated(question, size)}

    def _tell(self, size: int) -> None:
        first = not (self._stats["dropped"] or self._stats["truncated"])
        _LOG.log(
            logging.WARNING if first else logging.INFO,
            "a prompt of %d tokens is over the limit of %d: %s (%d seen so far; further ones are logged at INFO)",
            size,
            self.limit,
            self.action,
            self._stats["seen"],
        )

    def _truncated(self, question: Any, size: int) -> Any:
        chat = self._chat(question)
        content = self.tokenizer.encode(chat[-1]["content"], add_special_tokens=False)
        spare = size - self.limit + 1
        while len(content) > spare:
            kept = content[: len(content) - spare] if self.keep == "start" else content[spare:]
            chat[-1] = {**chat[-1], "content": self.tokenizer.decode(kept)}
            if len(self._ids(chat)) < self.limit:
                return chat[-1]["content"] if isinstance(question, str) else self._reopened(question, chat)
            spare += 1
        raise SpecError(
            f"a prompt of {size} tokens cannot be cut below the limit of {self.limit}: without its last message it is "
            f"{size - len(content)} tokens long. Raise the limit or choose action='drop'"
        )

    def _reopened(self, question: Any, chat: Chat) -> Any:
        """The chat in the form of the question, without the system prompt that the environment adds."""
        before = question.to_chats() if isinstance(question, History) else list(question)
        messages = chat[len(chat) - len(before) :]
        return History.from_chats(messages) if isinstance(question, History) else messages

    def get_stats(self) -> dict[str, int]:
        """Prompts seen, dropped and truncated so far, and the longest, in tokens."""
        return dict(self._stats)

    def __repr__(self) -> str:
        return f"LengthPolicy(limit={self.limit}, action={self.action!r})"
