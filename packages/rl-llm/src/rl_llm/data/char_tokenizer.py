"""``char_tokenizer``: a real tokenizer of single characters, made without a download."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

from rl_core.errors import SpecError
from rl_llm.data.parsing import IM_END, IM_START
from rl_llm.data.templates import CHATML_TEMPLATE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["CHARACTERS", "PAD", "UNKNOWN", "char_tokenizer"]

PAD = "<|pad|>"
UNKNOWN = "<|unk|>"
CHARACTERS = string.ascii_letters + string.digits + string.punctuation + " \n\t"
"""The characters of the default vocabulary: printable ASCII."""


def char_tokenizer(characters: str = CHARACTERS) -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are single characters and the special tokens pad, unknown, im_start and im_end.

    ``im_end`` is its eos token, ``chatml_format`` its template.

    Args:
        characters: its vocabulary; any other character is the unknown token.

    Raises:
        SpecError: a character occurs twice, or transformers is not installed.
    """
    if len(set(characters)) != len(characters):
        raise SpecError("char_tokenizer: every character must occur once")
    try:
        from rl_llm.data.char_tokenizer_backend import build
    except ImportError as error:
        raise SpecError(
            "char_tokenizer needs transformers, which is not installed: pip install transformers"
        ) from error
    return build(characters, pad=PAD, unknown=UNKNOWN, controls=(IM_START, IM_END), template=CHATML_TEMPLATE)
