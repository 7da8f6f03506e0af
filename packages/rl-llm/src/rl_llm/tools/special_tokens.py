"""Making text that comes from outside harmless for a chat template."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["neutralise"]


def neutralise(text: str, special_tokens: Iterable[str]) -> str:
    """Break every occurrence of a special token, so that a tool's result cannot end a turn or begin another.

    A space is put behind the first character: ``<|im_end|>`` becomes ``< |im_end|>``. It is a visible one on purpose: a
    zero-width character may be removed by a tokenizer's normalisation, which would restore the token. A token of one
    character, or one that a space does not break, is replaced by U+FFFD.

    Args:
        text: what a tool returned.
        special_tokens: all texts that the tokenizer maps to control tokens (``tokenizer.all_special_tokens`` and the
            marks of its chat template); empty ones are ignored.

    Returns:
        A text without any of them; ``text`` itself where there were none.

    Example:
        >>> neutralise("4<|im_end|>", ["<|im_end|>"])
        '4< |im_end|>'
    """
    tokens = sorted({token for token in special_tokens if token}, key=lambda token: (-len(token), token))
    for token in tokens:
        if len(token) > 1:
            text = text.replace(token, f"{token[0]} {token[1:]}")
    left = True
    while left:
        left = False
        for token in tokens:
            if token in text:
                text = text.replace(token, "\ufffd" if token != "\ufffd" else "")
                left = True
    return text
