"""``Tokenizer``: text to token numbers and back, by a tokenizer that is given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Composite, NonTensor, Transform, Unbounded
from rl_core.errors import KeyMissingError, SpecError
from rl_core.keys import Key, sibling
from rl_envs.transforms.payloads import entry_rows_of, put_rows

__all__ = ["Tokenizer"]


class Tokenizer(Transform):
    """Token numbers, int64 ``[*B, T]``, from the texts of an entry; texts from tokens on the way in.

    A mask, bool ``[*B, T]``, True at real tokens, goes beside each out key as "attention_mask". Rows are padded to the
    longest text of the batch, or to ``max_length``.

    Args:
        in_keys: texts.
        out_keys: tokens.
        in_keys_inv: texts that the environment reads.
        out_keys_inv: tokens that the policy writes for them.
        tokenizer: with ``encode(text, add_special_tokens=...) -> list of int``, ``decode(tokens,
            skip_special_tokens=...) -> str`` and ``pad_token_id`` (those of Hugging Face have all three).
        use_raw_nontensor: accepted for compatibility.
        additional_tokens: added to the vocabulary (``tokenizer.add_tokens``).
        skip_special_tokens: leave special tokens out of decoded texts.
        add_special_tokens: add special tokens to encoded ones.
        padding: pad to ``max_length`` where one is given, else to the longest text.
        max_length: texts are cut to so many tokens.
        return_attention_mask: write the mask.
        missing_tolerance: say nothing where a text is absent.
        call_before_reset: not supported: False.
    """

    def __init__(
        self,
        in_keys: Key | Iterable[Key] | None = None,
        out_keys: Key | Iterable[Key] | None = None,
        in_keys_inv: Key | Iterable[Key] | None = None,
        out_keys_inv: Key | Iterable[Key] | None = None,
        *,
        tokenizer: Any,
        use_raw_nontensor: bool = False,
        additional_tokens: Sequence[str] | None = None,
        skip_special_tokens: bool = True,
        add_special_tokens: bool = False,
        padding: bool = True,
        max_length: int | None = None,
        return_attention_mask: bool = True,
        missing_tolerance: bool = True,
        call_before_reset: bool = False,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        if tokenizer is None or isinstance(tokenizer, str):
            raise ValueError(
                f"Tokenizer got tokenizer={tokenizer!r}; it takes a tokenizer, such as "
                "transformers.AutoTokenizer.from_pretrained(name)"
            )
        if call_before_reset:
            raise ValueError(
                "Tokenizer(call_before_reset=True) is not supported; tokenise what is given to reset before it"
            )
        self.tokenizer, self.use_raw_nontensor = tokenizer, use_raw_nontensor
        self.skip_special_tokens, self.add_special_tokens = skip_special_tokens, add_special_tokens
        self.padding, self.max_length, self.return_attention_mask = padding, max_length, return_attention_mask
        self.missing_tolerance = missing_tolerance
        if additional_tokens:
            tokenizer.add_tokens(list(additional_tokens))

    # ---------------------------------------------------------------- values
    def _encode(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        """Tokens and mask, ``[B, T]``."""
        rows = [list(self.tokenizer.encode(text, add_special_tokens=self.add_special_tokens)) for text in texts]
        if self.max_length is not None:
            rows = [row[: self.max_length] for row in rows]
        widths = {len(row) for row in rows}
        width = self.max_length if self.padding and self.max_length is not None else max(widths)
        if not self.padding and len(widths) > 1:
            raise SpecError(f"Tokenizer(padding=False) got texts of {sorted(widths)} tokens in one batch; pad them")
        pad = getattr(self.tokenizer, "pad_token_id", None)
        if pad is None and widths != {width}:
            raise SpecError("this tokenizer has no pad_token_id, which texts of different lengths need; set one")
        tokens = torch.full((len(rows), width), 0 if pad is None else pad, dtype=torch.int64)
        mask = torch.zeros(len(rows), width, dtype=torch.bool)
        for place, row in enumerate(rows):
            tokens[place, : len(row)] = torch.tensor(row, dtype=torch.int64)
            mask[place, : len(row)] = True
        return tokens, mask

    def _decode(self, tokens: Tensor) -> str:
        return str(self.tokenizer.decode(tokens.tolist(), skip_special_tokens=self.skip_special_tokens))

    # ---------------------------------------------------------------- TensorDicts
    def _call(self, tensordict: TensorDictBase) -> TensorDictBase:
        for key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            texts = entry_rows_of(tensordict, key)
            if texts is None:
                if self._missing_ok or self.missing_tolerance:
                    continue
                raise KeyMissingError(self._missing(key, tensordict))
            tokens, mask = self._encode(texts)
            put_rows(tensordict, out_key, list(tokens))
            if self.return_attention_mask:
                put_rows(tensordict, sibling(out_key, "attention_mask"), list(mask))
        return tensordict

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        for key, out_key in zip(self.in_keys_inv, self.out_keys_inv, strict=True):
            rows = entry_rows_of(tensordict, out_key)
            if rows is None:
                raise KeyMissingError(self._missing(out_key, tensordict))
            put_rows(tensordict, key, [self._decode(row) for row in rows])
        return tensordict

    # ---------------------------------------------------------------- specs
    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Adds tokens and masks, of any length where ``max_length`` does not fix it."""
        for key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            if not isinstance(observation_spec.get(key, None), NonTensor):
                continue
            width = self.max_length if self.padding and self.max_length is not None else -1
            shape, device = (*observation_spec.shape, width), observation_spec.device
            observation_spec.set(out_key, Unbounded(shape=shape, dtype=torch.int64, device=device))
            if self.return_attention_mask:
                mask = Unbounded(shape=shape, dtype=torch.bool, device=device)
                observation_spec.set(sibling(out_key, "attention_mask"), mask)
        return observation_spec

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """Tokens instead of texts."""
        for key, out_key in zip(self.in_keys_inv, self.out_keys_inv, strict=True):
            if key in action_spec:
                action_spec.pop(key)
                shape = (*action_spec.shape, -1 if self.max_length is None else self.max_length)
                action_spec.set(out_key, Unbounded(shape=shape, dtype=torch.int64, device=action_spec.device))
        return action_spec

    @property
    def supports_rows(self) -> bool:
        """False."""
        return False
