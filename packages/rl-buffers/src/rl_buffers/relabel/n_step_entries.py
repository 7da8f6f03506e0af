"""What n-step data hold beside reward sum and landing state: how far the step went, and its discount."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core.errors import KeyMissingError, ReplayBufferError
from rl_core.keys import Key, as_key, as_keys, as_path, join, parent_path, sibling

__all__ = ["check_n_step", "next_keys", "write_n_step"]


def check_n_step(n_steps: int, gamma: float) -> None:
    """Raise ReplayBufferError unless ``n_steps >= 1`` and ``0 <= gamma <= 1``."""
    if n_steps < 1 or not 0.0 <= gamma <= 1.0:
        raise ReplayBufferError(f"n_steps must be at least 1 and gamma in [0, 1], got n_steps={n_steps}, gamma={gamma}")


def next_keys(keys: Key | Sequence[Key] | None, default: Key) -> list[Key]:
    """Keys under "next", whether they were given with or without it.

    >>> next_keys(["reward", ("next", "cost")], "reward"), next_keys(None, "reward")
    ([('next', 'reward'), ('next', 'cost')], [('next', 'reward')])
    """
    if isinstance(keys, tuple) and keys[:1] == ("next",):  # one nested key on its own
        keys = [keys]
    named = as_keys(default if keys is None else keys)
    return [as_key(as_path(key)) if as_path(key)[0] == "next" else join("next", key) for key in named]


def write_n_step(batch: TensorDictBase, steps: Tensor, gamma: float, rewards: Sequence[tuple[Key, Tensor]]) -> None:
    """Write reward sums and what losses have to know about them.

    "steps_to_next_obs" (int64, k: the number of rewards in the sum), "gamma" (``gamma ** k``, the discount of the value
    at the landing state), "nonterminal" (whether that state has a value) and ("next", "original_reward") stand in the
    group of each reward, in its shape. Losses of n-step data raise their gamma to "steps_to_next_obs".

    Args:
        batch: data ``[*B]`` whose "next" is already that of the landing step; changed.
        steps: int64 ``[*B]``.
        gamma: discount per step.
        rewards: key and sum of each reward.
    """
    for key, total in rewards:
        original = batch.get(key, None)
        if original is None:
            raise KeyMissingError(f"the data have no {key!r}: name their reward with reward_keys=[...]")
        group = parent_path(as_path(key)[1:])
        count = (
            steps.reshape(*steps.shape, *(1 for _ in total.shape[steps.ndim :])).expand(total.shape).to(total.device)
        )
        terminated = batch.get(sibling(key, "terminated"), None)
        if terminated is None:
            terminated = batch.get(sibling(key, "done"), None)
        batch.set(sibling(key, "original_reward"), original)
        batch.set(key, total)
        batch.set(as_key((*group, "steps_to_next_obs")), count.clone())
        batch.set(as_key((*group, "gamma")), torch.pow(torch.tensor(gamma, dtype=total.dtype), count))
        if terminated is not None:
            batch.set(as_key((*group, "nonterminal")), ~terminated)
