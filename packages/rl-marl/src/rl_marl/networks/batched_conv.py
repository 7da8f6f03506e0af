"""Convolutions of several agents as one: parameters with a leading agent dimension and one grouped convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedParameter, is_lazy

from rl_marl.networks.batched_linear import draw_uniform_, shapeless, stacked

__all__ = ["BatchedConv2d", "LazyBatchedConv2d"]


class BatchedConv2d(nn.Module):
    """One 2d convolution per agent.

    Args:
        weight: [n, out, in, height, width].
        bias: [n, out]; None: no bias.
        like: one agent's convolution: out channels, kernel size, stride, padding and dilation are taken from it.
        n_agents: n.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, like: nn.Conv2d, n_agents: int) -> None:
        super().__init__()
        self.n_agents, self.out_channels = n_agents, like.out_channels
        self.kernel_size = like.kernel_size
        self.geometry: dict[str, Any] = {"stride": like.stride, "padding": like.padding, "dilation": like.dilation}
        self.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight)
        self.bias = bias if bias is None or isinstance(bias, nn.Parameter) else nn.Parameter(bias)

    @classmethod
    def stack(cls, layers: Sequence[nn.Conv2d]) -> BatchedConv2d:
        """The layers of all agents, in their order, with copies of their weights."""
        weight, bias = stacked([layer.weight for layer in layers]), stacked([layer.bias for layer in layers])
        assert weight is not None
        return cls(weight, bias, layers[0], len(layers))

    def agent_layer(self) -> nn.Conv2d:
        """A fresh convolution of one agent's shape; its weights are not set."""
        channels = self.weight.shape[2]
        options = {"device": self.weight.device, "dtype": self.weight.dtype, "bias": self.bias is not None}
        options |= {"kernel_size": self.kernel_size, **self.geometry}
        return nn.utils.skip_init(nn.Conv2d, channels, self.out_channels, **options)

    def reset_parameters(self) -> None:
        """Draw weights and biases anew, for each agent as ``nn.Conv2d`` does."""
        if not is_lazy(self.weight):
            draw_uniform_(self.weight, self.bias)

    def forward(self, rows: Tensor) -> Tensor:
        """Outputs ``[R, n, out, H', W']`` of images ``[R, n, in, H, W]``, or of joint images ``[R, in, H, W]``."""
        joint = rows.ndim == 4
        pixels = rows if joint else rows.flatten(1, 2)
        bias = None if self.bias is None else self.bias.flatten()
        groups = 1 if joint else self.n_agents
        output = F.conv2d(pixels, self.weight.flatten(0, 1), bias, groups=groups, **self.geometry)
        return output.unflatten(1, (self.n_agents, self.out_channels))

    def extra_repr(self) -> str:
        channels = "?" if is_lazy(self.weight) else self.weight.shape[2]
        text = f"{channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.geometry['stride']}"
        return f"{self.n_agents} agents x ({text})"


class LazyBatchedConv2d(LazyModuleMixin, BatchedConv2d):
    """A :class:`BatchedConv2d` that finds its input channels at the first call.

    Args:
        like: one agent's convolution, likewise lazy.
        n_agents: n.
    """

    cls_to_become = BatchedConv2d

    def __init__(self, like: nn.LazyConv2d, n_agents: int) -> None:
        bias = None if like.bias is None else shapeless(like.bias)
        super().__init__(shapeless(like.weight), bias, like, n_agents)

    def initialize_parameters(self, rows: Tensor) -> None:
        """Give the parameters their shapes and draw them."""
        if not self.has_uninitialized_params():
            return
        shape = (self.n_agents, self.out_channels)
        with torch.no_grad():
            if isinstance(self.weight, UninitializedParameter):
                self.weight.materialize((*shape, rows.shape[-3], *self.kernel_size))
            if isinstance(self.bias, UninitializedParameter):
                self.bias.materialize(shape)
            self.reset_parameters()
