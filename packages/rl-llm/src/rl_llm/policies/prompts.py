"""Prompts and full sequences read as rows of token ids: from tokens where they are, else from texts or messages."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core.errors import KeyMissingError, SpecError
from rl_core.keys import Key
from rl_llm.data.history import History
from rl_llm.policies.options import WrapperOptions
from rl_llm.policies.rows import text_rows, token_rows

__all__ = ["PromptReader", "Prompts"]


@dataclass(frozen=True)
class Prompts:
    """What the model is to continue, by row."""

    tokens: list[Tensor]
    """int64 [L_i]."""
    texts: list[str] | None = None
    history: History | None = None
    generated: list[Tensor] | None = None
    """bool [L_i]: tokens of the prompt that the policy generated at earlier turns."""
    log_probs: list[Tensor] | None = None
    """[L_i]: their log-probabilities then, 0 elsewhere."""


class PromptReader:
    """Reads the inputs of a policy.

    Args:
        options: modes, keys, templates.
        tokenizer: None only in the tokens mode.
    """

    def __init__(self, options: WrapperOptions, tokenizer: Any) -> None:
        self.options, self.tokenizer = options, tokenizer

    def prompts(self, batch: TensorDictBase) -> Prompts:
        """Prompts of a batch [B].

        Raises:
            KeyMissingError: nothing to read.
            SpecError: an empty prompt.
        """
        options = self.options
        history = self._history(batch) if options.input_mode == "history" else None
        texts = text_rows(batch, options.read_key) if options.input_mode == "text" else None
        key: Key = options.read_key if options.input_mode == "tokens" else (options.tokens_key, "prompt")
        rows = self._given(batch, key)
        if rows is not None and texts is not None and self._mismatch(self._decoded(rows), texts) is not None:
            rows = None  # of an earlier turn: an environment of texts writes no tokens
        fresh = rows is None
        if rows is None:
            rows = self._encoded(history, texts, generation_prompt=True)
        _check_rows(rows, options.read_key)
        if self.tokenizer is not None and texts is None:
            texts = self._decoded(rows)
            if not fresh and history is not None:
                self._warn_of_stale_tokens(texts, _said(history))
        earlier = None if fresh else self._earlier(batch, rows)
        return Prompts(rows, texts, history, *(earlier or (None, None)))

    def full(self, batch: TensorDictBase) -> list[Tensor]:
        """Whole sequences of a batch [B], to be scored, from texts or messages."""
        if self.options.input_mode == "history":
            return self._encoded(self._history(batch), None, generation_prompt=False)
        return self._encoded(None, text_rows(batch, self.options.read_key), generation_prompt=False)

    def _given(self, batch: TensorDictBase, key: Key) -> list[Tensor] | None:
        options = self.options
        if options.input_mode != "tokens" and not options.prefer_tokens:
            return None
        rows = token_rows(batch, key, options.attention_mask_key)
        if rows is None and options.input_mode == "tokens":
            raise KeyMissingError(
                f"the policy reads token ids at {key!r}, which are not there; there are "
                f"{sorted(map(str, batch.keys()))}. Set them, name their place with input_key=..., or choose another "
                "input_mode"
            )
        return rows

    def _decoded(self, rows: list[Tensor]) -> list[str]:
        return [self.tokenizer.decode(row.tolist(), skip_special_tokens=False) for row in rows]

    def _warn_of_stale_tokens(self, decoded: list[str], said: list[Any]) -> None:
        """Warn where the tokens to be read do not tell what the messages of the same batch say."""
        mismatch = self._mismatch(decoded, said)
        if mismatch is not None:
            row, part = mismatch
            warnings.warn(
                f"row {row}: the tokens at {(self.options.tokens_key, 'prompt')!r}, which the policy reads, do "
                f"not contain {part[-60:]!r} of {self.options.read_key!r}: they look like those of another "
                "turn. Remove them, or read the other entry with prefer_tokens=False",
                stacklevel=7,
            )

    def _mismatch(self, decoded: list[str], said: list[Any]) -> tuple[int, str] | None:
        """The first row whose tokens do not hold what was said, in its order, and the missing part."""
        for row, (tokens_say, parts) in enumerate(zip(decoded, said, strict=True)):
            place, tokens_say = 0, "".join(tokens_say.split())
            for part in [parts] if isinstance(parts, str) else parts:
                ids = self.tokenizer.encode(part, add_special_tokens=False)  # and back: unknown characters are lost
                bare = "".join(self.tokenizer.decode(ids, skip_special_tokens=False).split())
                place = tokens_say.find(bare, place)
                if place < 0:
                    return row, part
                place += len(bare)
        return None

    def _earlier(self, batch: TensorDictBase, rows: list[Tensor]) -> tuple[list[Tensor], list[Tensor]] | None:
        """Which tokens of the prompt the policy generated before, and their log-probabilities, where both are there."""
        generated = token_rows(batch, (self.options.masks_key, "prompt_assistant_mask"))
        log_probs = token_rows(batch, (self.options.log_probs_key, "prompt"))
        if generated is None or log_probs is None:
            return None
        lengths = [len(row) for row in rows]
        if [len(row) for row in generated] != lengths or [len(row) for row in log_probs] != lengths:
            return None  # of another turn
        return generated, log_probs

    def _history(self, batch: TensorDictBase) -> History:
        history = batch.get(self.options.read_key, None)
        if history is None:
            raise KeyMissingError(
                f"the policy reads messages at {self.options.read_key!r}, which are not there; there are "
                f"{sorted(map(str, batch.keys()))}. A ChatEnv writes them at reset; texts and token ids are read with "
                "input_mode='text' and 'tokens'"
            )
        if not isinstance(history, History) or history.batch_dims != 2:
            raise SpecError(
                f"{self.options.read_key!r} must be a History [B, T], got {type(history).__name__} of batch size "
                f"{tuple(history.batch_size)}: History.from_chats([[...], ...]) makes one"
            )
        return history

    def _encoded(self, history: History | None, texts: list[str] | None, *, generation_prompt: bool) -> list[Tensor]:
        options = self.options
        kwargs = {"add_special_tokens": False}
        if history is not None:
            texts = history.apply_chat_template(
                tokenizer=self.tokenizer,
                add_generation_prompt=generation_prompt,
                chat_template=options.chat_template,
                chat_template_name=options.chat_template_name,
                tokenize=False,
            )
        assert texts is not None
        encoded = self.tokenizer(texts, **{**kwargs, **(options.tokenizer_kwargs or {})})
        return [torch.as_tensor(ids, dtype=torch.int64) for ids in encoded["input_ids"]]


def _said(history: History) -> list[list[str]]:
    """What others than the policy said, by row; templates may shorten the policy's own earlier messages."""
    return [[m["content"] for m in chat if m["role"] != "assistant"] for chat in history.to_chats()]


def _check_rows(rows: list[Tensor], key: Key) -> None:
    for index, row in enumerate(rows):
        if not len(row) or row.dtype != torch.int64 or row.ndim != 1:
            raise SpecError(
                f"row {index} of {key!r} must hold at least one token id, int64 [L]; got {row.dtype} {list(row.shape)}"
            )
