"""``Text``, ``Tokens``, ``LogProbs``, ``Masks``, ``ChatHistory``: what one turn of a language model reads and writes.

They stand under "text", "tokens", "log_probs", "masks" and "history" of a TensorDict ``[*B]``. Rows of tokens differ in
length: a container is a lazy stack of rows (``padded=False``) or holds dense ``[*B, L]`` tensors (``padded=True``).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal

import torch
from tensordict import TensorClass, TensorDict, lazy_stack
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rl_core.errors import KeyMissingError, SpecError
from rl_llm.data.history import History
from rl_llm.data.tokenizer_protocol import Tokenizer

__all__ = ["ChatHistory", "LogProbs", "Masks", "Text", "Tokens", "ragged_rows", "rows_of"]

Side = Literal["left", "right"]


def ragged_rows(cls: type[Any], fields: dict[str, Sequence[Tensor] | None]) -> Any:
    """A container ``[B]`` from lists of B tensors ``[L_i]``, one list per field; ``padded`` is False.

    Raises:
        SpecError: the lists differ in length, or all are None.
    """
    given = {name: list(rows) for name, rows in fields.items() if rows is not None}
    sizes = {name: len(rows) for name, rows in given.items()}
    if not sizes or len(set(sizes.values())) != 1:
        raise SpecError(f"{cls.__name__} needs lists of one length, one tensor per row; got {sizes or 'none'}")
    count = next(iter(sizes.values()))
    if not count:
        raise SpecError(f"{cls.__name__} needs at least one row; got empty lists")
    # By way of its TensorDict a row costs a third of what the constructor takes, which goes through every field.
    rows = [
        cls.from_tensordict(TensorDict({name: column[i] for name, column in given.items()}, []), {"padded": False})
        for i in range(count)
    ]
    return lazy_stack(rows)


def dense_rows(
    cls: type[Any], fields: dict[str, Sequence[Tensor] | None], padding: dict[str, Any], side: dict[str, Side]
) -> Any:
    """A container ``[B]`` of dense tensors ``[B, L]`` from lists of rows; ``padded`` is True."""
    given = {name: list(rows) for name, rows in fields.items() if rows is not None}
    if not given:
        raise SpecError(f"{cls.__name__} needs the rows of at least one field; got none")
    dense = {
        name: pad_sequence(rows, batch_first=True, padding_value=padding[name], padding_side=side[name])
        for name, rows in given.items()
    }
    return cls(**dense, padded=True, batch_size=[len(next(iter(given.values())))])


def rows_of(container: Any, field: str, lengths: Sequence[int] | None = None) -> list[Tensor] | None:
    """The rows of a ragged field as a list of ``[L_i]``; of a padded one, whole rows ``[L]``. None where not set.

    Args:
        container: Tokens, LogProbs or Masks; batch dimensions are flattened.
        field: "prompt", "response", "full", "all_assistant_mask", ...
        lengths: keep so many positions of each row, from the left (dense, right-padded data).
    """
    rows = [row.get(field, None) for row in _single_rows(container)]
    if any(row is None for row in rows):
        return None
    return rows if lengths is None else [row[:length] for row, length in zip(rows, lengths, strict=True)]


def _single_rows(container: Any) -> list[Any]:
    """Every row of a container, batch dimensions flattened."""
    if container.batch_dims == 0:
        return [container]
    return [single for row in container.unbind(0) for single in _single_rows(row)]


def _required(container: Any, field: str) -> list[Tensor]:
    rows = rows_of(container, field)
    if rows is None:
        raise KeyMissingError(f"{type(container).__name__} has no {field!r}; set it before converting")
    return rows


class Text(TensorClass, nocast=True):
    """Texts of one turn: what the policy read, what it wrote, and both; each one ``str`` per row."""

    prompt: Any = None
    """str or list of str."""
    response: Any = None
    """str or list of str."""
    full: Any = None
    """str or list of str."""

    def texts(self, field: str = "full") -> list[str]:
        """One field as a list with one text per row."""
        value = self.get(field, None)
        if value is None:
            raise KeyMissingError(f"Text has no {field!r}; set it before reading it")
        if isinstance(value, str):
            return [value] * max(1, self.numel())
        return [str(item) for item in value]

    def to_tokens(self, tokenizer: Tokenizer) -> Tokens:
        """Every field that is set, encoded on its own without further special tokens; ragged."""
        fields: dict[str, Sequence[Tensor] | None] = {}
        for name in ("prompt", "response", "full"):
            if self.get(name, None) is not None:
                encoded = [tokenizer.encode(text, add_special_tokens=False) for text in self.texts(name)]
                fields[name] = [torch.tensor(ids, dtype=torch.int64) for ids in encoded]
        result: Tokens = ragged_rows(Tokens, fields)
        return result

    def to_history(self, field: str = "full", *, chat_template_name: str | None = None) -> History:
        """One field parsed into messages, ``[B, T]``; see :meth:`History.from_text`."""
        return History.from_text(self.texts(field), chat_template_name=chat_template_name)


class Tokens(TensorClass, nocast=True):
    """Token ids of one turn, int64: ``full`` is ``prompt`` followed by ``response``."""

    prompt: Tensor | None = None
    response: Tensor | None = None
    full: Tensor | None = None
    padded: bool | None = None

    @classmethod
    def from_rows(
        cls,
        *,
        prompt: Sequence[Tensor] | None = None,
        response: Sequence[Tensor] | None = None,
        full: Sequence[Tensor] | None = None,
        pad_token_id: int | None = None,
    ) -> Tokens:
        """Tokens ``[B]`` from lists of rows; with ``pad_token_id`` dense, prompts padded left, the others right."""
        fields: dict[str, Sequence[Tensor] | None] = {"prompt": prompt, "response": response, "full": full}
        if pad_token_id is None:
            ragged: Tokens = ragged_rows(cls, fields)
            return ragged
        sides: dict[str, Side] = {"prompt": "left", "response": "right", "full": "right"}
        dense: Tokens = dense_rows(cls, fields, dict.fromkeys(fields, pad_token_id), sides)
        return dense

    def rows(self, field: str = "full") -> list[Tensor]:
        """One field as a list of ``[L_i]``."""
        return _required(self, field)

    def to_text(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = False) -> Text:
        """Every field that is set, decoded."""
        self._refuse_padded("to_text")
        fields: dict[str, Any] = {}
        for name in ("prompt", "response", "full"):
            rows = rows_of(self, name)
            if rows is not None:
                fields[name] = [tokenizer.decode(row.tolist(), skip_special_tokens=skip_special_tokens) for row in rows]
        return Text(**fields, batch_size=self.batch_size)

    def to_history(
        self, tokenizer: Tokenizer, field: str = "full", *, chat_template_name: str | None = None
    ) -> History:
        """One field decoded and parsed into messages, ``[B, T]``."""
        self._refuse_padded("to_history")
        return self.to_text(tokenizer).to_history(field, chat_template_name=chat_template_name)

    def _refuse_padded(self, what: str) -> None:
        flags = self.padded
        if flags is True or (isinstance(flags, list) and any(flags)):
            raise SpecError(
                f"Tokens.{what} of padded tokens: padding cannot be told from tokens by its id. Keep the rows ragged "
                "(padded=False), or cut them to their lengths with Masks.all_attention_mask first"
            )


class LogProbs(TensorClass, nocast=True):
    """Log-probabilities under the sampling policy, float: position t scores token t; 0.0 where it was not generated."""

    prompt: Tensor | None = None
    response: Tensor | None = None
    full: Tensor | None = None
    padded: bool | None = None

    @classmethod
    def from_rows(
        cls,
        *,
        prompt: Sequence[Tensor] | None = None,
        response: Sequence[Tensor] | None = None,
        full: Sequence[Tensor] | None = None,
        pad: bool = False,
    ) -> LogProbs:
        """LogProbs ``[B]`` from lists of rows; with ``pad`` dense, padded with 0.0 on the sides that Tokens uses."""
        fields: dict[str, Sequence[Tensor] | None] = {"prompt": prompt, "response": response, "full": full}
        if not pad:
            ragged: LogProbs = ragged_rows(cls, fields)
            return ragged
        sides: dict[str, Side] = {"prompt": "left", "response": "right", "full": "right"}
        dense: LogProbs = dense_rows(cls, fields, dict.fromkeys(fields, 0.0), sides)
        return dense

    def rows(self, field: str = "full") -> list[Tensor]:
        """One field as a list of ``[L_i]``."""
        return _required(self, field)


class Masks(TensorClass, nocast=True):
    """Masks over ``Tokens.full``, bool; made from lengths and provenance, never from token ids.

    ``all_attention_mask``: real tokens. ``all_assistant_mask``: tokens generated by the policy, end-of-turn tokens
    among them. ``prompt_assistant_mask`` has the shape of ``Tokens.prompt``: which of its tokens the policy generated
    at earlier turns; the environment writes it, and a policy puts ``ones(len(response))`` after it.
    """

    all_attention_mask: Tensor | None = None
    all_assistant_mask: Tensor | None = None
    prompt_assistant_mask: Tensor | None = None
    padded: bool | None = None

    @classmethod
    def from_rows(
        cls,
        *,
        all_attention_mask: Sequence[Tensor] | None = None,
        all_assistant_mask: Sequence[Tensor] | None = None,
        prompt_assistant_mask: Sequence[Tensor] | None = None,
        pad: bool = False,
    ) -> Masks:
        """Masks ``[B]`` from lists of rows; with ``pad`` dense, padded with False on the sides that Tokens uses."""
        fields: dict[str, Sequence[Tensor] | None] = {
            "all_attention_mask": all_attention_mask,
            "all_assistant_mask": all_assistant_mask,
            "prompt_assistant_mask": prompt_assistant_mask,
        }
        if not pad:
            ragged: Masks = ragged_rows(cls, fields)
            return ragged
        sides: dict[str, Side] = dict.fromkeys(fields, "right")
        sides["prompt_assistant_mask"] = "left"
        dense: Masks = dense_rows(cls, fields, dict.fromkeys(fields, False), sides)
        return dense

    def rows(self, field: str = "all_assistant_mask") -> list[Tensor]:
        """One field as a list of ``[L_i]``."""
        return _required(self, field)


class ChatHistory(TensorClass, nocast=True):
    """Messages of one turn: what the policy read, its answer, and both; each a History with one more batch dim."""

    prompt: Any = None
    """History ``[*B, T]``."""
    response: Any = None
    """History ``[*B, T]``."""
    full: Any = None
    """History ``[*B, T]``."""

    def __post_init__(self) -> None:
        """A History without the dimension of messages gets one."""
        for name in ("prompt", "response", "full"):
            value: Any = self.get(name, None)
            if value is not None and value.batch_dims == self.batch_dims:
                warnings.warn(
                    f"ChatHistory.{name} has batch size {tuple(value.batch_size)}, that of the container; the messages "
                    "need a dimension of their own, so one of size 1 is added at the end",
                    stacklevel=3,
                )
                setattr(self, name, value.unsqueeze(-1))

    def to_text(self, tokenizer: Tokenizer | None = None, *, chat_template_name: str | None = None) -> Text:
        """``prompt`` rendered with the header of the policy's turn, ``full`` without one."""
        fields: dict[str, Any] = {}
        for name in ("prompt", "full"):
            history: Any = self.get(name, None)
            if history is not None:
                fields[name] = history.apply_chat_template(
                    tokenizer=tokenizer,
                    add_generation_prompt=name == "prompt",
                    chat_template_name=chat_template_name,
                    tokenize=False,
                )
        return Text(**fields, batch_size=self.batch_size)

    def to_tokens(self, tokenizer: Tokenizer, *, chat_template_name: str | None = None) -> Tokens:
        """``prompt`` and ``full`` rendered and encoded; ragged."""
        return self.to_text(tokenizer, chat_template_name=chat_template_name).to_tokens(tokenizer)
