"""Linear layers of several agents as one: parameters with a leading agent dimension and one batched product."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedParameter, is_lazy

__all__ = ["BatchedLinear", "LazyBatchedLinear", "draw_uniform_", "shapeless", "stacked"]


class BatchedLinear(nn.Module):
    """One linear map per agent, ``y_i = W_i x_i + b_i``.

    Args:
        weight: [n, out, in].
        bias: [n, out]; None: no bias.
        n_agents: n.
        out_features: out.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, n_agents: int, out_features: int) -> None:
        super().__init__()
        self.n_agents, self.out_features = n_agents, out_features
        self.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight)
        self.bias = bias if bias is None or isinstance(bias, nn.Parameter) else nn.Parameter(bias)

    @classmethod
    def stack(cls, layers: Sequence[nn.Linear]) -> BatchedLinear:
        """The layers of all agents, in their order, with copies of their weights."""
        weight, bias = stacked([layer.weight for layer in layers]), stacked([layer.bias for layer in layers])
        assert weight is not None
        return cls(weight, bias, n_agents=len(layers), out_features=layers[0].out_features)

    def agent_layer(self) -> nn.Linear:
        """A fresh linear layer of one agent's shape; its weights are not set."""
        _, out_features, in_features = self.weight.shape
        options = {"device": self.weight.device, "dtype": self.weight.dtype}
        return nn.utils.skip_init(nn.Linear, in_features, out_features, bias=self.bias is not None, **options)

    def reset_parameters(self) -> None:
        """Draw weights and biases anew, for each agent as ``nn.Linear`` does."""
        if not is_lazy(self.weight):
            draw_uniform_(self.weight, self.bias)

    def forward(self, rows: Tensor) -> Tensor:
        """Outputs ``[R, n, out]`` of inputs ``[R, n, in]``, or of joint inputs ``[R, in]`` that all agents see."""
        if rows.ndim == 2:
            bias = None if self.bias is None else self.bias.flatten()
            return F.linear(rows, self.weight.flatten(0, 1), bias).unflatten(-1, (self.n_agents, self.out_features))
        by_agent, weight = rows.transpose(0, 1), self.weight.transpose(1, 2)
        if self.bias is None:
            return torch.bmm(by_agent, weight).transpose(0, 1)
        return torch.baddbmm(self.bias.unsqueeze(1), by_agent, weight).transpose(0, 1)

    def extra_repr(self) -> str:
        if is_lazy(self.weight):
            return f"{self.n_agents} agents x (in_features=?, out_features={self.out_features})"
        return f"{self.n_agents} agents x (in_features={self.weight.shape[-1]}, out_features={self.out_features})"


class LazyBatchedLinear(LazyModuleMixin, BatchedLinear):
    """A :class:`BatchedLinear` that finds its input features at the first call.

    Args:
        like: one agent's layer, likewise lazy.
        n_agents: n.
    """

    cls_to_become = BatchedLinear

    def __init__(self, like: nn.LazyLinear, n_agents: int) -> None:
        bias = None if like.bias is None else shapeless(like.bias)
        super().__init__(shapeless(like.weight), bias, n_agents=n_agents, out_features=like.out_features)

    def initialize_parameters(self, rows: Tensor) -> None:
        """Give the parameters their shapes and draw them."""
        if not self.has_uninitialized_params():
            return
        shape = (self.n_agents, self.out_features)
        with torch.no_grad():
            if isinstance(self.weight, UninitializedParameter):
                self.weight.materialize((*shape, rows.shape[-1]))
            if isinstance(self.bias, UninitializedParameter):
                self.bias.materialize(shape)
            self.reset_parameters()


def draw_uniform_(weight: Tensor, bias: Tensor | None) -> None:
    """Fill weights [n, out, in, ...] and biases [n, out] as torch does for each layer: uniform in +-1/sqrt(fan in)."""
    bound = 1 / math.sqrt(weight[0, 0].numel())
    nn.init.uniform_(weight, -bound, bound)
    if bias is not None:
        nn.init.uniform_(bias, -bound, bound)


def shapeless(like: Tensor) -> UninitializedParameter:
    """A parameter without a shape yet, on the device and of the type of another one."""
    return UninitializedParameter(device=like.device, dtype=like.dtype)  # type: ignore[call-arg]


def stacked(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """The tensors of all agents as one, or None where the layers have none."""
    present = [tensor.detach() for tensor in tensors if tensor is not None]
    return torch.stack(present) if present else None
