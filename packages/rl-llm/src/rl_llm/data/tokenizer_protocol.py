"""``Tokenizer``: the part of a transformers tokenizer that this package uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

__all__ = ["Tokenizer"]


@runtime_checkable
class Tokenizer(Protocol):
    """What ``transformers.PreTrainedTokenizerBase`` offers and this package reads; any object with these will do."""

    chat_template: Any
    eos_token_id: int | None
    pad_token_id: int | None
    all_special_ids: list[int]

    def __call__(self, text: Any, **kwargs: Any) -> Any:
        """Texts to ``input_ids`` and ``attention_mask``."""

    def encode(self, text: str, **kwargs: Any) -> list[int]:
        """One text to ids."""

    def decode(self, token_ids: Any, **kwargs: Any) -> str:
        """Ids to a text."""

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """The id of a token, None or the unknown id where there is none."""

    def convert_ids_to_tokens(self, ids: Any) -> Any:
        """The token of an id."""

    def get_added_vocab(self) -> dict[str, int]:
        """Tokens that are cut out of a text before anything else, special ones among them."""

    def apply_chat_template(self, conversation: Sequence[Any], **kwargs: Any) -> Any:
        """Render messages."""
