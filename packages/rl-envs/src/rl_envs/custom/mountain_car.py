"""``MountainCarEnv``: gymnasium's MountainCar-v0 in torch."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

import torch
from torch import Tensor

from rl_envs.custom.classic_control import ClassicControlEnv

__all__ = ["MountainCarEnv"]

_LEFT, _RIGHT, _FASTEST, _GOAL = -1.2, 0.6, 0.07, 0.5
_FORCE, _GRAVITY = 0.001, 0.0025


class MountainCarEnv(ClassicControlEnv):
    """Drive a weak car out of a valley, by swinging: push left (0), not at all (1), or right (2).

    Observation and state: place and speed. The reward is -1 a step; an episode terminates at the right hill's top,
    place 0.5. First places are uniform in [-0.6, -0.4), at rest. gymnasium's registered problem is also cut after 200
    steps. The arguments are those of :class:`ClassicControlEnv`.

    Moore, 1990, Efficient Memory-based Learning for Robot Control.
    """

    n_actions: ClassVar[int] = 3

    @property
    def stack_key(self) -> Hashable | None:
        """How actions are written."""
        return self.categorical_action_encoding

    def observation_bound(self) -> Tensor:
        return torch.tensor([-_LEFT, _FASTEST])

    def first_state(self, uniform: Tensor) -> Tensor:
        return torch.stack([uniform[..., 0] * 0.2 - 0.6, torch.zeros_like(uniform[..., 1])], -1)

    def advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        place, speed = state.unbind(-1)
        speed = (speed + (action - 1) * _FORCE - _GRAVITY * (3 * place).cos()).clamp(-_FASTEST, _FASTEST)
        place = (place + speed).clamp(_LEFT, _RIGHT)
        speed = torch.where((place <= _LEFT) & (speed < 0), torch.zeros_like(speed), speed)
        over = ((place >= _GOAL) & (speed >= 0)).unsqueeze(-1)
        following = torch.stack([place, speed], -1)
        return following, torch.full_like(following[..., :1], -1.0), over
