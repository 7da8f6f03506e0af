"""Rows: the entries of a policy's TensorDict as lists with one element per row, and back.

A policy works on lists of rows; a TensorDict may have any batch size, and ragged or dense entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDictBase, lazy_stack
from torch import Tensor

from rl_core.errors import KeyMissingError, SpecError
from rl_core.keys import Key, as_path
from rl_llm.data.containers import LogProbs, Masks, Tokens, rows_of

__all__ = ["batch_rows", "dense_tokens", "is_dense", "nested_stack", "text_rows", "token_rows"]


def batch_rows(tensordict: TensorDictBase) -> TensorDictBase:
    """A view of the same entries with one batch dimension."""
    if tensordict.batch_dims == 1:
        return tensordict
    if tensordict.batch_dims == 0:
        return lazy_stack([tensordict])
    return lazy_stack([row for part in tensordict.unbind(0) for row in batch_rows(part).unbind(0)])


def nested_stack(rows: Sequence[Any], shape: Sequence[int]) -> Any:
    """Rows as a lazy stack of a shape, the inverse of :func:`batch_rows`."""
    if not shape:
        return rows[0]
    size = len(rows) // shape[0]
    return lazy_stack([nested_stack(rows[i * size : (i + 1) * size], shape[1:]) for i in range(shape[0])])


def token_rows(tensordict: TensorDictBase, key: Key, mask_key: Key | None = None) -> list[Tensor] | None:
    """Token ids, masks or log-probabilities of each row as ``[L_i]``; None where there are none.

    Args:
        tensordict: batch size [B].
        key: ``(container, field)``.
        mask_key: a bool mask of dense rows; without one, dense rows are taken whole.
    """
    path = as_path(key)
    container = tensordict.get(path[:-1], None) if len(path) > 1 else tensordict
    if container is None:
        return None
    rows = rows_of(container, path[-1]) if path[-1] in container.keys() else None  # noqa: SIM118 (no plain mapping)
    if rows is None:
        return None
    mask = None if mask_key is None else tensordict.get(mask_key, None)
    if mask is None:
        return rows
    return [row[kept.bool()] for row, kept in zip(rows, mask, strict=True)]


def text_rows(tensordict: TensorDictBase, key: Key) -> list[str]:
    """The text of each row.

    Raises:
        KeyMissingError: there is none.
    """
    value = tensordict.get(key, None)
    if value is None:
        raise KeyMissingError(
            f"the policy reads texts at {key!r}, which is not there; there are {sorted(map(str, tensordict.keys()))}. "
            "Set it, name its place with input_key=..., or choose another input_mode"
        )
    if isinstance(value, str):
        return [value] * tensordict.batch_size[0]
    texts = value.tolist() if isinstance(value, (NonTensorData, NonTensorStack)) else list(value)
    if not all(isinstance(text, str) for text in texts):
        raise SpecError(f"the entry {key!r} holds {type(texts[0]).__name__}, the policy reads one text per row")
    return texts


def is_dense(batch: TensorDictBase, tokens_key: Key, mask_key: Key) -> bool:
    """Whether token ids are one tensor with padding, rather than rows."""
    tokens, mask = _dense(batch, as_path(tokens_key)), _dense(batch, as_path(mask_key))
    return tokens is not None and not _is_ragged(batch, as_path(tokens_key)) and mask is not None


def dense_tokens(batch: TensorDictBase, tokens_key: Key, mask_key: Key) -> tuple[Tensor, Tensor]:
    """Token ids and the mask of real tokens, both ``[*B, L]``.

    Ragged rows are padded on the right; dense ones need a mask, since padding cannot be told from tokens by its id.

    Raises:
        KeyMissingError: no tokens, or dense ones without a mask.
        SpecError: shapes that do not fit.
    """
    path, mask_path = as_path(tokens_key), as_path(mask_key)
    tokens, mask = _dense(batch, path), _dense(batch, mask_path)
    if tokens is not None and (mask is not None or not _is_ragged(batch, path)):
        if mask is None:
            raise KeyMissingError(
                f"{tokens_key!r} is dense {list(tokens.shape)}, so the policy needs {mask_key!r}: bool of that shape, "
                "True on real tokens. A policy or Masks.from_rows(...) writes it from lengths"
            )
        if mask.shape != tokens.shape:
            raise SpecError(
                f"{mask_key!r} must have the shape of {tokens_key!r}, {list(tokens.shape)}; got {list(mask.shape)}"
            )
        return tokens, mask.bool()
    rows = token_rows(batch_rows(batch), tokens_key)
    if rows is None:
        raise KeyMissingError(
            f"the policy scores the tokens at {tokens_key!r}, which are not there; there are "
            f"{sorted(map(str, batch.keys()))}. The policy that generated the batch writes them"
        )
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    lengths = torch.tensor([len(row) for row in rows], device=tokens.device)
    mask = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
    shape = (*batch.batch_size, tokens.shape[1])
    return tokens.view(shape), mask.view(shape)


def _dense(batch: TensorDictBase, path: tuple[str, ...]) -> Tensor | None:
    """The entry where it is one tensor ``[*B, L]``, None where it is ragged or absent."""
    container: Any = batch.get(path[:-1], None) if len(path) > 1 else batch
    if container is None or path[-1] not in container.keys():  # noqa: SIM118
        return None
    try:
        value = container.get(path[-1])
    except RuntimeError:  # rows of different lengths cannot be stacked
        return None
    return value if isinstance(value, Tensor) and not value.is_nested and value.layout == torch.strided else None


def _is_ragged(batch: TensorDictBase, path: tuple[str, ...]) -> bool:
    """Whether a container says that its rows hold no padding, though they may be equally long."""
    container: Any = batch.get(path[:-1], None) if len(path) > 1 else None
    if not isinstance(container, (Tokens, LogProbs, Masks)):
        return False
    flags = container.padded
    return flags is False or (isinstance(flags, list) and not any(flags))
