"""Generalised state-dependent exploration: noise that is a fixed function of the state during an episode."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from tensordict.nn import InteractionType as ExplorationType
from tensordict.nn.probabilistic import interaction_type
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedParameter

from rl_core.errors import PolicyError

__all__ = ["LazygSDEModule", "gSDEModule"]


class gSDEModule(nn.Module):  # noqa: N801 (the published name)
    r"""Adds noise that is linear in features of the state, with a matrix that stays the same for an episode.

    .. math:: a = \mu + (\sigma \odot \epsilon) s, \qquad scale_i = \sqrt{\sum_j \sigma_{ij}^2 s_j^2}

    (Raffin, Kober, Stulp 2022, "Smooth Exploration for Robotic Reinforcement Learning", arXiv 2005.05719, section 3.1,
    equations 5 to 7.) ``a`` is one draw of ``N(mu, scale)``, so ``loc`` and ``scale`` are what a loss scores it with.

    The network is used within a :class:`SafeModule`; a loss scores the action with ``IndependentNormal``. Epsilon comes
    from the environment, drawn anew at every reset::

        SafeModule(
            gSDEModule(action_dim=2, state_dim=64),
            in_keys=["loc", "features", "_eps_gSDE"],
            out_keys=["loc", "scale", "action", "_eps_gSDE"],
        )
        TensorDictPrimer({"_eps_gSDE": Unbounded(shape=(2, 64))}, random=True)

    Noise is added under ``ExplorationType.RANDOM`` or outside of any exploration context; otherwise the action is mu.

    Args:
        action_dim: A.
        state_dim: S, the number of features.
        sigma_init: sigma at the start; unless given, such that features of unit size have a scale of about 1.
        scale_min: lower bound of scale.
        scale_max: upper bound of scale.
        learn_sigma: make sigma a parameter; else it is a buffer.
        device: of sigma.

    >>> module = gSDEModule(2, 3)
    >>> mu, scale, action, eps = module(torch.zeros(5, 2), torch.ones(5, 3), torch.zeros(5, 2, 3))
    >>> scale.shape, torch.equal(action, mu)
    (torch.Size([5, 2]), True)
    """

    raw_sigma: Tensor

    def __init__(
        self,
        action_dim: int,
        state_dim: int,
        sigma_init: float | None = None,
        scale_min: float = 0.01,
        scale_max: float = 10.0,
        learn_sigma: bool = True,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if not 0.0 < scale_min < scale_max:
            raise ValueError(f"gSDEModule needs 0 < scale_min < scale_max; got {scale_min} and {scale_max}.")
        self.action_dim, self.state_dim = action_dim, state_dim
        self.sigma_init, self.scale_min, self.scale_max, self.learn_sigma = (
            sigma_init,
            scale_min,
            scale_max,
            learn_sigma,
        )
        if state_dim:
            start = torch.full((action_dim, state_dim), self._raw(state_dim), device=device)
            if learn_sigma:
                self.raw_sigma = nn.Parameter(start)
            else:
                self.register_buffer("raw_sigma", start)

    def _raw(self, state_dim: int) -> float:
        """What softplus maps to the first sigma."""
        sigma = math.sqrt((1.0 - self.scale_min) / state_dim) if self.sigma_init is None else self.sigma_init
        if sigma <= 0:
            raise ValueError(f"gSDEModule needs sigma_init > 0; got {sigma}.")
        return sigma + math.log(-math.expm1(-sigma))

    @property
    def sigma(self) -> Tensor:
        """``[A, S]``, positive."""
        return F.softplus(self.raw_sigma)

    def forward(self, mu: Tensor, state: Tensor, _eps_gSDE: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The disturbed action.

        Args:
            mu: ``[*B, A]`` action without noise.
            state: ``[*B, S]`` features of the state.
            _eps_gSDE: ``[*B, A, S]`` standard normal, the same during an episode.

        Returns:
            mu, scale ``[*B, A]``, action ``[*B, A]``, epsilon.

        Raises:
            PolicyError: if shapes do not fit.
        """
        wanted = (*mu.shape[:-1], self.action_dim, self.state_dim)
        if mu.shape[-1] != self.action_dim or state.shape != (*mu.shape[:-1], self.state_dim):
            raise PolicyError(
                f"gSDEModule({self.action_dim}, {self.state_dim}) got mu of shape {list(mu.shape)} and a state "
                f"of shape {list(state.shape)}"
            )
        if _eps_gSDE.shape != wanted:
            raise PolicyError(
                f"gSDEModule got an epsilon of shape {list(_eps_gSDE.shape)}; it must be {list(wanted)}. "
                f"Append TensorDictPrimer({{'_eps_gSDE': Unbounded(shape=({self.action_dim}, {self.state_dim}))}}, "
                "random=True)"
            )
        sigma = self.sigma
        scale = torch.mv(sigma.square(), state.square()) if state.ndim == 1 else state.square() @ sigma.square().mT
        scale = scale.clamp_min(1e-12).sqrt().clamp(self.scale_min, self.scale_max)
        action = mu
        if interaction_type() in (None, ExplorationType.RANDOM):
            action = mu + ((sigma * _eps_gSDE) @ state.unsqueeze(-1)).squeeze(-1)
        return mu, scale, action, _eps_gSDE


class LazygSDEModule(LazyModuleMixin, gSDEModule):
    """:class:`gSDEModule` whose sizes follow from its first inputs; arguments as there.

    >>> module = LazygSDEModule()
    >>> module(torch.zeros(5, 2), torch.ones(5, 3), torch.zeros(5, 2, 3))[1].shape, type(module).__name__
    (torch.Size([5, 2]), 'gSDEModule')
    """

    cls_to_become = gSDEModule

    def __init__(
        self,
        sigma_init: float | None = None,
        scale_min: float = 0.01,
        scale_max: float = 10.0,
        learn_sigma: bool = True,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(0, 0, sigma_init, scale_min, scale_max, learn_sigma)
        self.raw_sigma = UninitializedParameter(requires_grad=learn_sigma, device=device)  # type: ignore[call-arg]

    def initialize_parameters(self, mu: Tensor, state: Tensor, _eps_gSDE: Tensor | None = None) -> None:
        """Take the sizes from the inputs."""
        raw = self.raw_sigma
        if isinstance(raw, UninitializedParameter):
            self.action_dim, self.state_dim = mu.shape[-1], state.shape[-1]
            raw.materialize((self.action_dim, self.state_dim), device=mu.device)
            with torch.no_grad():
                raw.fill_(self._raw(self.state_dim))
