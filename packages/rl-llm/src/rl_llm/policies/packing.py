"""Packing: ragged sequences as one row without padding, each seeing itself only.

``[a0 a1 a2 | b0 b1]`` has position ids ``[0 1 2 | 0 1]`` and a mask that is causal and block-diagonal. A token's
log-probability comes from the token before it *in its own sequence*, so the first one of each sequence has none.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rl_core.errors import SpecError

__all__ = ["Packed", "pack", "packed_from_padded", "unpack_to_padded"]


@dataclass(frozen=True)
class Packed:
    """Sequences in one row of S tokens."""

    tokens: Tensor
    """int64 [1, S]."""
    position_ids: Tensor
    """int64 [1, S], from 0 in each sequence."""
    lengths: Tensor
    """int64 [N]: the sequences' lengths; S is their sum."""

    @property
    def sequence_ids(self) -> Tensor:
        """int64 [S]: which sequence each token belongs to."""
        return torch.arange(len(self.lengths), device=self.lengths.device).repeat_interleave(self.lengths)

    def causal_mask(self) -> Tensor:
        """Bool [1, 1, S, S]: query i sees key j of the same sequence with j <= i.

        >>> pack([torch.tensor([5, 6]), torch.tensor([7])]).causal_mask()[0, 0].int()
        tensor([[1, 0, 0],
                [1, 1, 0],
                [0, 0, 1]], dtype=torch.int32)
        """
        ids = self.sequence_ids
        return (ids[:, None] == ids[None, :]).tril()[None, None]

    def additive_mask(self, dtype: torch.dtype) -> Tensor:
        """[1, 1, S, S]: the same mask as numbers to add to attention scores, 0 or the smallest of the dtype."""
        allowed = self.causal_mask()
        return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(
            ~allowed, torch.finfo(dtype).min
        )

    def scored(self) -> Tensor:
        """int64 [S - N']: places of the tokens that have a predecessor in their sequence, which is one place before."""
        return self.position_ids[0].nonzero().squeeze(-1)

    def split(self, values: Tensor) -> list[Tensor]:
        """One tensor for each sequence.

        Args:
            values: [S, ...].
        """
        return list(values.split(self.lengths.tolist()))


def pack(sequences: list[Tensor]) -> Packed:
    """Put ragged sequences into one row.

    Args:
        sequences: int64 tensors [L_i]; an empty one takes no place.

    Raises:
        SpecError: no token at all, or a tensor that is no row of tokens.

    >>> packed = pack([torch.tensor([5, 6]), torch.tensor([7])])
    >>> packed.tokens, packed.position_ids
    (tensor([[5, 6, 7]]), tensor([[0, 1, 0]]))
    """
    for index, sequence in enumerate(sequences):
        if sequence.ndim != 1 or sequence.dtype != torch.int64:
            raise SpecError(
                f"sequence {index} must be a row of token ids, int64 [L]; got {sequence.dtype} {list(sequence.shape)}"
            )
    if not sum(map(len, sequences)):
        raise SpecError(f"there is no token to pack in {len(sequences)} sequences")
    tokens = torch.cat(sequences)
    lengths = torch.tensor([len(sequence) for sequence in sequences], device=tokens.device)
    return _packed(tokens, lengths)


def packed_from_padded(tokens: Tensor, mask: Tensor) -> Packed:
    """Pack the real tokens of a padded batch, whatever its padding side.

    Args:
        tokens: int64 [B, L].
        mask: bool [B, L], True for real tokens.

    >>> packed_from_padded(torch.tensor([[0, 5], [6, 7]]), torch.tensor([[False, True], [True, True]])).tokens
    tensor([[5, 6, 7]])
    """
    if tokens.shape != mask.shape or tokens.ndim != 2 or mask.dtype != torch.bool:
        raise SpecError(
            f"tokens [B, L] and a bool mask of the same shape are needed, got {list(tokens.shape)} and {mask.dtype} "
            f"{list(mask.shape)}"
        )
    if not bool(mask.any()):
        raise SpecError(f"there is no token to pack: the mask of shape {list(mask.shape)} is False everywhere")
    return _packed(tokens[mask], mask.sum(-1))


def unpack_to_padded(values: Tensor, mask: Tensor, fill: float = 0.0) -> Tensor:
    """The inverse of :func:`packed_from_padded` for any values of packed tokens.

    Args:
        values: [S, ...], in packed order.
        mask: bool [B, L] with S ones.
        fill: what stands at padding.

    Returns:
        [B, L, ...].
    """
    out = values.new_full((*mask.shape, *values.shape[1:]), fill)
    return out.masked_scatter(mask.view(*mask.shape, *[1] * (values.ndim - 1)).expand_as(out), values)


def _packed(tokens: Tensor, lengths: Tensor) -> Packed:
    starts = lengths.cumsum(0) - lengths
    position_ids = torch.arange(len(tokens), device=tokens.device) - starts.repeat_interleave(lengths)
    return Packed(tokens[None], position_ids[None], lengths)
