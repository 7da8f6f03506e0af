"""Multi-layer perceptron."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_modules.networks.ensemble import BatchedMLP

__all__ = ["MLP", "per_layer"]

Kwargs = Mapping[str, Any]


class MLP(nn.Sequential):
    """Multi-layer perceptron: per layer a linear map, then dropout, norm and activation where asked for.

    Several inputs are concatenated on their last dim.

    Args:
        in_features: features of the (concatenated) input; found at the first call where None.
        out_features: features of the output; a shape gives an output of that shape.
        depth: number of hidden layers; the length of ``num_cells`` where that is a list, else 0.
        num_cells: features of each hidden layer, or of all of them; 32 where only a depth is given.
        activation_class: activation of hidden layers, tanh unless given.
        activation_kwargs: its arguments, a dict for all layers or a list with one dict a layer.
        norm_class: norm of hidden layers; none unless given.
        norm_kwargs: its arguments, likewise; the layer's features where None.
        dropout: dropout probability of hidden layers; none unless given.
        bias_last_layer: whether the last layer has a bias.
        layer_class: class of the linear layers, called with (in, out, bias=, **layer_kwargs).
        layer_kwargs: its further arguments, likewise.
        activate_last_layer: whether dropout, norm and activation follow the last layer too.
        device: device of the parameters.
        activation: older name of ``activation_class``.

    Raises:
        ValueError: if out_features is missing, or depth and num_cells do not fit.

    >>> net = MLP(in_features=3, out_features=2, num_cells=[64, 64])
    >>> net(torch.zeros(5, 1), torch.zeros(5, 2)).shape
    torch.Size([5, 2])
    """

    def __init__(
        self,
        in_features: int | None = None,
        out_features: int | Sequence[int] | None = None,
        depth: int | None = None,
        num_cells: int | Sequence[int] | None = None,
        activation_class: Callable[..., nn.Module] = nn.Tanh,
        activation_kwargs: Kwargs | Sequence[Kwargs] | None = None,
        norm_class: Callable[..., nn.Module] | None = None,
        norm_kwargs: Kwargs | Sequence[Kwargs] | None = None,
        dropout: float | None = None,
        bias_last_layer: bool = True,
        layer_class: type[nn.Module] | Callable[..., nn.Module] = nn.Linear,
        layer_kwargs: Kwargs | Sequence[Kwargs] | None = None,
        activate_last_layer: bool = False,
        device: torch.device | str | None = None,
        activation: Callable[..., nn.Module] | None = None,
    ) -> None:
        if out_features is None:
            raise ValueError("MLP needs out_features, the number of output features (or the output's shape).")
        out_shape = None if isinstance(out_features, int) else tuple(out_features)
        out_count = out_features if isinstance(out_features, int) else math.prod(out_features)
        cells = _hidden_cells(depth, num_cells)
        widths = [in_features, *cells, out_count]
        count = len(cells) + 1
        layer_options = per_layer(layer_kwargs, count, "layer_kwargs")
        activation_options = per_layer(activation_kwargs, count, "activation_kwargs")
        norm_options = per_layer(norm_kwargs, count, "norm_kwargs")
        layers: list[nn.Module] = []
        for index in range(count):
            last = index == count - 1
            options = {"bias": bias_last_layer if last else True, "device": device, **(layer_options[index] or {})}
            layers.append(_linear(layer_class, widths[index], cells[index] if not last else out_count, options))
            if last and not activate_last_layer:
                break
            if dropout is not None:
                layers.append(nn.Dropout(dropout))
            if norm_class is not None:
                norm = norm_options[index]
                layers.append(norm_class(**norm) if norm is not None else norm_class(widths[index + 1]))
            layers.append((activation or activation_class)(**(activation_options[index] or {})))
        if out_shape is not None:
            layers.append(nn.Unflatten(-1, out_shape))
        super().__init__(*layers)
        self.in_features, self.out_features = in_features, out_features
        if device is not None:
            self.to(device)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Output ``[*B, out_features]`` for inputs ``[*B, F_i]``."""
        output: Tensor = super().forward(inputs[0] if len(inputs) == 1 else torch.cat(inputs, -1))
        return output

    def stacked(self, members: Sequence[MLP]) -> BatchedMLP | None:
        """Networks of this one's architecture as one, with copies of their weights.

        Args:
            members: the networks.

        Returns:
            The network with outputs ``[N, *B, out_features]``; None where a layer has no batched form, or a subclass
            computes something else.
        """
        altered = type(self).forward is not MLP.forward or self._forward_hooks or self._forward_pre_hooks
        return None if altered else BatchedMLP.of(members)


def _hidden_cells(depth: int | None, num_cells: int | Sequence[int] | None) -> list[int]:
    if num_cells is None:
        return [32] * (depth or 0)
    if isinstance(num_cells, int):
        if depth is None:
            raise ValueError(
                f"MLP got num_cells={num_cells} for every hidden layer but no depth. Give depth=, or a list."
            )
        return [num_cells] * depth
    if depth is not None and depth != len(num_cells):
        raise ValueError(
            f"MLP got depth={depth} and {len(num_cells)} entries in "
            f"num_cells={list(num_cells)}. Leave depth out, or give as many entries."
        )
    return list(num_cells)


def _linear(
    layer_class: Callable[..., nn.Module], in_features: int | None, out_features: int, options: Kwargs
) -> nn.Module:
    if in_features is not None:
        return layer_class(in_features, out_features, **options)
    if layer_class is not nn.Linear:
        raise ValueError(
            f"MLP with layer_class={layer_class} needs in_features: only nn.Linear can find it at the first call."
        )
    return nn.LazyLinear(out_features, **options)


def per_layer(kwargs: Kwargs | Sequence[Kwargs] | None, count: int, name: str) -> list[Kwargs | None]:
    """One entry a layer from one dict for all, a list with one dict a layer, or None."""
    if kwargs is None or isinstance(kwargs, Mapping):
        return [kwargs] * count
    # the last layer may have no activation or norm, hence no entry
    if len(kwargs) not in (count, count - 1):
        raise ValueError(f"{name} has {len(kwargs)} entries for {count} layers.")
    return [*kwargs, *[None] * (count - len(kwargs))]
