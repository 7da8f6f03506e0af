"""MultiStep: n-step returns of whole batches in the order of time, such as a collector gives."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_buffers.relabel.base import next_node
from rl_buffers.relabel.n_step_entries import check_n_step, next_keys, write_n_step
from rl_core.errors import KeyMissingError
from rl_core.keys import END_NAMES, Key, as_path

__all__ = ["MultiStep"]


class MultiStep(nn.Module):
    """Makes n-step transitions of data ``[*B, T]``, time last; a collector's ``postproc``.

    As :class:`~rl_buffers.MultiStepTransform`, but what follows a row is the rest of the batch: its last n - 1 steps
    get shorter returns.

    Args:
        gamma: discount, in [0, 1].
        n_steps: n, at least 1.
        reward_keys: rewards under "next"; default "reward".
        done_keys: end flags under "next"; default "done".
        mask_key: false for steps that are padding, where the data have it.
        landing_ends: ``False`` keeps the end flags of step t, as TorchRL does.

    Raises:
        ReplayBufferError: `n_steps` or `gamma` is out of range.

    Example:
        >>> from tensordict import TensorDict
        >>> done = torch.tensor([0, 0, 0, 1]).bool().reshape(1, 4, 1)
        >>> nxt = {"reward": torch.ones(1, 4, 1), "done": done, "terminated": done}
        >>> batch = MultiStep(gamma=0.9, n_steps=3)(TensorDict({"next": nxt}, [1, 4]))
        >>> batch["next", "reward"].flatten(), batch["steps_to_next_obs"].flatten()
        (tensor([2.7100, 2.7100, 1.9000, 1.0000]), tensor([3, 3, 2, 1]))
    """

    def __init__(
        self,
        gamma: float,
        n_steps: int,
        *,
        reward_keys: Key | Sequence[Key] | None = None,
        done_keys: Key | Sequence[Key] | None = None,
        mask_key: Key | None = ("collector", "mask"),
        landing_ends: bool = True,
    ) -> None:
        super().__init__()
        check_n_step(n_steps, gamma)
        self.gamma, self.n_steps = gamma, n_steps
        self.reward_keys = next_keys(reward_keys, "reward")
        self.done_keys = next_keys(done_keys, "done")
        self.mask_key = mask_key
        self.landing_ends = landing_ends

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """N-step transitions of the same rows; the data given stay as they are.

        Raises:
            KeyMissingError: the data have no end flag or no reward.
        """
        data = tensordict.copy()
        shape = data.batch_size
        steps = self._steps(data)
        rewards = [(key, self._sums(_found(data, key), steps)) for key in self.reward_keys]
        at = torch.arange(shape.numel(), device=steps.device).reshape(shape) + steps - 1
        moved = next_node(data, type(self).__name__).reshape(-1)[at.flatten()].reshape(shape)
        for key in list(moved.keys(True, True)):
            path = ("next", *as_path(key))
            if path in map(as_path, self.reward_keys) or (not self.landing_ends and path[-1] in END_NAMES):
                moved.set(key, data.get(path))
        data.set("next", moved)
        write_n_step(data, steps, self.gamma, rewards)
        return data

    def _steps(self, data: TensorDictBase) -> Tensor:
        """How many rewards each return has, int64 ``[*B, T]``."""
        shape = data.batch_size
        ends = torch.zeros(shape, dtype=torch.bool, device=_found(data, self.done_keys[0]).device)
        for key in self.done_keys:
            ends |= _found(data, key).reshape(*shape, -1).all(-1)
        mask = None if self.mask_key is None else data.get(self.mask_key, None)
        if mask is not None:
            valid = mask.reshape(shape)
            ends[..., :-1] |= valid[..., :-1] & ~valid[..., 1:]
        time = torch.arange(shape[-1], device=ends.device).expand(shape)
        end = torch.where(ends, time, shape[-1] - 1)
        first_end = end.flip(-1).cummin(-1).values.flip(-1)
        return (first_end - time + 1).clamp(max=self.n_steps)

    def _sums(self, reward: Tensor, steps: Tensor) -> Tensor:
        T, axis = steps.shape[-1], steps.ndim - 1
        total, wide = torch.zeros_like(reward), steps.reshape(*steps.shape, *(1 for _ in reward.shape[steps.ndim :]))
        for k in range(min(self.n_steps, T)):
            ahead = reward.narrow(axis, k, T - k)
            counted = torch.where(wide.narrow(axis, 0, T - k) > k, ahead, torch.zeros_like(ahead))
            total.narrow(axis, 0, T - k).add_(counted, alpha=self.gamma**k)
        return total


def _found(data: TensorDictBase, key: Key) -> Tensor:
    value = data.get(key, None)
    if not isinstance(value, Tensor):
        have = ", ".join(repr(name) for name in data.keys(True, True))
        raise KeyMissingError(
            f"n-step returns need {key!r}; the data have {have}. Name it with reward_keys= or done_keys="
        )
    return value
