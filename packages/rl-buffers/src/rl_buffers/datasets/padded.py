"""``pad_episodes``: transitions as one zero-padded row per episode, with a mask."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch import Tensor

from rl_buffers.datasets.layout import TRAJECTORY, Leaves, as_tensordict

__all__ = ["MASK", "pad_episodes"]

MASK = ("collector", "mask")


def pad_episodes(leaves: Leaves) -> TensorDict:
    """Rows ``[T]``, whose episodes are runs of one number, as ``[N, T_max]``.

    Returns:
        Every leaf, with zeros after an episode's last transition (but its number everywhere), and the bool entry
        ("collector", "mask"), true for transitions.

    >>> ids = torch.tensor([0, 0, 0, 1])
    >>> padded = pad_episodes({("x",): torch.arange(1, 5), TRAJECTORY: ids})
    >>> padded["x"].tolist(), padded["collector", "mask"].tolist()
    ([[1, 2, 3], [4, 0, 0]], [[True, True, True], [True, False, False]])
    """
    ids, lengths = torch.unique_consecutive(leaves[TRAJECTORY], return_counts=True)
    N, longest = lengths.numel(), int(lengths.max())
    starts = lengths.cumsum(0) - lengths
    time = torch.arange(int(lengths.sum())) - starts.repeat_interleave(lengths)
    places = torch.arange(N).repeat_interleave(lengths) * longest + time

    def padded(leaf: Tensor) -> Tensor:
        out = leaf.new_zeros((N * longest, *leaf.shape[1:]))
        return out.index_copy_(0, places, leaf).view(N, longest, *leaf.shape[1:])

    result = {path: padded(leaf) for path, leaf in leaves.items()}
    result[TRAJECTORY] = ids.unsqueeze(-1).expand(N, longest).clone()
    result[MASK] = torch.arange(longest) < lengths.unsqueeze(-1)
    return as_tensordict(result, (longest,))
