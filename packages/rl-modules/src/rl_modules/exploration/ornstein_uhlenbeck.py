"""Noise that remembers: an Ornstein-Uhlenbeck process added to continuous actions."""

from __future__ import annotations

import math
from typing import Any

import torch
from tensordict.nn import InteractionType as ExplorationType
from tensordict.nn.probabilistic import interaction_type
from torch import Tensor

from rl_core import CarriedState, StateCarrier, Unbounded
from rl_core.keys import Key, join, sibling
from rl_core.specs import TensorSpec
from rl_modules.exploration.annealing import anneal_, one_action_spec
from rl_modules.policies.base import PolicyModule

__all__ = ["OrnsteinUhlenbeckProcessModule"]


class OrnsteinUhlenbeckProcessModule(StateCarrier, PolicyModule):
    r"""Adds ``eps * x`` to the action, where ``x`` follows an Ornstein-Uhlenbeck process.

    .. math:: x_{t+1} = x_t + \theta (\mu - x_t) dt + \sigma_t \sqrt{dt}\, N(0, 1)

    (Uhlenbeck, Ornstein 1930; used for exploration by Lillicrap et al. 2016, arXiv 1509.02971, section 7.) The process
    starts anew, from ``x0``, on each row whose flag ``is_init`` is True. It is carried in the TensorDict like a
    recurrent state: read at the root, written under "next"; collectors and rollouts add what the environment lacks.

    It acts under ``ExplorationType.RANDOM`` or outside of any exploration context; otherwise actions pass through and
    the process stands still.

    Args:
        spec: spec of the action, a leaf or a Composite that holds the action key.
        eps_init: epsilon at the start.
        eps_end: epsilon after ``annealing_num_steps`` frames, told to :meth:`step`.
        annealing_num_steps: frames from ``eps_init`` to ``eps_end``.
        theta: pull towards mu.
        mu: where the noise is drawn to.
        sigma: strength of the noise at the start of an episode.
        dt: time of a step.
        x0: start of the process; 0 unless given.
        sigma_min: strength after ``n_steps_annealing`` steps of an episode; sigma stays as it is unless given.
        n_steps_annealing: steps from sigma to ``sigma_min``.
        action_key: the action.
        is_init_key: the flag on first steps.
        safe: project noisy actions onto the spec.
        device: device of epsilon.

    >>> from rl_core.specs import Bounded
    >>> OrnsteinUhlenbeckProcessModule(Bounded(-1.0, 1.0, (2,)), annealing_num_steps=100).out_keys
    ['action', ('next', '_ou_prev_noise'), ('next', '_ou_steps')]
    """

    eps: Tensor
    eps_init: Tensor
    eps_end: Tensor

    def __init__(
        self,
        spec: TensorSpec,
        eps_init: float = 1.0,
        eps_end: float = 0.1,
        annealing_num_steps: int = 1000,
        *,
        theta: float = 0.15,
        mu: float = 0.0,
        sigma: float = 0.2,
        dt: float = 1e-2,
        x0: float | Tensor | None = None,
        sigma_min: float | None = None,
        n_steps_annealing: int = 1000,
        action_key: Key = "action",
        is_init_key: Key = "is_init",
        safe: bool = True,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if not 0.0 <= eps_end <= eps_init:
            raise ValueError(
                f"OrnsteinUhlenbeckProcessModule needs 0 <= eps_end <= eps_init; got {eps_end}, {eps_init}."
            )
        if annealing_num_steps < 1 or n_steps_annealing < 1 or dt <= 0:
            raise ValueError(
                "OrnsteinUhlenbeckProcessModule needs annealing_num_steps, n_steps_annealing and dt above 0."
            )
        self._noise_key, self._steps_key = sibling(action_key, "_ou_prev_noise"), sibling(action_key, "_ou_steps")
        self._init_key = is_init_key
        following = [join("next", key) for key in (self._noise_key, self._steps_key)]
        self._set_keys([action_key, self._noise_key, self._steps_key, is_init_key], [action_key, *following])
        self._spec = one_action_spec(spec, self.out_keys[0])
        if self._spec.dtype is None or not self._spec.dtype.is_floating_point:
            raise ValueError(f"OrnsteinUhlenbeckProcessModule disturbs floats; the action's spec is {self._spec!r}.")
        self.theta, self.mu, self.sigma, self.dt, self.x0 = theta, mu, sigma, dt, 0.0 if x0 is None else x0
        self.sigma_min = sigma if sigma_min is None else sigma_min
        self.n_steps_annealing, self.annealing_num_steps = n_steps_annealing, annealing_num_steps
        self.safe = safe
        self.register_buffer("eps_init", torch.tensor(float(eps_init), device=device))
        self.register_buffer("eps_end", torch.tensor(float(eps_end), device=device))
        self.register_buffer("eps", torch.tensor(float(eps_init), device=device))

    @property
    def spec(self) -> TensorSpec:
        """The spec of the action."""
        return self._spec

    def carried_state(self) -> CarriedState:
        """The process, and the number of its steps so far."""
        specs: dict[Key, TensorSpec] = {
            self._noise_key: Unbounded(shape=self._spec.shape, dtype=self._spec.dtype),
            self._steps_key: Unbounded(shape=(1,), dtype=torch.int64),
        }
        return CarriedState(specs, [self._init_key])

    def step(self, frames: int = 1) -> None:
        """Lower epsilon by the share of ``frames`` in the annealing.

        Args:
            frames: environment frames since the last call.
        """
        anneal_(self.eps, self.eps_init, self.eps_end, frames / self.annealing_num_steps)

    def _compute(self, *inputs: Tensor) -> tuple[Any, ...]:
        action, noise, steps, is_init = inputs
        if interaction_type() not in (None, ExplorationType.RANDOM):
            return action, noise, steps
        steps = steps.masked_fill(is_init.reshape(steps.shape), 0)
        fresh = is_init.reshape(*steps.shape[:-1], *[1] * self._spec.ndim)
        noise = torch.where(fresh, torch.as_tensor(self.x0, dtype=noise.dtype, device=noise.device), noise)
        share = (steps.to(noise.dtype) / self.n_steps_annealing).clamp_max(1.0)
        sigma = (self.sigma + (self.sigma_min - self.sigma) * share).reshape(fresh.shape)
        drift = self.theta * (self.mu - noise) * self.dt
        noise = noise + drift + sigma * math.sqrt(self.dt) * torch.randn_like(noise)
        noisy = action + self.eps.to(action) * noise
        if self.safe:
            noisy = self._spec.to(action.device).project(noisy)
        return noisy, noise, steps + 1
