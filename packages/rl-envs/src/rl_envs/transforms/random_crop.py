"""``RandomCropTensorDict``: a random part of each sequence."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from rl_core import Transform
from rl_core.errors import EnvError, KeyMissingError
from rl_core.keys import Key

__all__ = ["RandomCropTensorDict"]


class RandomCropTensorDict(Transform):
    """Cuts the same length out of each sequence of stored data, every start being equally likely.

    Args:
        sub_seq_len: the length.
        sample_dim: the batch dimension that is time, negative.
        mask_key: a bool entry ``[*B, T]`` (or with a last dimension 1), True in steps that are real; crops then hold
            real steps alone. They must come first in each sequence.

    Example:
        >>> from tensordict import TensorDict
        >>> data = TensorDict(t=torch.arange(10).expand(4, 10), batch_size=[4, 10])
        >>> RandomCropTensorDict(3)(data)["t"].diff(dim=1).unique()
        tensor([1])
    """

    def __init__(self, sub_seq_len: int, sample_dim: int = -1, mask_key: Key | None = None) -> None:
        super().__init__()
        if sub_seq_len < 1:
            raise ValueError(f"sub_seq_len is the length of a crop, at least 1; got {sub_seq_len}")
        if sample_dim >= 0:
            raise ValueError(f"sample_dim must be negative, since batch dimensions stand in front; got {sample_dim}")
        self.sub_seq_len, self.sample_dim, self.mask_key = sub_seq_len, sample_dim, mask_key

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        raise EnvError("RandomCropTensorDict cuts stored sequences; give it to a buffer: ReplayBuffer(transform=...)")

    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        raise EnvError("RandomCropTensorDict cuts stored sequences; give it to a buffer: ReplayBuffer(transform=...)")

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The crops ``[*B, sub_seq_len]``, a new TensorDict."""
        shape, n = tensordict.batch_size, self.sub_seq_len
        if -self.sample_dim > len(shape):
            raise EnvError(f"sample_dim={self.sample_dim} is no dimension of a batch of size {tuple(shape)}")
        dim = len(shape) + self.sample_dim
        lengths = self._lengths(tensordict, dim)
        if bool((lengths < n).any()):
            raise EnvError(
                f"a crop of {n} steps does not fit into a sequence of {int(lengths.min())}; leave out short ones, or "
                "ask for fewer steps"
            )
        room = lengths - n + 1
        start = (torch.rand(room.shape, device=room.device, dtype=torch.float64) * room).long().clamp(max=room - 1)
        index = start.unsqueeze(-1) + torch.arange(n, device=start.device)
        rows = torch.arange(start.numel(), device=start.device).unsqueeze(-1) * shape[dim]
        moved = tensordict.permute(*(d for d in range(len(shape)) if d != dim), dim)
        flat = moved.reshape(-1)[(index.reshape(-1, n) + rows).reshape(-1)]
        lead = [size for d, size in enumerate(shape) if d != dim]
        cut = flat.reshape(*lead, n)
        back = [*range(dim), len(shape) - 1, *range(dim, len(shape) - 1)]
        return cut.permute(*back) if dim != len(shape) - 1 else cut

    def _lengths(self, tensordict: TensorDictBase, dim: int) -> torch.Tensor:
        shape = tensordict.batch_size
        lead = [size for d, size in enumerate(shape) if d != dim]
        if self.mask_key is None:
            return torch.full(lead, shape[dim], dtype=torch.int64, device=tensordict.device)
        mask = tensordict.get(self.mask_key, None)
        if mask is None:
            raise KeyMissingError(self._missing(self.mask_key, tensordict))
        return mask.reshape(shape).sum(dim)
