"""`reward_to_go`: what an action earned until the end of its episode."""

from __future__ import annotations

from tensordict import TensorDictBase

__all__ = ["reward_to_go"]


def reward_to_go(rollout: TensorDictBase, gamma: float = 1.0) -> TensorDictBase:
    r"""Write the discounted sum of the rewards that follow, :math:`G_t = r_t + \gamma (1 - d_t) G_{t+1}`.

    An episode that the rollout cuts off counts up to there.

    Args:
        rollout: `[*B, T]` with ("next", "reward") and ("next", "done"), each `[*B, T, 1]`.
        gamma: discount per step.

    Returns:
        The rollout, with "returns" `[*B, T, 1]`.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> steps = {"reward": torch.ones(4, 1), "done": torch.tensor([False, True, False, True]).unsqueeze(-1)}
        >>> reward_to_go(TensorDict({"next": steps}, batch_size=[4]))["returns"].flatten()
        tensor([2., 1., 2., 1.])
    """
    reward, goes_on = rollout["next", "reward"], (~rollout["next", "done"]).float()
    returns = reward.clone()
    for t in reversed(range(reward.shape[-2] - 1)):
        returns[..., t, :] += gamma * goes_on[..., t, :] * returns[..., t + 1, :]
    return rollout.set("returns", returns)
