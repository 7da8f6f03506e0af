"""Convolutional network over images with any number of batch dims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_modules.networks.mlp import Kwargs, per_layer

__all__ = ["ConvNet", "SquashDims"]


class SquashDims(nn.Module):
    """Flattens the last dims of a tensor into one.

    Args:
        ndims_in: number of dims to flatten; 3 for images ``[C, H, W]``.
    """

    def __init__(self, ndims_in: int = 3) -> None:
        super().__init__()
        self.ndims_in = ndims_in

    def forward(self, value: Tensor) -> Tensor:
        """``[*B, prod(last dims)]``."""
        return value.flatten(-self.ndims_in)


class ConvNet(nn.Sequential):
    """2d convolutions with activations, then an aggregator that flattens the result.

    Args:
        in_features: channels of the input; found at the first call where None.
        depth: number of layers; the length of any list given, else 3.
        num_cells: channels of each layer, or of all of them; 32 unless given.
        kernel_sizes: kernel of each layer, or of all of them.
        strides: stride of each layer, or of all of them.
        paddings: padding of each layer, or of all of them.
        activation_class: activation after each convolution, ELU unless given.
        activation_kwargs: its arguments, a dict for all layers or a list with one dict a layer.
        norm_class: norm after each activation; none unless given.
        norm_kwargs: its arguments, likewise; the layer's channels where None.
        bias_last_layer: whether the last convolution has a bias.
        aggregator_class: module after the last layer; None keeps ``[*B, C, H, W]``.
        aggregator_kwargs: its arguments.
        squeeze_output: drop height and width of the last layer's output, which must be 1.
        device: device of the parameters.
        activation: older name of ``activation_class``.

    Raises:
        ValueError: if lists differ in length.

    >>> net = ConvNet(in_features=3, num_cells=[8, 16], kernel_sizes=[4, 3], strides=[2, 1])
    >>> net(torch.zeros(2, 5, 3, 16, 16)).shape
    torch.Size([2, 5, 400])
    """

    def __init__(
        self,
        in_features: int | None = None,
        depth: int | None = None,
        num_cells: int | Sequence[int] | None = None,
        kernel_sizes: int | Sequence[Any] = 3,
        strides: int | Sequence[Any] = 1,
        paddings: int | Sequence[Any] = 0,
        activation_class: Callable[..., nn.Module] = nn.ELU,
        activation_kwargs: Kwargs | Sequence[Kwargs] | None = None,
        norm_class: Callable[..., nn.Module] | None = None,
        norm_kwargs: Kwargs | Sequence[Kwargs] | None = None,
        bias_last_layer: bool = True,
        aggregator_class: Callable[..., nn.Module] | None = SquashDims,
        aggregator_kwargs: Kwargs | None = None,
        squeeze_output: bool = False,
        device: torch.device | str | None = None,
        activation: Callable[..., nn.Module] | None = None,
    ) -> None:
        given = {"num_cells": num_cells, "kernel_sizes": kernel_sizes, "strides": strides, "paddings": paddings}
        count = _depth(depth, given)
        cells = _each(32 if num_cells is None else num_cells, count)
        geometry = list(zip(_each(kernel_sizes, count), _each(strides, count), _each(paddings, count), strict=True))
        activation_options = per_layer(activation_kwargs, count, "activation_kwargs")
        norm_options = per_layer(norm_kwargs, count, "norm_kwargs")
        layers: list[nn.Module] = []
        for index, (kernel, stride, padding) in enumerate(geometry):
            bias = bias_last_layer if index == count - 1 else True
            options = {"kernel_size": kernel, "stride": stride, "padding": padding, "bias": bias, "device": device}
            channels = in_features if index == 0 else cells[index - 1]
            layers.append(
                nn.LazyConv2d(cells[index], **options)
                if channels is None
                else nn.Conv2d(channels, cells[index], **options)
            )
            layers.append((activation or activation_class)(**(activation_options[index] or {})))
            if norm_class is not None:
                norm = norm_options[index]
                layers.append(norm_class(**norm) if norm is not None else norm_class(cells[index]))
        if squeeze_output:
            layers.append(_SqueezePixels())
        elif aggregator_class is not None:
            layers.append(aggregator_class(**(aggregator_kwargs or {})))
        super().__init__(*layers)
        if device is not None:
            self.to(device)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Features ``[*B, F]`` of images ``[*B, C, H, W]``; several inputs are concatenated on the channels."""
        pixels = inputs[0] if len(inputs) == 1 else torch.cat(inputs, -3)
        batch = pixels.shape[:-3]
        if len(batch) == 1:
            output: Tensor = super().forward(pixels)
            return output
        output = super().forward(pixels.reshape(-1, *pixels.shape[-3:]))
        return output.reshape(*batch, *output.shape[1:])


class _SqueezePixels(nn.Module):
    """Drops height and width, which must be 1."""

    def forward(self, value: Tensor) -> Tensor:
        if value.shape[-2:] != (1, 1):
            raise ValueError(
                f"ConvNet(squeeze_output=True) needs an output of height and width 1; got {list(value.shape[-2:])}. "
                f"Use larger kernels or strides, or squeeze_output=False."
            )
        return value.flatten(-3)


def _depth(depth: int | None, given: dict[str, Any]) -> int:
    lengths = {name: len(value) for name, value in given.items() if isinstance(value, Sequence)}
    if depth is not None:
        lengths["depth"] = depth
    if len(set(lengths.values())) > 1:
        raise ValueError(f"ConvNet got different numbers of layers: {lengths}. Give lists of one length.")
    return next(iter(lengths.values()), 3)


def _each(value: Any, count: int) -> list[Any]:
    return list(value) if isinstance(value, Sequence) else [value] * count
