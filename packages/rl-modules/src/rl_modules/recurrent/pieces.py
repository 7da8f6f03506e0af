"""The pieces of a batch of sequences between resets, and two ways to run a recurrent network over all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

__all__ = ["Network", "Pieces", "run_chunks", "run_packed"]

Network: TypeAlias = Callable[[Any, list[Tensor]], tuple[Any, list[Tensor]]]
"""From ``[P, T, F]`` or a PackedSequence, and states ``[layers, P, H]``, to outputs of the same form and new states."""


class Pieces:
    """Sequences ``[N, T]`` cut at flags into ``P`` pieces, longest first.

    A piece begins at column 0 and wherever a flag stands. Rows are numbered ``n * T + t``.

    Args:
        starts: bool ``[N, T]``.

    Attributes:
        first: ``[P]`` row of each piece's first step.
        last: ``[P]`` row of each piece's last step.
        lengths: ``[P]`` steps of each piece.
        longest: steps of the first piece.

    >>> pieces = Pieces(torch.tensor([[True, False, False, True, False]]))
    >>> pieces.first.tolist(), pieces.last.tolist()
    ([0, 3], [2, 4])
    """

    def __init__(self, starts: Tensor) -> None:
        cut = starts.clone()
        cut[:, 0] = True
        first = cut.flatten().nonzero().squeeze(-1)
        stop = torch.cat([first[1:], first.new_tensor([cut.numel()])])
        self.lengths, by_length = (stop - first).sort(descending=True, stable=True)
        self.first = first[by_length]
        self.last = self.first + self.lengths - 1
        self.longest = int(self.lengths[0])


def run_packed(network: Network, rows: Tensor, states: list[Tensor], pieces: Pieces) -> tuple[Tensor, list[Tensor]]:
    """One call on a packed sequence: the first steps of all pieces, then the second steps of those that have one, ...

    Args:
        network: the recurrent network.
        rows: inputs ``[N * T, F]``.
        states: before each piece, ``[layers, P, H]``.
        pieces: the pieces.

    Returns:
        Outputs ``[N * T, H]``, and the states after each piece.
    """
    steps = torch.arange(pieces.longest, device=rows.device).unsqueeze(-1)
    present = steps < pieces.lengths
    order = (pieces.first + steps)[present]
    packed, ends = network(PackedSequence(rows.index_select(0, order), present.sum(-1).cpu()), states)
    return packed.data.index_select(0, _inverse(order)), ends


def run_chunks(network: Network, rows: Tensor, states: list[Tensor], pieces: Pieces) -> tuple[Tensor, list[Tensor]]:
    """A few calls on dense blocks: all pieces' lengths are sums of powers of two, and equal powers run together.

    A piece of 37 steps takes part in the blocks of 32, 4 and 1 steps, which hand its state on. On a CPU, where the
    backward pass of packed sequences is slow, this trains two to ten times as fast; nothing is padded, so that
    states and outputs are the same. Arguments and result as of :func:`run_packed`.
    """
    outputs: list[Tensor] = []
    places: list[Tensor] = []
    for bit in reversed(range(pieces.longest.bit_length())):
        size = 1 << bit
        chosen = (pieces.lengths & size).nonzero().squeeze(-1)
        if not len(chosen):
            continue
        done = pieces.lengths[chosen] & -(2 * size)  # the larger powers, which have run
        place = ((pieces.first[chosen] + done).unsqueeze(-1) + torch.arange(size, device=rows.device)).flatten()
        block = rows.index_select(0, place).reshape(-1, size, rows.shape[-1])
        output, ends = network(block, [state.index_select(1, chosen) for state in states])
        states = [state.index_copy(1, chosen, end) for state, end in zip(states, ends, strict=True)]
        outputs.append(output.flatten(0, 1))
        places.append(place)
    return torch.cat(outputs).index_select(0, _inverse(torch.cat(places))), states


def _inverse(order: Tensor) -> Tensor:
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=order.device)
    return inverse
