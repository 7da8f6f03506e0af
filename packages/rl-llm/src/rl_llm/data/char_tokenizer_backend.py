"""A fast tokenizer of single characters, built with transformers and tokenizers."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

__all__ = ["build"]


def build(
    characters: str, *, pad: str, unknown: str, controls: tuple[str, str], template: str
) -> PreTrainedTokenizerFast:
    """See :func:`rl_llm.char_tokenizer`."""
    vocabulary = {token: index for index, token in enumerate([pad, unknown, *controls, *characters])}
    model = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    model.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    model.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=model,
        pad_token=pad,
        unk_token=unknown,
        eos_token=controls[1],
        additional_special_tokens=[controls[0]],
        chat_template=template,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
