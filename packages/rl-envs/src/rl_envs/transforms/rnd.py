"""``RNDTransform``: a reward for observations that a network has not learnt yet."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core import Composite, Transform, Unbounded
from rl_core.errors import KeyMissingError
from rl_core.keys import Key

__all__ = ["RNDTransform"]


class RNDTransform(Transform):
    """Random network distillation: ``r_i = |f_hat(x') - f(x')|^2`` with a fixed random f and a trained f_hat.

    x' is the observation that a step led to, standardised by running statistics and clipped; ``r_i`` is divided by its
    running standard deviation and clipped. (Burda et al. 2018, "Exploration by Random Network Distillation", arXiv
    1810.12894, sections 2.2 to 2.4.)

    The statistics move in training mode alone, by every way in. Train the predictor with :meth:`predictor_error`.

    Args:
        target_network: f; its parameters are frozen here.
        predictor_network: f_hat.
        in_keys: observations; default ``["observation"]``.
        out_keys: the rewards, ``[*B, 1]``; default ``["intrinsic_reward"]``.
        normalize_obs: standardise observations.
        normalize_reward: divide by the running standard deviation.
        obs_clip: bound of standardised observations.
        reward_clip: bound of rewards that were divided.
    """

    def __init__(
        self,
        target_network: nn.Module,
        predictor_network: nn.Module,
        in_keys: Key | Iterable[Key] | None = None,
        out_keys: Key | Iterable[Key] | None = None,
        normalize_obs: bool = True,
        normalize_reward: bool = True,
        obs_clip: float = 5.0,
        reward_clip: float = 5.0,
    ) -> None:
        super().__init__(
            ["observation"] if in_keys is None else in_keys, ["intrinsic_reward"] if out_keys is None else out_keys
        )
        if len(self.in_keys) != 1 or len(self.out_keys) != 1:
            raise ValueError(
                f"RNDTransform has one network, so one observation and one reward; got in_keys={self.in_keys} and "
                f"out_keys={self.out_keys}. Append one RNDTransform for each observation"
            )
        self.target_network, self.predictor_network = target_network.requires_grad_(False), predictor_network
        self.normalize_obs, self.normalize_reward = normalize_obs, normalize_reward
        self.obs_clip, self.reward_clip = obs_clip, reward_clip
        self.register_buffer("obs_moments", torch.zeros(0))  # count, mean, sum of squared deviations
        self.register_buffer("reward_moments", torch.zeros(3))

    obs_moments: Tensor
    reward_moments: Tensor

    # ---------------------------------------------------------------- the networks
    def predictor_error(self, observation: Tensor) -> Tensor:
        """``|f_hat(x) - f(x)|^2`` of standardised observations, ``[*B, 1]``; its mean is the predictor's loss."""
        x = self._standard(observation)
        with torch.no_grad():
            wanted = self.target_network(x)
        return (self.predictor_network(x) - wanted).square().sum(-1, keepdim=True)

    def _standard(self, x: Tensor) -> Tensor:
        x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
        if not self.normalize_obs or not self.obs_moments.numel() or not bool(self.obs_moments[0, 0] > 0):
            return x
        count, mean, squares = self.obs_moments.to(x.device, x.dtype)
        deviation = (squares / count).sqrt().clamp_min(1e-8)
        width = mean.numel()
        flat = ((x.reshape(-1, width) - mean) / deviation).clamp(-self.obs_clip, self.obs_clip)
        return flat.reshape(x.shape)

    @torch.no_grad()
    def _bonus(self, observation: Tensor, batch_dims: int) -> Tensor:
        if self.training and self.normalize_obs:
            width = observation.shape[batch_dims:].numel()
            flat = observation.reshape(-1, width).to(torch.get_default_dtype())
            if self.obs_moments.numel() != 3 * width:
                self.obs_moments = flat.new_zeros(3, width)
            self.obs_moments = _absorbed(self.obs_moments, flat)
        error = self.predictor_error(observation)
        if not self.normalize_reward:
            return error
        if self.training:
            self.reward_moments = _absorbed(self.reward_moments.unsqueeze(-1), error.reshape(-1, 1)).squeeze(-1)
        count, _, squares = self.reward_moments.to(error.device)
        deviation = (squares / count.clamp_min(1)).sqrt()
        scaled = error / deviation if bool(deviation > 1e-8) else error
        return scaled.clamp(-self.reward_clip, self.reward_clip)

    # ---------------------------------------------------------------- TensorDicts
    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        observation = next_tensordict.get(self.in_keys[0], None)
        if observation is None:
            raise KeyMissingError(self._missing(self.in_keys[0], next_tensordict))
        return next_tensordict.set(self.out_keys[0], self._bonus(observation, next_tensordict.batch_dims))

    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return tensordict_reset

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stored steps: the reward under "next" of the observations there."""
        nxt = tensordict.get("next", None)
        if nxt is None:
            raise KeyMissingError(self._missing(("next",), tensordict))
        tensordict.set("next", self._step(tensordict, nxt))
        return tensordict

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """Adds the reward."""
        reward_spec.set(self.out_keys[0], Unbounded(shape=(*reward_spec.shape, 1), device=reward_spec.device))
        return reward_spec

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: object) -> None:
        saved = state_dict.get(prefix + "obs_moments")
        if saved is not None and saved.shape != self.obs_moments.shape:
            self.obs_moments = torch.empty_like(saved)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _absorbed(moments: Tensor, rows: Tensor) -> Tensor:
    """Count, mean and squared deviations ``[3, F]`` with more rows ``[N, F]`` (Chan et al. 1979)."""
    count, mean, squares = moments.to(rows.device, rows.dtype)
    added, new_mean = len(rows), rows.mean(0)
    total = count + added
    shift = new_mean - mean
    squares = squares + (rows - new_mean).square().sum(0) + shift.square() * count * added / total
    return torch.stack([total, mean + shift * added / total, squares])
