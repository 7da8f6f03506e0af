"""A policy that makes an action, or a chunk of actions, out of noise, step by step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from tensordict.nn import InteractionType as ExplorationType
from tensordict.nn.probabilistic import interaction_type
from torch import Tensor, nn

from rl_core.errors import PolicyError, SpecError
from rl_core.keys import Key, as_keys
from rl_modules.policies.base import PolicyModule
from rl_modules.policies.safe_module import Keys

__all__ = ["DiffusionActor"]


class DiffusionActor(PolicyModule):
    r"""Takes noise off an action, K times, by a network that predicts the noise in it.

    .. math::
        x_0 = \frac{x^k - \sqrt{1 - \bar\alpha_k} \, \epsilon(x^k, k, s)}{\sqrt{\bar\alpha_k}}, \qquad
        x^{k-1} = \frac{\sqrt{\bar\alpha_{k-1}} \, \beta_k}{1 - \bar\alpha_k} x_0
            + \frac{\sqrt{\alpha_k} (1 - \bar\alpha_{k-1})}{1 - \bar\alpha_k} x^k + \sigma_k z, \qquad
        \sigma_k^2 = \frac{1 - \bar\alpha_{k-1}}{1 - \bar\alpha_k} \beta_k

    from x^K ~ N(0, 1), z ~ N(0, 1), none in the last step; the schedule of alpha is the squared cosine. Under
    exploration types other than RANDOM all draws are 0: the policy is then a function of the observation.
    ``DiffusionBCLoss`` trains it.

    Args:
        network: called as ``network(noisy_action, step, *inputs)`` with ``[*B, *shape]``, int64 ``[*B]`` in [0, K) and
            the in_keys' values; returns the noise, ``[*B, *shape]``.
        action_shape: the shape of what is made: ``(A,)``, or ``(H, A)`` for a chunk of H actions.
        num_steps: K, at least 1.
        in_keys: the observations.
        out_keys: the action.
        clip: estimates of the clean action are kept within [-clip, clip], the range to which actions are scaled; None:
            they are not.
        observation_dims: dimensions of the first observation beyond the batch's: 1 for a vector, 3 for an image.

    Raises:
        SpecError: num_steps or clip is not positive.

    Ho et al., 2020, Denoising Diffusion Probabilistic Models, eq. 7 and algorithm 2, arXiv 2006.11239; Nichol and
    Dhariwal, 2021, Improved Denoising Diffusion Probabilistic Models, eq. 17, arXiv 2102.09672 (the schedule); Chi et
    al., 2023, Diffusion Policy: Visuomotor Policy Learning via Action Diffusion, eq. 4, arXiv 2303.04137.

    >>> class Noise(nn.Linear):
    ...     def forward(self, action, step, observation):
    ...         return super().forward(torch.cat([action, step.unsqueeze(-1) / 10, observation], -1))
    >>> actor = DiffusionActor(Noise(2 + 1 + 3, 2), action_shape=(2,), num_steps=10)
    >>> actor(torch.zeros(5, 3)).shape
    torch.Size([5, 2])
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        action_shape: Sequence[int],
        num_steps: int = 100,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        clip: float | None = 1.0,
        observation_dims: int = 1,
    ) -> None:
        super().__init__()
        if num_steps < 1 or (clip is not None and clip <= 0):
            raise SpecError(f"DiffusionActor needs num_steps >= 1 and clip > 0; got {num_steps} and {clip}")
        keys: list[Key] = ["observation"] if in_keys is None else list(as_keys(in_keys))
        self._set_keys(keys, ["action"] if out_keys is None else as_keys(out_keys))
        self.network = network
        self.action_shape = tuple(action_shape)
        self.num_steps, self.clip, self.observation_dims = num_steps, clip, observation_dims
        self.alpha_bar: Tensor
        self.register_buffer("alpha_bar", squared_cosine(num_steps))

    def predict_noise(self, noisy_action: Tensor, step: Tensor, *inputs: Tensor) -> Tensor:
        """The noise in an action.

        Args:
            noisy_action: ``[*B, *shape]``.
            step: int64 ``[*B]``, in [0, K): how noisy it is.
            *inputs: the observations, ``[*B, ...]``.

        Raises:
            PolicyError: the network returns another shape.
        """
        noise: Tensor = self.network(noisy_action, step, *inputs)
        if noise.shape != noisy_action.shape:
            raise PolicyError(
                f"DiffusionActor: {type(self.network).__name__} must return the noise in an action "
                f"{list(noisy_action.shape)}; got {list(noise.shape)}"
            )
        return noise

    def _compute(self, *inputs: Tensor) -> tuple[Any, ...]:
        draws = interaction_type() in (None, ExplorationType.RANDOM)
        batch = inputs[0].shape[: inputs[0].ndim - self.observation_dims]
        shape = (*batch, *self.action_shape)
        still = self.alpha_bar.new_zeros(shape)
        action = torch.randn_like(still) if draws else still
        for step in range(self.num_steps - 1, -1, -1):
            noise = torch.randn_like(still) if draws and step else still
            action = self._less_noisy(action, step, noise, inputs)
        return (action,)

    def _less_noisy(self, action: Tensor, step: int, noise: Tensor, inputs: Sequence[Tensor]) -> Tensor:
        """x^{k-1} of x^k."""
        bar = self.alpha_bar[step]
        before = self.alpha_bar[step - 1] if step else torch.ones_like(bar)
        index = torch.full(action.shape[: action.ndim - len(self.action_shape)], step, device=action.device)
        clean = (action - (1 - bar).sqrt() * self.predict_noise(action, index, *inputs)) / bar.sqrt()
        if self.clip is not None:
            clean = clean.clamp(-self.clip, self.clip)
        alpha = bar / before
        mean = before.sqrt() * (1 - alpha) * clean + alpha.sqrt() * (1 - before) * action
        return mean / (1 - bar) + ((1 - before) / (1 - bar) * (1 - alpha)).sqrt() * noise


def squared_cosine(num_steps: int) -> Tensor:
    """The share of the clean action's variance that is left at each step, ``[K]``, falling."""
    level = [math.cos((step / num_steps + 0.008) / 1.008 * math.pi / 2) ** 2 for step in range(num_steps + 1)]
    alphas = [1 - min(1 - level[step + 1] / level[step], 0.999) for step in range(num_steps)]
    return torch.tensor(alphas, dtype=torch.float64).cumprod(0).to(torch.get_default_dtype())
