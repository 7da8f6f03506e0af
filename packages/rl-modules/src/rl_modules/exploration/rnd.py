"""Random network distillation: a bonus for observations that a trained network cannot yet predict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.keys import Key, as_key
from rl_modules.exploration.running_moments import RunningMeanStd
from rl_modules.policies.base import PolicyModule
from rl_modules.policies.reading import read_inputs

__all__ = ["RNDModule"]


class RNDModule(PolicyModule):
    r"""Writes an intrinsic reward: how far a predictor is from a fixed random network.

    .. math:: r^i = \frac{1}{F} \| \hat f(o') - f(o') \|^2

    over the F features of an embedding. Only ``RNDLoss`` trains the predictor; it takes the same two networks and the
    same ``obs_rms``, so that both see one normalised observation. With ``reward_rms`` the bonus is divided by the
    running standard deviation of its discounted sums.

    Args:
        predictor_network: a plain network, observation ``[*B, *F]`` to embedding ``[*B, E]``.
        target_network: another of the same output; its weights are frozen here, and stay in the state_dict.
        obs_rms: moments of observations, which are standardised by them and clipped; None: left as they are.
        obs_clip: largest magnitude of a standardised observation.
        reward_rms: moments of discounted sums of the bonus (shape ``()``); None: the bonus is left as it is.
        gamma: discount of these sums.
        in_key: the observation.
        out_key: the bonus, ``[*B, 1]``.

    Burda et al., 2018, Exploration by Random Network Distillation, sections 2.2 and 2.4, arXiv 1810.12894.

    >>> from tensordict import TensorDict
    >>> bonus = RNDModule(nn.Linear(3, 4), nn.Linear(3, 4), obs_rms=RunningMeanStd((3,)))
    >>> data = TensorDict({"next": {"observation": torch.randn(5, 3)}}, [5])
    >>> bonus.update(data)
    >>> bonus(data)["intrinsic_reward"].shape
    torch.Size([5, 1])
    """

    def __init__(
        self,
        predictor_network: nn.Module,
        target_network: nn.Module,
        *,
        obs_rms: RunningMeanStd | None = None,
        obs_clip: float = 5.0,
        reward_rms: RunningMeanStd | None = None,
        gamma: float = 0.99,
        in_key: Key = ("next", "observation"),
        out_key: Key = "intrinsic_reward",
    ) -> None:
        super().__init__()
        if predictor_network is target_network:
            raise ValueError("RNDModule needs two networks; with one the bonus would be 0 everywhere.")
        self._set_keys([as_key(in_key)], [as_key(out_key)])
        self.predictor_network = predictor_network
        self.target_network = target_network.requires_grad_(False)
        self.obs_rms, self.obs_clip = obs_rms, obs_clip
        self.reward_rms, self.gamma = reward_rms, gamma
        self._sums: Tensor | None = None

    def bonus(self, observation: Tensor) -> Tensor:
        """The bonus before its own normalisation, ``[*B, 1]``, without gradient."""
        with torch.no_grad():
            if self.obs_rms is not None:
                observation = self.obs_rms.normalize(observation).clamp(-self.obs_clip, self.obs_clip)
            predicted, wanted = self.predictor_network(observation), self.target_network(observation)
            if predicted.shape != wanted.shape:
                raise SpecError(
                    f"RNDModule: the predictor gives {list(predicted.shape)} and the target {list(wanted.shape)}; they "
                    "must have one shape"
                )
            result: Tensor = (predicted - wanted).square().mean(-1, keepdim=True)
            return result

    def update(self, tensordict: TensorDictBase) -> None:
        """Let the moments see a batch ``[*B, T]`` of collected steps, once each, time last.

        Args:
            tensordict: holds the observations; those of rows that its mask ("collector", "mask") excludes are skipped.
        """
        (observation,) = read_inputs(tensordict, self.in_keys, self)
        mask = tensordict.get(("collector", "mask"), None)
        if self.obs_rms is not None:
            self.obs_rms.update(observation if mask is None else observation[mask])
        if self.reward_rms is not None:
            sums = self._discounted_sums(self.bonus(observation).squeeze(-1))
            self.reward_rms.update(sums if mask is None else sums[mask])

    def _compute(self, *inputs: Any) -> tuple[Any, ...]:
        bonus = self.bonus(inputs[0])
        return (bonus if self.reward_rms is None else self.reward_rms.scale(bonus),)

    def _discounted_sums(self, bonus: Tensor) -> Tensor:
        """``R_t = gamma R_{t-1} + r_t`` along the last dim, carried from batch to batch of one shape; ends ignored."""
        shape: Sequence[int] = bonus.shape[:-1]
        known = self._sums is not None and self._sums.shape == shape
        total = self._sums.to(bonus) if known and self._sums is not None else torch.zeros_like(bonus[..., 0])
        sums = []
        for reward in bonus.unbind(-1):
            total = self.gamma * total + reward
            sums.append(total)
        self._sums = total
        return torch.stack(sums, -1)
