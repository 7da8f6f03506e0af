"""``TransformersWrapper``: a causal language model of Transformers as a policy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core.errors import KeyMissingError, PolicyError
from rl_core.keys import Key
from rl_llm.policies.base import LLMWrapperBase
from rl_llm.policies.completion import Completion
from rl_llm.policies.library import transformers
from rl_llm.policies.recording import generate_completions
from rl_llm.policies.rows import dense_tokens
from rl_llm.policies.scoring import CausalScorer, context_length

__all__ = ["TransformersWrapper"]


class TransformersWrapper(LLMWrapperBase):
    """A causal language model of Transformers as a policy; all arguments are at :class:`LLMWrapperBase`.

    ``model`` is the model or a name or path for ``from_pretrained`` (the tokenizer is then loaded from there too). The
    model's mode is left alone when it scores: with dropout, ratios are wrong before any update, so keep it in
    ``eval()``. Sampling draws from torch's global generator: ``torch.manual_seed`` repeats it. The model's own
    generation configuration only tells its end-of-text tokens.

    Example:
        >>> from tensordict import TensorDict
        >>> from rl_llm.data.char_tokenizer import char_tokenizer
        >>> from rl_llm.data.containers import Text
        >>> from rl_llm.testing.tiny import tiny_llama
        >>> tokenizer = char_tokenizer()
        >>> policy = TransformersWrapper(
        ...     tiny_llama(tokenizer), tokenizer=tokenizer, input_mode="text", generate_kwargs={"max_new_tokens": 4}
        ... )
        >>> batch = TensorDict({"text": Text(prompt=["ab", "c"], batch_size=[2])}, batch_size=[2])
        >>> out = policy(batch)
        >>> [len(row) for row in out["log_probs"].rows("response")] <= [4, 4]
        True
        >>> log_prob, entropy = policy.log_probs(out, with_entropy=True)
        >>> log_prob.shape == entropy.shape
        True
    """

    def open_engine(self, model: Any, tokenizer: Any) -> tuple[Any, Any]:
        if isinstance(model, (str, os.PathLike)):
            if tokenizer is None:
                tokenizer = transformers.AutoTokenizer.from_pretrained(model)
            model = transformers.AutoModelForCausalLM.from_pretrained(model)
        if not isinstance(model, torch.nn.Module):
            raise PolicyError(
                f"model must be a causal language model of Transformers, or the name or path of one; got "
                f"{type(model).__name__}"
            )
        return model, tokenizer

    @property
    def context(self) -> int | None:
        return context_length(self.model)

    @property
    def eos_ids(self) -> list[int]:
        """Tokens that end a completion: the tokenizer's and those of the model's generation configuration."""
        told = self.model.generation_config.eos_token_id
        ids = set([told] if isinstance(told, int) else told or [])
        if self.tokenizer is not None and self.tokenizer.eos_token_id is not None:
            ids.add(self.tokenizer.eos_token_id)
        return sorted(int(token) for token in ids)

    def sample(self, prompts: Sequence[Tensor], limits: Sequence[int]) -> list[Completion]:
        return generate_completions(
            self.model, prompts, self.settings, eos_ids=self.eos_ids, limits=limits, tokenizer=self.tokenizer
        )

    def log_probs(
        self, batch: TensorDictBase, with_entropy: bool = False, *, wanted_key: Key | None = None
    ) -> tuple[Tensor, Tensor | None]:
        how = self.settings.check_scoring()
        tokens, mask = dense_tokens(batch, self.options.full_key, self.options.attention_key)
        home, shape = tokens.device, tokens.shape
        wanted = None
        if wanted_key is not None:
            wanted = batch.get(wanted_key, None)
            if not isinstance(wanted, Tensor) or wanted.shape != shape:
                raise KeyMissingError(f"{wanted_key!r} must be a bool mask of shape {list(shape)}, got {wanted!r}")
            wanted = wanted.reshape(-1, shape[-1]).to(self.model.device)
        log_prob, entropy = self._scorer().score(
            tokens.reshape(-1, shape[-1]).to(self.model.device),
            mask.reshape(-1, shape[-1]).to(self.model.device),
            how,
            packed=not self.options.pad_model_input,
            with_entropy=with_entropy,
            wanted=wanted,
        )
        return log_prob.to(home).view(shape), None if entropy is None else entropy.to(home).view(shape)

    def _scorer(self) -> CausalScorer:
        scorer: CausalScorer | None = self.__dict__.get("scorer", None)
        if scorer is None or scorer.model is not self.model:
            scorer = self.__dict__["scorer"] = CausalScorer(self.model)
        return scorer
