"""``CartPoleEnv``: gymnasium's CartPole-v1 in torch."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import ClassVar

import torch
from torch import Tensor

from rl_envs.custom.classic_control import ClassicControlEnv

__all__ = ["CartPoleEnv"]

_GRAVITY, _POLE_MASS, _TOTAL_MASS, _HALF_LENGTH = 9.8, 0.1, 1.1, 0.5
_FORCE, _SECONDS = 10.0, 0.02
_FARTHEST, _STEEPEST = 2.4, math.radians(12)


class CartPoleEnv(ClassicControlEnv):
    """Balance a pole on a cart by pushing it left (0) or right (1).

    Observation and state: the cart's place (m) and speed, the pole's angle (rad, 0 upright) and speed. The reward is 1
    a step; an episode terminates when the cart is more than 2.4 m or the pole more than 12 degrees off. Constants,
    Euler steps of 0.02 s and first states (uniform in [-0.05, 0.05)) are those of gymnasium, whose registered problem
    is also cut after 500 steps. The arguments are those of :class:`ClassicControlEnv`.

    Example:
        >>> env = CartPoleEnv(num_envs=1024)
        >>> env.rollout(10, break_when_any_done=False)["observation"].shape
        torch.Size([1024, 10, 4])

    Barto, Sutton and Anderson, 1983, Neuronlike Adaptive Elements That Can Solve Difficult Learning Control Problems.
    """

    n_actions: ClassVar[int] = 2

    @property
    def stack_key(self) -> Hashable | None:
        """How actions are written."""
        return self.categorical_action_encoding

    def observation_bound(self) -> Tensor:
        return torch.tensor([2 * _FARTHEST, math.inf, 2 * _STEEPEST, math.inf])

    def first_state(self, uniform: Tensor) -> Tensor:
        return (uniform - 0.5) * 0.1

    def advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        _, speed, angle, turn = state.unbind(-1)
        cos, sin = angle.cos(), angle.sin()
        force = (action * 2 - 1) * _FORCE
        pole = _POLE_MASS * _HALF_LENGTH
        push = (force + pole * turn * turn * sin) / _TOTAL_MASS
        inertia = _HALF_LENGTH * (4.0 / 3.0 - _POLE_MASS * cos * cos / _TOTAL_MASS)
        turning = (_GRAVITY * sin - cos * push) / inertia
        driving = push - pole * turning * cos / _TOTAL_MASS
        change = torch.stack([speed, driving, turn, turning], -1)
        following = state + _SECONDS * change
        over = (following[..., 0:1].abs() > _FARTHEST) | (following[..., 2:3].abs() > _STEEPEST)
        return following, torch.ones_like(following[..., :1]), over
