"""Dueling networks: the value of a state and the advantages of its actions, from shared features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_modules.networks.convnet import ConvNet
from rl_modules.networks.mlp import MLP

__all__ = ["DuelingCnnDQNet", "DuelingMLP", "DuelingMlpDQNet", "DuelingNet"]

Kwargs = Mapping[str, Any]

_FEATURES = {"depth": 3, "num_cells": 256, "activation_class": nn.ELU, "activate_last_layer": True, "out_features": 256}
_HEAD = {"depth": 1, "num_cells": 512, "activation_class": nn.ELU}
_PIXELS = {
    "num_cells": [32, 64, 64],
    "kernel_sizes": [8, 4, 3],
    "strides": [4, 2, 1],
    "activation_class": nn.ELU,
}


class DuelingNet(nn.Module):
    r"""Action values from a value and advantages.

    .. math:: Q(s, a) = V(s) + A(s, a) - \frac{1}{n} \sum_{a'} A(s, a')

    Args:
        features: the shared part; its output goes to both heads. None: the heads read the input.
        value: its output has size 1 in the last dimension.
        advantage: its output is ``[*B, n]``, or ``[*B, K, n]`` for distributions of K numbers per action; that of
            ``value`` is then ``[*B, K, 1]``.

    Wang et al., 2015, Dueling Network Architectures for Deep Reinforcement Learning, eq. 9, arXiv 1511.06581.

    >>> net = DuelingNet(nn.Linear(3, 8), value=nn.Linear(8, 1), advantage=nn.Linear(8, 4))
    >>> net(torch.zeros(2, 3)).shape
    torch.Size([2, 4])
    """

    def __init__(self, features: nn.Module | None, value: nn.Module, advantage: nn.Module) -> None:
        super().__init__()
        self.features = nn.Identity() if features is None else features
        self.value = value
        self.advantage = advantage

    def forward(self, *inputs: Tensor) -> Tensor:
        """Action values ``[*B, n]`` (or ``[*B, K, n]``).

        Raises:
            ValueError: the value does not have size 1 where the advantages have n.
        """
        hidden = self.features(*inputs)
        value, advantage = self.value(hidden), self.advantage(hidden)
        if value.shape != (*advantage.shape[:-1], 1):
            raise ValueError(
                f"{type(self).__name__}: for advantages {list(advantage.shape)} the value must be "
                f"{[*advantage.shape[:-1], 1]}; got {list(value.shape)}."
            )
        return value + (advantage - advantage.mean(-1, keepdim=True))


class DuelingMLP(DuelingNet):
    """A dueling network of three multi-layer perceptrons.

    Args:
        out_features: number of actions n, or ``(K, n)`` for distributions of K numbers per action.
        out_features_value: outputs of the value head: 1.
        mlp_kwargs_feature: arguments of the shared :class:`MLP`, over: three hidden layers of 256 cells and an output
            of 256, each followed by ELU.
        mlp_kwargs_output: arguments of both heads, over: one hidden layer of 512 cells with ELU.
        device: device of the parameters.

    Raises:
        ValueError: out_features_value is not 1.

    >>> net = DuelingMLP(4, mlp_kwargs_feature={"in_features": 3, "depth": 1, "num_cells": 64, "out_features": 64})
    >>> net(torch.zeros(2, 3)).shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        out_features: int | Sequence[int],
        out_features_value: int = 1,
        mlp_kwargs_feature: Kwargs | None = None,
        mlp_kwargs_output: Kwargs | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        options = _merged(_FEATURES, mlp_kwargs_feature)
        features = MLP(**options, device=device)
        value, advantage = _heads(out_features, out_features_value, mlp_kwargs_output, options["out_features"], device)
        super().__init__(features, value, advantage)


DuelingMlpDQNet = DuelingMLP
"""The field's older name."""


class DuelingCnnDQNet(DuelingNet):
    """A dueling network over images: convolutions, then a perceptron for each head.

    Args:
        out_features: number of actions n, or ``(K, n)`` for distributions of K numbers per action.
        out_features_value: outputs of the value head: 1.
        cnn_kwargs: arguments of the :class:`ConvNet`, over: 32, 64 and 64 channels, kernels 8, 4 and 3, strides 4, 2
            and 1, ELU.
        mlp_kwargs: arguments of both heads, over: one hidden layer of 512 cells with ELU.
        device: device of the parameters.

    Raises:
        ValueError: out_features_value is not 1.

    >>> DuelingCnnDQNet(6)(torch.zeros(2, 4, 84, 84)).shape
    torch.Size([2, 6])
    """

    def __init__(
        self,
        out_features: int | Sequence[int],
        out_features_value: int = 1,
        cnn_kwargs: Kwargs | None = None,
        mlp_kwargs: Kwargs | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        features = ConvNet(**_merged(_PIXELS, cnn_kwargs), device=device)
        value, advantage = _heads(out_features, out_features_value, mlp_kwargs, None, device)
        super().__init__(features, value, advantage)


def _merged(defaults: Kwargs, given: Kwargs | None) -> dict[str, Any]:
    """The arguments; a list of cells that is given also sets the depth."""
    options = {**defaults, **(given or {})}
    if given is not None and "depth" not in given and not isinstance(given.get("num_cells", 0), int):
        options.pop("depth", None)
    return options


def _heads(
    out_features: int | Sequence[int],
    out_features_value: int,
    kwargs: Kwargs | None,
    in_features: int | None,
    device: torch.device | str | None,
) -> tuple[nn.Module, nn.Module]:
    """The value's and the advantages' network."""
    if out_features_value != 1:
        raise ValueError(
            f"a dueling network has one value for all actions; got out_features_value={out_features_value}"
        )
    shape = out_features if isinstance(out_features, int) else tuple(out_features)
    value_shape = 1 if isinstance(shape, int) else (*shape[:-1], 1)
    options = {"in_features": in_features, **_merged(_HEAD, kwargs)}
    return MLP(out_features=value_shape, device=device, **options), MLP(out_features=shape, device=device, **options)
