"""``AcrobotEnv``: gymnasium's Acrobot-v1 in torch."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import ClassVar

import torch
from torch import Tensor

from rl_envs.custom.classic_control import ClassicControlEnv

__all__ = ["AcrobotEnv"]

_GRAVITY, _SECONDS = 9.8, 0.2
_SPEEDS = (4 * math.pi, 9 * math.pi)


class AcrobotEnv(ClassicControlEnv):
    r"""Swing a double pendulum above a line, with a torque of -1, 0 or 1 (actions 0, 1, 2) at its middle joint.

    Links of length and mass 1, their centres of mass in the middle, inertia 1. "state": both angles (rad; 0 hangs
    down) and speeds; "observation": cos and sin of each angle, and the speeds. The reward is -1 a step, 0 at the step
    that ends: when :math:`-\cos\theta_1 - \cos(\theta_1 + \theta_2) > 1`. A Runge-Kutta step takes 0.2 s. First states
    are uniform in [-0.1, 0.1). gymnasium's registered problem is also cut after 500 steps. The arguments are those of
    :class:`ClassicControlEnv`.

    Sutton and Barto, 2018, Reinforcement Learning, an Introduction, example 11.3 of the first edition.
    """

    n_actions: ClassVar[int] = 3
    state_key: ClassVar[str] = "state"

    @property
    def stack_key(self) -> Hashable | None:
        """How actions are written."""
        return self.categorical_action_encoding

    def observation_bound(self) -> Tensor:
        return torch.tensor([1.0, 1.0, 1.0, 1.0, *_SPEEDS])

    def state_bound(self) -> Tensor:
        return torch.tensor([math.pi, math.pi, *_SPEEDS])

    def first_state(self, uniform: Tensor) -> Tensor:
        return (uniform - 0.5) * 0.2

    def observe(self, state: Tensor) -> Tensor:
        first, second, *speeds = state.unbind(-1)
        return torch.stack([first.cos(), first.sin(), second.cos(), second.sin(), *speeds], -1)

    def advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dtype = state.dtype
        state = state.double()  # at high speed a step in single precision is off by 1e-4
        torque = (action - 1).double()
        half = _SECONDS / 2
        k1 = _slope(state, torque)
        k2 = _slope(state + half * k1, torque)
        k3 = _slope(state + half * k2, torque)
        k4 = _slope(state + _SECONDS * k3, torque)
        first, second, speed1, speed2 = (state + _SECONDS / 6 * (k1 + 2 * k2 + 2 * k3 + k4)).unbind(-1)
        following = torch.stack(
            [
                _wrapped(first),
                _wrapped(second),
                speed1.clamp(-_SPEEDS[0], _SPEEDS[0]),
                speed2.clamp(-_SPEEDS[1], _SPEEDS[1]),
            ],
            -1,
        )
        over = (-first.cos() - (first + second).cos() > 1.0).unsqueeze(-1)
        return following.to(dtype), torch.where(over, 0.0, -1.0).to(dtype), over


def _wrapped(angle: Tensor) -> Tensor:
    """The angle in [-pi, pi]."""
    return torch.where(angle.abs() > math.pi, torch.remainder(angle + math.pi, 2 * math.pi) - math.pi, angle)


def _slope(state: Tensor, torque: Tensor) -> Tensor:
    """The state's derivative by time, ``[*B, 4]``."""
    first, second, speed1, speed2 = state.unbind(-1)
    cos2, sin2 = second.cos(), second.sin()
    d1 = 3.5 + cos2  # 0.25 + (1 + 0.25 + cos) + 1 + 1
    d2 = 1.25 + 0.5 * cos2
    phi2 = 0.5 * _GRAVITY * (first + second).sin()
    phi1 = -0.5 * speed2 * speed2 * sin2 - speed2 * speed1 * sin2 + 1.5 * _GRAVITY * first.sin() + phi2
    turning2 = (torque + d2 / d1 * phi1 - 0.5 * speed1 * speed1 * sin2 - phi2) / (1.25 - d2 * d2 / d1)
    turning1 = -(d2 * turning2 + phi1) / d1
    return torch.stack([speed1, speed2, turning1, turning2], -1)
