"""``WrapperOptions``: what a language-model policy reads, writes, and does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rl_core.errors import PolicyError
from rl_core.keys import Key, as_key

__all__ = ["WrapperOptions"]

MODES = ("history", "text", "tokens")


@dataclass(frozen=True, kw_only=True)
class WrapperOptions:
    """The options that all wrappers share, documented at :class:`~rl_llm.policies.base.LLMWrapperBase`.

    Raises:
        PolicyError: options that contradict each other.
    """

    input_mode: str = "history"
    input_key: Key | None = None
    attention_mask_key: Key = "attention_mask"
    generate: bool = True
    generate_kwargs: Mapping[str, Any] | None = None
    tokenizer_kwargs: Mapping[str, Any] | None = None
    pad_output: bool = False
    pad_model_input: bool = True
    inplace: bool | None = None
    device: torch.device | str | None = None
    layout: torch.layout | None = None
    num_samples: int | None = None
    chat_template_name: str | None = None
    chat_template: str | None = None
    return_log_probs: bool | None = None
    history_key: str = "history"
    text_key: str = "text"
    tokens_key: str = "tokens"
    masks_key: str = "masks"
    log_probs_key: str = "log_probs"
    prefer_tokens: bool = True

    def __post_init__(self) -> None:
        if self.input_mode not in MODES:
            raise PolicyError(f"input_mode is one of {', '.join(MODES)}; got {self.input_mode!r}")
        if self.return_log_probs is False and not self.generate:
            raise PolicyError("generate=False scores tokens, so return_log_probs=False leaves nothing to do")
        if self.layout not in (None, torch.strided):
            raise PolicyError(
                f"layout {self.layout}: rows are written ragged (pad_output=False) or dense (pad_output=True). A "
                "jagged view of ragged ones: td['tokens'].get('full', as_nested_tensor=True, layout=torch.jagged)"
            )

    @property
    def read_key(self) -> Key:
        """The entry that is read."""
        container = getattr(self, f"{self.input_mode}_key")
        return as_key(self.input_key or (container, "prompt" if self.generate else "full"))

    @property
    def full_key(self) -> Key:
        """Token ids of prompts and completions."""
        return (self.tokens_key, "full")

    @property
    def attention_key(self) -> Key:
        """The mask of real tokens among them."""
        return (self.masks_key, "all_attention_mask")

    @property
    def written_keys(self) -> list[Key]:
        """What the policy writes."""
        if not self.generate:
            return [(self.log_probs_key, "full")]
        names = ("prompt", "response", "full")
        keys: list[Key] = [(self.tokens_key, name) for name in names]
        keys += [self.attention_key, (self.masks_key, "all_assistant_mask")]
        if self.return_log_probs is not False:
            keys += [(self.log_probs_key, name) for name in names]
        if self.input_mode != "tokens":
            keys += [(self.text_key, name) for name in names]
        if self.input_mode == "history":
            keys += [(self.history_key, name) for name in names]
        return keys
