"""``tiny_llama``: a real transformer with random weights, made in milliseconds and without a download."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rl_core.errors import SpecError
from rl_core.registry import missing_extra

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

__all__ = ["tiny_llama"]


def tiny_llama(
    tokenizer: Any | int,
    *,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 2,
    context: int = 512,
    initializer_range: float = 0.02,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> LlamaForCausalLM:
    """A Llama with random weights, in evaluation mode; the global random state is left as it was.

    Args:
        tokenizer: a tokenizer, for the vocabulary and the special tokens, or the number of tokens.
        hidden: width, a multiple of ``2 * heads``.
        layers: number of blocks.
        heads: number of attention heads; vLLM on a CPU wants heads of 32 numbers or more.
        context: the longest sequence, ``max_position_embeddings``.
        initializer_range: standard deviation of the weights; 0.02 gives nearly uniform predictions, 0.3 sharp ones.
        seed: of the weights.
        dtype: of the weights.

    Raises:
        SpecError: the width does not divide.
        PluginNotInstalledError: transformers is absent.
    """
    if hidden % (2 * heads):
        raise SpecError(f"hidden must be a multiple of 2 * heads = {2 * heads}, got {hidden}")
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ModuleNotFoundError as error:
        raise missing_extra("transformers", "rl-llm", "transformers") from error
    special: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    if not isinstance(tokenizer, int):
        special = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = LlamaConfig(
        vocab_size=tokenizer if isinstance(tokenizer, int) else len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=context,
        initializer_range=initializer_range,
        tie_word_embeddings=False,
        **special,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: Any = LlamaForCausalLM(config)
    return model.to(dtype).eval()
