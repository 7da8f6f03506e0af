"""``FrameSkipTransform``: every action for several steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from rl_core import Columns, RowProgram
from rl_envs.transforms.inner_steps import InnerRows, InnerSteps, ended_in, ended_rows

__all__ = ["FrameSkipTransform"]


class FrameSkipTransform(InnerSteps):
    """Repeats each action, sums the rewards and stops where an episode ends.

    Transforms ahead of it see every step of the simulator, those after it one in ``frame_skip``. In a batch, rows whose
    episode ended keep their end while the others go on. Simulators that repeat actions themselves are faster
    (``GymEnv(id, frame_skip=4)``).

    Args:
        frame_skip: steps per action, at least 1.

    Example:
        >>> from rl_core import TransformedEnv
        >>> from rl_core.testing import CountingEnv
        >>> data = TransformedEnv(CountingEnv(length=5), FrameSkipTransform(2)).rollout(9)  # rewards 1 .. 5
        >>> data["next", "observation"].flatten(), data["next", "reward"].flatten()
        (tensor([2., 4., 5.]), tensor([3., 7., 5.]))
    """

    def __init__(self, frame_skip: int = 1) -> None:
        super().__init__()
        if frame_skip < 1:
            raise ValueError(f"frame_skip is the number of steps per action, at least 1; got {frame_skip}")
        self.frame_skip = frame_skip
        self._given: TensorDictBase | None = None

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._given = tensordict.copy()  # with the actions as the environment before this transform takes them
        return tensordict

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        given, self._given = self._given, None
        if self.frame_skip == 1:
            return next_tensordict
        env = self.inner_env()
        given = tensordict.copy() if given is None else given
        actions = given.select(*env.action_keys)
        rewards = {key: next_tensordict.get(key) for key in env.reward_keys}
        result: Any = next_tensordict
        for _ in range(self.frame_skip - 1):
            ended = ended_in(result)
            if bool(ended.all()):
                break
            root = env.step_mdp(given.exclude("next").set("next", result))
            following = env.step(root.update(actions)).get("next")
            running = ~ended
            rewards = {key: rewards[key] + following.get(key) * _like(running, rewards[key]) for key in rewards}
            result = following if bool(running.all()) else torch.where(running, following, result)
            given = root
        for key, reward in rewards.items():
            result.set(key, reward)
        return result

    # ---------------------------------------------------------------- rows
    @property
    def supports_rows(self) -> bool:
        """True."""
        return True

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """The further steps on columns of one step."""
        inner = InnerRows(self.inner_env(), before)
        single, repeats = not len(before.batch_size), self.frame_skip - 1

        def step(t: int) -> None:
            ended = ended_rows(before, inner.root_flags, t + 1)
            if not repeats or ended.all():
                return
            inner.take(t + 1)
            for key in inner.actions:
                inner.act(key, before[key][t])
            for _ in range(repeats):
                inner.step()
                running = None if single or not ended.any() else ~ended
                for key in inner.rewards:
                    _add(before[key][t : t + 1], inner.own[key], running)
                inner.give(t + 1, running)
                ended = ended | inner.ended()
                if ended.all():
                    return
                inner.carry()

        return RowProgram(step, lambda t, mask: None)


def _add(total: np.ndarray, reward: np.ndarray, rows: np.ndarray | None) -> None:
    if rows is None:
        total += reward
    else:
        total[0][rows] += reward[0][rows]


def _like(rows: Any, value: Any) -> Any:
    return rows.reshape(*rows.shape, *(1,) * (value.ndim - rows.ndim)).to(value.dtype)
