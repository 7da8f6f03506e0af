"""The recurrent state-space model with categorical latents: DreamerV3's prior and posterior."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.specs import TensorSpec
from rl_modules.distributions.one_hot import OneHotCategorical
from rl_modules.world_models.block_gru import DreamerV3BlockGRUCell
from rl_modules.world_models.parts import JointLinear, RMSNorm, action_width, recurrent_step

__all__ = ["RSSMPosteriorV3", "RSSMPriorV3", "mix_uniform", "sample_classes"]


def mix_uniform(logits: Tensor, unimix: float) -> Tensor:
    """Log-probabilities of the mixture with a uniform share ``unimix``; with 0 the logits themselves.

    Hafner et al., 2023, Mastering Diverse Domains through World Models, page 5, arXiv 2301.04104.

    >>> mix_uniform(torch.tensor([100.0, 0.0]), 0.02).exp()
    tensor([0.9900, 0.0100])
    """
    if not unimix:
        return logits
    return torch.lerp(logits.softmax(-1), torch.full_like(logits, 1 / logits.shape[-1]), unimix).log()


def sample_classes(logits: Tensor, uniform: Tensor | None = None) -> Tensor:
    """One class of each variable as a row with a single 1, and straight through it the gradient of the probabilities.

    Args:
        logits: [*B, V, C].
        uniform: numbers in [0, 1) [*B, V] that decide; drawn where None.

    Returns:
        [*B, V * C].

    Hafner et al., 2021, Mastering Atari with Discrete World Models, algorithm 1, arXiv 2010.02193.
    """
    if uniform is None:
        return OneHotCategorical(logits=logits).rsample().flatten(-2)
    probs = logits.softmax(-1)
    index = (probs.cumsum(-1) <= uniform.unsqueeze(-1)).sum(-1).clamp_max(logits.shape[-1] - 1)
    hard = F.one_hot(index, logits.shape[-1]).to(probs.dtype)
    return (hard + probs - probs.detach()).flatten(-2)


class RSSMPriorV3(nn.Module):
    r"""Predicts the next latent state from the last one and an action, without looking.

    .. math:: h' = f(h, s, a), \qquad s' \sim \mathrm{Cat}(l(h'))^V

    The state holds V one-hot rows of C classes, V * C numbers. Actions longer than 1 are scaled to length 1 in each
    component, ``a / max(1, |a|)``.

    Args:
        action_spec: spec of the action, whose last dimension counts; discrete actions are one-hot.
        hidden_dim: units of the hidden layers.
        rnn_hidden_dim: H, size of the belief.
        num_categoricals: V.
        num_classes: C.
        action_dim: size of the action where there is no spec.
        device: of the parameters.
        action_shape: the action's shape where there is neither.
        recurrent_model: "gru", or "block_gru", whose matrices are block-diagonal (DreamerV3's).
        num_blocks: blocks of it.
        num_layers: hidden layers of it.
        prior_num_layers: hidden layers between belief and logits.
        norm_eps: of the norms.
        unimix: uniform share that is mixed into the distribution; its logits are then log-probabilities.

    Raises:
        SpecError: the action's size is unknown, or it is an index, or an option is not admitted.

    Hafner et al., 2023, Mastering Diverse Domains through World Models, eq. 3, arXiv 2301.04104.

    >>> prior = RSSMPriorV3(action_dim=2, hidden_dim=16, rnn_hidden_dim=8, num_categoricals=3, num_classes=4)
    >>> [tuple(out.shape) for out in prior(torch.zeros(5, 12), torch.zeros(5, 8), torch.zeros(5, 2))]
    [(5, 3, 4), (5, 12), (5, 8)]
    """

    def __init__(
        self,
        action_spec: TensorSpec | None = None,
        hidden_dim: int = 512,
        rnn_hidden_dim: int = 512,
        num_categoricals: int = 32,
        num_classes: int = 32,
        action_dim: int | None = None,
        device: torch.device | str | None = None,
        *,
        action_shape: Sequence[int] | None = None,
        recurrent_model: Literal["gru", "block_gru"] = "gru",
        num_blocks: int = 8,
        num_layers: int = 1,
        prior_num_layers: int = 2,
        norm_eps: float = 1e-4,
        unimix: float = 0.0,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if recurrent_model not in ("gru", "block_gru"):
            raise SpecError(f"{name}: recurrent_model is 'gru' or 'block_gru'; got {recurrent_model!r}")
        actions = action_width(action_spec, action_shape if action_dim is None else action_dim, name)
        self.num_categoricals, self.num_classes, self.unimix = num_categoricals, num_classes, check_share(unimix, name)
        self.state_dim, self.rnn_hidden_dim, self.action_dim = num_categoricals * num_classes, rnn_hidden_dim, actions
        inputs = self.state_dim + actions
        self.projection: nn.Module = nn.Identity()
        if recurrent_model == "gru":
            self.projection = _hidden_layers(inputs, hidden_dim, 1, norm_eps, device)
            self.rnn: nn.Module = nn.GRUCell(hidden_dim, rnn_hidden_dim, device=device)
        else:
            self.rnn = DreamerV3BlockGRUCell(
                inputs,
                rnn_hidden_dim,
                projection_size=hidden_dim,
                num_blocks=num_blocks,
                num_layers=num_layers,
                norm_eps=norm_eps,
                device=device,
            )
        self.head = nn.Sequential(
            _hidden_layers(rnn_hidden_dim, hidden_dim, prior_num_layers, norm_eps, device),
            nn.Linear(hidden_dim if prior_num_layers else rnn_hidden_dim, self.state_dim, device=device),
            nn.Unflatten(-1, (num_categoricals, num_classes)),
        )

    def forward(
        self, state: Tensor, belief: Tensor, action: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One step.

        Args:
            state: [*B, V * C].
            belief: [*B, H].
            action: [*B, A].
            noise: numbers in [0, 1) [*B, V] to sample with; drawn where None.

        Returns:
            Logits of the prior [*B, V, C], a sample of it with gradients [*B, V * C], and the next belief [*B, H].
        """
        belief = self.next_belief(state, belief, action)
        return (*self.predict(belief, noise), belief)

    def next_belief(self, state: Tensor, belief: Tensor, action: Tensor) -> Tensor:
        """The belief after an action."""
        action = action.to(state.dtype)
        inputs = self.projection(torch.cat([state, action / action.detach().abs().clamp_min(1)], -1))
        if isinstance(self.rnn, nn.GRUCell):
            return recurrent_step(self.rnn, inputs, belief)
        following: Tensor = self.rnn(inputs, belief)
        return following

    def parameters_of(self, belief: Tensor) -> tuple[Tensor]:
        """Logits of the state, given the belief."""
        return (mix_uniform(self.head(belief), self.unimix),)

    def predict(self, belief: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits and a sample of the state, given the belief."""
        (logits,) = self.parameters_of(belief)
        return logits, sample_classes(logits, noise)


class RSSMPosteriorV3(nn.Module):
    r"""Infers the latent state from the belief and an observation, ``s ~ Cat(l(h, e))^V``.

    Args:
        hidden_dim: units of the hidden layers.
        num_categoricals: V.
        num_classes: C.
        rnn_hidden_dim: H, size of the belief; found at the first call where None.
        obs_embed_dim: E, size of the observation's embedding; found at the first call where None.
        device: of the parameters.
        use_rms_norm: norm the hidden layers, as DreamerV3 does.
        num_layers: hidden layers.
        norm_eps: of the norms.
        unimix: uniform share that is mixed into the distribution; its logits are then log-probabilities.

    Raises:
        SpecError: an option is not admitted.

    Hafner et al., 2023, eq. 3, arXiv 2301.04104.

    >>> posterior = RSSMPosteriorV3(16, num_categoricals=3, num_classes=4, rnn_hidden_dim=8, obs_embed_dim=5)
    >>> [tuple(out.shape) for out in posterior(torch.zeros(6, 8), torch.zeros(6, 5))]
    [(6, 3, 4), (6, 12)]
    """

    def __init__(
        self,
        hidden_dim: int = 512,
        num_categoricals: int = 32,
        num_classes: int = 32,
        rnn_hidden_dim: int | None = None,
        obs_embed_dim: int | None = None,
        device: torch.device | str | None = None,
        *,
        use_rms_norm: bool = False,
        num_layers: int = 1,
        norm_eps: float = 1e-4,
        unimix: float = 0.0,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if (rnn_hidden_dim is None) != (obs_embed_dim is None) or num_layers < 1:
            raise SpecError(
                f"{name} takes both of rnn_hidden_dim and obs_embed_dim, or finds both at a call; num_layers >= 1"
            )
        self.num_categoricals, self.num_classes, self.unimix = num_categoricals, num_classes, check_share(unimix, name)
        self.state_dim = num_categoricals * num_classes
        self.joint = JointLinear(rnn_hidden_dim, obs_embed_dim, hidden_dim, device=device)
        eps = norm_eps if use_rms_norm else None
        self.head = nn.Sequential(
            *_norm_and_activation(hidden_dim, eps, device),
            _hidden_layers(hidden_dim, hidden_dim, num_layers - 1, eps, device),
            nn.Linear(hidden_dim, self.state_dim, device=device),
            nn.Unflatten(-1, (num_categoricals, num_classes)),
        )

    def forward(self, belief: Tensor, obs_embedding: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """One step, or all at once.

        Args:
            belief: [*B, H].
            obs_embedding: [*B, E].
            noise: numbers in [0, 1) [*B, V] to sample with; drawn where None.

        Returns:
            Logits of the posterior [*B, V, C], and a sample of it with gradients [*B, V * C].
        """
        return self.infer(belief, self.embed(belief, obs_embedding), noise)

    def embed(self, belief: Tensor, obs_embedding: Tensor) -> Tensor:
        """What of the first layer depends on the observation alone: it is computed for a whole sequence at once."""
        return self.joint.second(belief, obs_embedding)

    def infer(self, belief: Tensor, embedded: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As :meth:`forward`, from what :meth:`embed` gave."""
        logits = mix_uniform(self.head(self.joint.first(belief) + embedded), self.unimix)
        return logits, sample_classes(logits, noise)


def check_share(unimix: float, owner: str) -> float:
    """The share itself.

    Raises:
        SpecError: it is outside [0, 1].
    """
    if not 0 <= unimix <= 1 or math.isnan(unimix):
        raise SpecError(f"{owner}: unimix is a share in [0, 1]; got {unimix}")
    return float(unimix)


def _norm_and_activation(features: int, eps: float | None, device: torch.device | str | None) -> list[nn.Module]:
    return [*([] if eps is None else [RMSNorm(features, eps, device)]), nn.SiLU()]


def _hidden_layers(
    inputs: int, units: int, depth: int, eps: float | None, device: torch.device | str | None
) -> nn.Sequential:
    """``depth`` hidden layers: linear, norm, SiLU."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(inputs, units, device=device), *_norm_and_activation(units, eps, device)]
        inputs = units
    return nn.Sequential(*layers)
