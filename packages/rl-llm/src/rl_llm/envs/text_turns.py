"""Turns as plain strings: what opens a chat, and what stands between the policy's text and its next one."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase

from rl_core.errors import EnvError
from rl_llm.data.assistant_mask import end_of_turn
from rl_llm.data.history import Chat
from rl_llm.data.parsing import IM_END
from rl_llm.data.rendering import control_strings, refuse_special_tokens, render_text
from rl_llm.data.tokenizer_protocol import Tokenizer

__all__ = ["TextTurns"]


class TextTurns:
    """The texts of a ChatEnv in text mode.

    Args:
        tokenizer: whose template renders; None with the built-in template.
        template: the template.
        kwargs: further entries for the template.
    """

    def __init__(self, tokenizer: Tokenizer | None, template: str, kwargs: dict[str, Any]) -> None:
        self.tokenizer, self.template, self.kwargs = tokenizer, template, kwargs
        self.controls = control_strings(tokenizer, template)
        asked = [{"role": "user", "content": "x"}]
        opened = self._render(asked, header=True)
        self.header = opened.removeprefix(self._render(asked))
        closed = self._render([*asked, {"role": "assistant", "content": "x"}])
        self.closing = closed[len(opened) + 1 :]
        self.stop = IM_END if tokenizer is None else end_of_turn(tokenizer, template)

    def _render(self, chat: Chat, header: bool = False) -> str:
        return render_text(chat, self.tokenizer, self.template, add_generation_prompt=header, **self.kwargs)

    def open(self, chat: Chat) -> str:
        """The first prompt: all messages, and the header of the policy's turn."""
        refuse_special_tokens(chat, self.controls)
        return self._render(chat, header=True)

    def advance(self, tensordict: TensorDictBase) -> list[str]:
        """The next prompts: ``text.full``, its turn closed, and the header of the next one.

        Raises:
            EnvError: the policy wrote no ``text.full``.
        """
        text = tensordict.get("text")
        if text.get("full", None) is None:
            raise EnvError("the policy wrote no text.full, which a ChatEnv in text mode makes the next prompt")
        return [full + self._closing(full) + self.header for full in text.texts("full")]

    def _closing(self, full: str) -> str:
        if self.closing and full.endswith(self.closing):
            return ""
        if self.stop and full.endswith(self.stop):
            return self.closing[self.closing.index(self.stop) + len(self.stop) :]
        return self.closing
