"""The containers that a policy writes after a turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl_llm.data.containers import ChatHistory, LogProbs, Masks, Text, Tokens
from rl_llm.data.history import History
from rl_llm.policies.completion import Completion
from rl_llm.policies.options import WrapperOptions
from rl_llm.policies.prompts import Prompts

__all__ = ["sequence_containers", "turn_containers"]


@dataclass(frozen=True)
class _Rows:
    """One turn by row, on the output device."""

    prompt: list[Tensor]
    response: list[Tensor]
    log_probs: list[Tensor]
    """Of the response."""


def turn_containers(
    prompts: Prompts,
    completions: Sequence[Completion],
    options: WrapperOptions,
    tokenizer: Any,
    device: torch.device | None,
) -> dict[str, Any]:
    """Containers [B] by key, for one completion of each of B prompts."""
    rows = _Rows(
        [row.to(device) for row in prompts.tokens],
        [completion.tokens.to(device) for completion in completions],
        [completion.log_probs.to(device) for completion in completions],
    )
    written: dict[str, Any] = {
        options.tokens_key: _tokens(rows, _pad_id(tokenizer) if options.pad_output else None),
        options.masks_key: _masks(rows, prompts, options.pad_output),
    }
    if options.return_log_probs is not False:
        written[options.log_probs_key] = _log_probs(rows, prompts, options.pad_output)
    if options.input_mode != "tokens":
        written[options.text_key] = _text(rows, prompts, tokenizer)
    if options.input_mode == "history":
        written[options.history_key] = _history(rows, prompts, completions, tokenizer)
    return {key: value if device is None else value.to(device) for key, value in written.items()}


def sequence_containers(sequences: list[Tensor], options: WrapperOptions, tokenizer: Any) -> dict[str, Any]:
    """Tokens and Masks [B] by key, for whole sequences: ragged, or dense and padded on the right."""
    attention = [torch.ones(len(row), dtype=torch.bool, device=row.device) for row in sequences]
    pad = options.pad_output
    return {
        options.tokens_key: Tokens.from_rows(full=sequences, pad_token_id=_pad_id(tokenizer) if pad else None),
        options.masks_key: Masks.from_rows(all_attention_mask=attention, pad=pad),
    }


def _pad_id(tokenizer: Any) -> int:
    """Any id will do: nobody tells padding by it."""
    for token in (tokenizer.pad_token_id, tokenizer.eos_token_id) if tokenizer is not None else ():
        if token is not None:
            return int(token)
    return 0


def _tokens(rows: _Rows, pad_token_id: int | None) -> Tokens:
    full = [torch.cat(pair) for pair in zip(rows.prompt, rows.response, strict=True)]
    return Tokens.from_rows(prompt=rows.prompt, response=rows.response, full=full, pad_token_id=pad_token_id)


def _masks(rows: _Rows, prompts: Prompts, pad: bool) -> Masks:
    before = prompts.generated or [torch.zeros_like(row, dtype=torch.bool) for row in rows.prompt]
    after = [torch.ones_like(row, dtype=torch.bool) for row in rows.response]
    assistant = [torch.cat((a.to(b.device).bool(), b)) for a, b in zip(before, after, strict=True)]
    masks = Masks.from_rows(
        all_attention_mask=[torch.ones_like(row) for row in assistant], all_assistant_mask=assistant, pad=pad
    )
    return masks


def _log_probs(rows: _Rows, prompts: Prompts, pad: bool) -> LogProbs:
    like = rows.log_probs
    zeros = [row.new_zeros(len(prompt)) for row, prompt in zip(like, rows.prompt, strict=True)]
    before = [row.to(zero) for row, zero in zip(prompts.log_probs, zeros, strict=True)] if prompts.log_probs else zeros
    full = [torch.cat(pair) for pair in zip(before, like, strict=True)]
    return LogProbs.from_rows(prompt=before, response=like, full=full, pad=pad)


def _text(rows: _Rows, prompts: Prompts, tokenizer: Any) -> Text:
    """Special tokens stay in the texts, so that ``full`` is what the model read and wrote."""
    before = prompts.texts or []
    response = [tokenizer.decode(row.tolist(), skip_special_tokens=False) for row in rows.response]
    full = [a + b for a, b in zip(before, response, strict=True)]
    return Text(prompt=before, response=response, full=full, batch_size=[len(full)])


def _history(rows: _Rows, prompts: Prompts, completions: Sequence[Completion], tokenizer: Any) -> ChatHistory:
    """An answer's content has no special token: the end of the turn is in its tokens, and a turn cannot be forged."""
    assert prompts.history is not None
    contents = [tokenizer.decode(row.tolist(), skip_special_tokens=True) for row in rows.response]
    answers = [
        [{"role": "assistant", "content": content, "is_complete": completion.stopped}]
        for content, completion in zip(contents, completions, strict=True)
    ]
    response = History.from_chats(answers)
    full = prompts.history.extend(response, inplace=False, dim=-1)
    return ChatHistory(prompt=prompts.history, response=response, full=full, batch_size=[len(contents)])
