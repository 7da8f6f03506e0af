"""The recurrent state-space model with normal latents: Dreamer's prior and posterior."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.specs import TensorSpec
from rl_modules.networks.normal_params import NormalParamExtractor
from rl_modules.world_models.parts import JointLinear, action_width, linear, recurrent_step

__all__ = ["RSSMPosterior", "RSSMPrior"]


class RSSMPrior(nn.Module):
    r"""Predicts the next latent state from the last one and an action, without looking.

    .. math:: h' = \mathrm{GRU}(f(s, a), h), \qquad s' \sim N(\mu(h'), \sigma(h'))

    Args:
        action_spec: spec of the action, whose last dimension counts; discrete actions are one-hot.
        hidden_dim: units of the hidden layers.
        rnn_hidden_dim: H, size of the belief.
        state_dim: S, size of the state.
        scale_lb: smallest standard deviation.
        action_dim: size of the action where there is no spec.
        device: of the parameters.

    Raises:
        SpecError: the action's size is unknown, or it is an index.

    Hafner et al., 2019, Learning Latent Dynamics for Planning from Pixels, eq. 4, arXiv 1811.04551.
    Hafner et al., 2020, Dream to Control, appendix A, arXiv 1912.01603.

    >>> prior = RSSMPrior(action_dim=2, hidden_dim=16, rnn_hidden_dim=8, state_dim=3)
    >>> [tuple(out.shape) for out in prior(torch.zeros(5, 3), torch.zeros(5, 8), torch.zeros(5, 2))]
    [(5, 3), (5, 3), (5, 3), (5, 8)]
    """

    def __init__(
        self,
        action_spec: TensorSpec | None = None,
        hidden_dim: int = 200,
        rnn_hidden_dim: int = 200,
        state_dim: int = 30,
        scale_lb: float = 0.1,
        action_dim: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        actions = action_width(action_spec, action_dim, type(self).__name__)
        self.state_dim, self.rnn_hidden_dim, self.action_dim = state_dim, rnn_hidden_dim, actions
        self.projection = nn.Sequential(nn.Linear(state_dim + actions, hidden_dim, device=device), nn.ELU())
        self.rnn = nn.GRUCell(hidden_dim, rnn_hidden_dim, device=device)
        self.head = nn.Sequential(
            nn.Linear(rnn_hidden_dim, hidden_dim, device=device),
            nn.ELU(),
            nn.Linear(hidden_dim, 2 * state_dim, device=device),
            NormalParamExtractor(scale_lb=scale_lb, scale_mapping="softplus"),
        )

    def forward(
        self, state: Tensor, belief: Tensor, action: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One step.

        Args:
            state: [*B, S].
            belief: [*B, H].
            action: [*B, A].
            noise: standard normal [*B, S] to sample with; drawn where None.

        Returns:
            Mean, standard deviation and a sample with gradients of the prior [*B, S], and the next belief [*B, H].
        """
        belief = self.next_belief(state, belief, action)
        return (*self.predict(belief, noise), belief)

    def next_belief(self, state: Tensor, belief: Tensor, action: Tensor) -> Tensor:
        """The belief after an action."""
        inputs = self.projection(torch.cat([state, action.to(state.dtype)], -1))
        return recurrent_step(self.rnn, inputs, belief)

    def parameters_of(self, belief: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the state, given the belief."""
        mean, std = self.head(belief)
        return mean, std

    def predict(self, belief: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, standard deviation and a sample of the state, given the belief."""
        mean, std = self.parameters_of(belief)
        return mean, std, _sample(mean, std, noise)


class RSSMPosterior(nn.Module):
    r"""Infers the latent state from the belief and an observation, ``s ~ N(mu(h, e), sigma(h, e))``.

    Args:
        hidden_dim: units of the hidden layer.
        state_dim: S, size of the state.
        scale_lb: smallest standard deviation.
        rnn_hidden_dim: H, size of the belief; found at the first call where None.
        obs_embed_dim: E, size of the observation's embedding; found at the first call where None.
        device: of the parameters.

    Hafner et al., 2019, eq. 4, arXiv 1811.04551.

    >>> posterior = RSSMPosterior(hidden_dim=16, state_dim=3, rnn_hidden_dim=8, obs_embed_dim=4)
    >>> [tuple(out.shape) for out in posterior(torch.zeros(5, 8), torch.zeros(5, 4))]
    [(5, 3), (5, 3), (5, 3)]
    """

    def __init__(
        self,
        hidden_dim: int = 200,
        state_dim: int = 30,
        scale_lb: float = 0.1,
        rnn_hidden_dim: int | None = None,
        obs_embed_dim: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if (rnn_hidden_dim is None) != (obs_embed_dim is None):
            raise SpecError("RSSMPosterior takes both of rnn_hidden_dim and obs_embed_dim, or finds both at a call")
        self.state_dim = state_dim
        self.joint = JointLinear(rnn_hidden_dim, obs_embed_dim, hidden_dim, device=device)
        self.head = nn.Sequential(
            nn.ELU(),
            linear(hidden_dim, 2 * state_dim, device=device),
            NormalParamExtractor(scale_lb=scale_lb, scale_mapping="softplus"),
        )

    def forward(self, belief: Tensor, obs_embedding: Tensor, noise: Tensor | None = None) -> tuple[Tensor, ...]:
        """One step, or all at once.

        Args:
            belief: [*B, H].
            obs_embedding: [*B, E].
            noise: standard normal [*B, S] to sample with; drawn where None.

        Returns:
            Mean and standard deviation of the posterior, and a sample of it with gradients, each [*B, S].
        """
        return self.infer(belief, self.joint.second(belief, obs_embedding), noise)

    def embed(self, belief: Tensor, obs_embedding: Tensor) -> Tensor:
        """What of the first layer depends on the observation alone: it is computed for a whole sequence at once."""
        return self.joint.second(belief, obs_embedding)

    def infer(self, belief: Tensor, embedded: Tensor, noise: Tensor | None = None) -> tuple[Tensor, ...]:
        """As :meth:`forward`, from what :meth:`embed` gave."""
        mean, std = self.head(self.joint.first(belief) + embedded)
        return mean, std, _sample(mean, std, noise)


def _sample(mean: Tensor, std: Tensor, noise: Tensor | None) -> Tensor:
    return torch.addcmul(mean, std, torch.randn_like(mean) if noise is None else noise)
