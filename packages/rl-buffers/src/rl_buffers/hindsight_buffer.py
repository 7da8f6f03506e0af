"""HERReplayBuffer: a TensorDictReplayBuffer whose samples are relabelled in hindsight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from rl_buffers.relabel.hindsight import HindsightStrategy, HindsightTransform
from rl_buffers.tensordict_buffer import TensorDictReplayBuffer
from rl_core.keys import Key

__all__ = ["HERReplayBuffer"]


class HERReplayBuffer(TensorDictReplayBuffer):
    """A :class:`TensorDictReplayBuffer` that gives a part of each sample goals which were achieved later.

    The same as a :class:`TensorDictReplayBuffer` with a :class:`HindsightTransform`, whose arguments it takes.

    Args:
        reward_fn: from a TensorDict ``[n]`` of rows with their new goals to rewards ``[n]`` or ``[n, 1]``.
        her_ratio: the part of a sample that is relabelled, in [0, 1].
        strategy: "future", "final", "episode" or "random".
        goal_key: the goal.
        achieved_goal_key: what a state achieves.
        reward_key: where the new reward goes.
        end_key: what ends an episode.
        terminated_fn: like `reward_fn`, whether the row ends its episode under the new goal.
        **kwargs: the arguments of :class:`TensorDictReplayBuffer`.

    Example:
        >>> import torch
        >>> from rl_buffers import LazyTensorStorage
        >>> from tensordict import TensorDict
        >>> def reached(rows):
        ...     return (rows["next", "achieved_goal"] == rows["desired_goal"]).float()
        >>> buffer = HERReplayBuffer(
        ...     reached, her_ratio=1.0, strategy="final", storage=LazyTensorStorage(10), batch_size=50
        ... )
        >>> place = torch.arange(4.0).unsqueeze(-1)
        >>> nxt = {"achieved_goal": place + 1, "reward": torch.zeros(4, 1), "done": place == 3}
        >>> rows = {"achieved_goal": place, "desired_goal": place * 0 + 9, "next": nxt}
        >>> _ = buffer.extend(TensorDict(rows, [4]))
        >>> batch = buffer.sample()
        >>> batch["desired_goal"].unique(), bool((batch["next", "reward"].squeeze(-1) == (batch["index"] == 3)).all())
        (tensor([4.]), True)
    """

    def __init__(
        self,
        reward_fn: Callable[[TensorDictBase], Tensor],
        *,
        her_ratio: float = 0.8,
        strategy: HindsightStrategy | str = "future",
        goal_key: Key = "desired_goal",
        achieved_goal_key: Key = "achieved_goal",
        reward_key: Key = ("next", "reward"),
        end_key: Key = ("next", "done"),
        terminated_fn: Callable[[TensorDictBase], Tensor] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        hindsight = HindsightTransform(
            reward_fn,
            her_ratio=her_ratio,
            strategy=strategy,
            goal_key=goal_key,
            achieved_goal_key=achieved_goal_key,
            reward_key=reward_key,
            end_key=end_key,
            terminated_fn=terminated_fn,
        )
        self.insert_transform(0, hindsight)
