"""Linear layers with learned noise on their weights: exploration that the network itself steers."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedParameter, is_lazy

from rl_core.exploration import ExplorationType, exploration_type

__all__ = ["NoisyLazyLinear", "NoisyLinear", "reset_noise"]


class NoisyLinear(nn.Module):
    r"""A linear layer with factorised Gaussian noise on weights and biases.

    .. math::
        y = (\mu_w + \sigma_w \odot f(\epsilon_{out}) f(\epsilon_{in})^T) x + \mu_b + \sigma_b \odot f(\epsilon_{out})

    with ``f(x) = sign(x) sqrt(|x|)``. In training mode the noise of the last :meth:`reset_noise` is used, for all rows;
    in evaluation mode there is none. The noise is drawn at construction and then only when it is asked for, usually
    after every optimiser step: ``reset_noise(network)``.

    The noise is no parameter and no buffer: target updates and weight syncs leave each copy its own. ``state_dict``
    holds it, so that a resumed run goes on as it was.

    Args:
        in_features: size of the input's last dimension, p.
        out_features: size of the output's last dimension.
        bias: whether there is a bias.
        device: device of the parameters.
        dtype: type of the parameters.
        std_init: sigma_0: deviations start at ``sigma_0 / sqrt(p)``, means within ``+-1 / sqrt(p)``.
        use_exploration_type: leave the noise out under a deterministic exploration type as well. Not for networks that
            are trained by a loss: losses run deterministically, and sigma would get no gradient.

    Fortunato et al., 2017, Noisy Networks for Exploration, eq. 9-11 and section 3.2, arXiv 1706.10295.

    >>> layer = NoisyLinear(3, 2)
    >>> x = torch.ones(1, 3)
    >>> bool((layer.eval()(x) == F.linear(x, layer.weight_mu, layer.bias_mu)).all())
    True
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        std_init: float = 0.5,
        use_exploration_type: bool = False,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.std_init = std_init
        self.use_exploration_type = use_exploration_type
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight_mu = nn.Parameter(torch.empty(out_features, in_features, **options))
        self.weight_sigma = nn.Parameter(torch.empty(out_features, in_features, **options))
        self.bias_mu: nn.Parameter | None = None
        self.bias_sigma: nn.Parameter | None = None
        if bias:
            self.bias_mu = nn.Parameter(torch.empty(out_features, **options))
            self.bias_sigma = nn.Parameter(torch.empty(out_features, **options))
        self.noise = torch.empty(in_features + out_features, **options)
        self.reset_parameters()
        self.reset_noise()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the means, and set the deviations to their initial value."""
        bound = 1.0 / math.sqrt(self.in_features) if self.in_features else 0.0
        for mean in (self.weight_mu, self.bias_mu):
            if mean is not None:
                mean.uniform_(-bound, bound)
        for deviation in (self.weight_sigma, self.bias_sigma):
            if deviation is not None:
                deviation.fill_(self.std_init * bound)

    @torch.no_grad()
    def reset_noise(self) -> None:
        """Draw new noise."""
        draw = torch.randn_like(self.noise)
        self.noise = draw.sign() * draw.abs().sqrt()

    def is_noisy(self) -> bool:
        """Whether a call would use the noise now."""
        if not self.training or not self.use_exploration_type:
            return self.training
        return exploration_type() in (None, ExplorationType.RANDOM)

    def forward(self, input: Tensor) -> Tensor:
        """``[*B, out_features]`` of ``[*B, in_features]``."""
        if not self.is_noisy():
            return F.linear(input, self.weight_mu, self.bias_mu)
        before, after = self.noise.split([self.in_features, self.out_features])
        weight = torch.addcmul(self.weight_mu, self.weight_sigma, torch.outer(after, before))
        if self.bias_mu is None or self.bias_sigma is None:
            return F.linear(input, weight)
        return F.linear(input, weight, torch.addcmul(self.bias_mu, self.bias_sigma, after))

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias_mu is not None}, "
            f"std_init={self.std_init}"
        )

    def get_extra_state(self) -> Tensor:
        """The noise, for ``state_dict``."""
        return self.noise

    def set_extra_state(self, state: Any) -> None:
        """The noise, from ``state_dict``."""
        self.noise = state.to(self.noise).clone()

    def _apply(self, fn: Any, recurse: bool = True) -> NoisyLinear:
        # Moves and conversions take the noise along, although it is no buffer.
        super()._apply(fn, recurse)
        self.noise = fn(self.noise)
        return self


class NoisyLazyLinear(LazyModuleMixin, NoisyLinear):
    """A :class:`NoisyLinear` that finds ``in_features`` at the first call.

    Args:
        out_features: size of the output's last dimension.
        bias: whether there is a bias.
        device: device of the parameters.
        dtype: type of the parameters.
        std_init: see :class:`NoisyLinear`.
        use_exploration_type: see :class:`NoisyLinear`.
    """

    cls_to_become = NoisyLinear
    weight_mu: UninitializedParameter  # type: ignore[assignment]
    weight_sigma: UninitializedParameter  # type: ignore[assignment]

    def __init__(
        self,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        std_init: float = 0.5,
        use_exploration_type: bool = False,
    ) -> None:
        super().__init__(0, 0, False, device, dtype, std_init, use_exploration_type)
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.out_features = out_features
        self.weight_mu, self.weight_sigma = UninitializedParameter(**options), UninitializedParameter(**options)
        if bias:
            self.bias_mu = UninitializedParameter(**options)  # type: ignore[assignment]
            self.bias_sigma = UninitializedParameter(**options)  # type: ignore[assignment]

    def reset_parameters(self) -> None:
        if not self.has_uninitialized_params():
            super().reset_parameters()

    def initialize_parameters(self, input: Tensor) -> None:
        """Make the parameters for the input's last dimension."""
        if not self.has_uninitialized_params():
            return
        self.in_features = input.shape[-1]
        for parameter in (self.weight_mu, self.weight_sigma):
            parameter.materialize((self.out_features, self.in_features))
        for bias in (self.bias_mu, self.bias_sigma):
            if bias is not None and is_lazy(bias):
                bias.materialize((self.out_features,))
        self.noise = self.noise.new_empty(self.in_features + self.out_features)
        self.reset_parameters()
        self.reset_noise()


def reset_noise(module: nn.Module) -> None:
    """Draw new noise in every noisy layer of a network.

    Args:
        module: a network, a policy, or a loss (its target networks draw their own).

    >>> net = nn.Sequential(NoisyLinear(3, 2), nn.ReLU())
    >>> before = net[0].noise
    >>> reset_noise(net)
    >>> bool((net[0].noise == before).any())
    False
    """
    for layer in module.modules():
        if isinstance(layer, NoisyLinear):
            layer.reset_noise()
