"""Several multi-layer perceptrons evaluated by one batched product a layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.losses.ensembles import StackedNetwork

__all__ = ["BatchedLayerNorm", "BatchedLinear", "BatchedMLP"]

_ELEMENTWISE = (
    nn.CELU,
    nn.ELU,
    nn.GELU,
    nn.Hardswish,
    nn.Hardtanh,
    nn.Identity,
    nn.LeakyReLU,
    nn.LogSigmoid,
    nn.Mish,
    nn.ReLU,
    nn.ReLU6,
    nn.SELU,
    nn.Sigmoid,
    nn.SiLU,
    nn.Softplus,
    nn.Softsign,
    nn.Tanh,
)
"""Layers without weights that treat each number on its own: one call serves all members."""

_LARGE = 128 * 128
"""Numbers in a member's largest weight from which on, on a CPU, members run faster one by one (measured)."""

RowMap = Callable[[Tensor], Tensor]


class BatchedLinear(nn.Module):
    """The linear maps of all members, ``y_i = W_i x_i + b_i``.

    Args:
        layers: one per member, of one shape; their weights are copied to ``[N, out, in]`` and ``[N, out]``.
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        weight = _stacked([layer.weight for layer in layers])
        assert weight is not None
        self.weight = weight
        self.bias = _stacked([layer.bias for layer in layers])

    def forward(self, rows: Tensor) -> Tensor:
        """``[N, R, out]`` of ``[N, R, in]``; of the first members where the rows have fewer."""
        weight, bias = _first(self.weight, rows).transpose(1, 2), self.bias
        if bias is None:
            return torch.bmm(rows, weight)
        return torch.baddbmm(_first(bias, rows).unsqueeze(1), rows, weight)

    def of_each(self, count: int) -> list[RowMap]:
        """The maps of the first members, from ``[R, in]`` to ``[R, out]``."""
        weights, biases = _of_each(self.weight, count), _of_each(self.bias, count)
        return [partial(F.linear, weight=weight, bias=bias) for weight, bias in zip(weights, biases, strict=True)]

    def extra_repr(self) -> str:
        count, out_features, in_features = self.weight.shape
        return f"{count} x (in_features={in_features}, out_features={out_features})"


class BatchedLayerNorm(nn.Module):
    """The layer norms of all members, over the last dim.

    Args:
        layers: one per member, of one shape.
    """

    def __init__(self, layers: Sequence[nn.LayerNorm]) -> None:
        super().__init__()
        self.normalized_shape, self.eps = layers[0].normalized_shape, layers[0].eps
        self.weight = _stacked([layer.weight for layer in layers])
        self.bias = _stacked([layer.bias for layer in layers])

    def forward(self, rows: Tensor) -> Tensor:
        """``[N, R, F]`` of the same; of the first members where the rows have fewer."""
        normal = F.layer_norm(rows, self.normalized_shape, eps=self.eps)
        if self.weight is None:
            return normal
        weight = _first(self.weight, rows).unsqueeze(1)
        if self.bias is None:
            return normal * weight
        return torch.addcmul(_first(self.bias, rows).unsqueeze(1), normal, weight)

    def of_each(self, count: int) -> list[RowMap]:
        """The maps of the first members, from ``[R, F]`` to the same."""
        pairs = zip(_of_each(self.weight, count), _of_each(self.bias, count), strict=True)
        norm = partial(F.layer_norm, normalized_shape=self.normalized_shape, eps=self.eps)
        return [partial(norm, weight=weight, bias=bias) for weight, bias in pairs]


class BatchedMLP(StackedNetwork):
    """N multi-layer perceptrons of one architecture: ``[N, *B, out]`` from inputs ``[*B, F_i]`` that all of them see.

    Each member is drawn for itself. As a critic, one such network stands for an ensemble::

        ValueOperator(BatchedMLP(10, in_features=23, out_features=1, num_cells=[256, 256]), in_keys=["observation",
        "action"])

    Losses make one of the copies of an ``MLP`` by themselves.

    Args:
        num_copies: N.
        **mlp_options: of :class:`rl_modules.MLP`, ``in_features`` and ``out_features`` among them. Linear layers, layer
            norms, dropout and elementwise activations can be batched.

    Raises:
        SpecError: a layer cannot be batched, or in_features is missing.

    >>> net = BatchedMLP(10, in_features=4, out_features=1, num_cells=[8, 8])
    >>> net(torch.zeros(5, 3), torch.zeros(5, 1)).shape
    torch.Size([10, 5, 1])
    """

    def __init__(self, num_copies: int, **mlp_options: Any) -> None:
        from rl_modules.networks.mlp import MLP  # here: an MLP makes a BatchedMLP of its copies as well

        super().__init__(num_copies)
        if num_copies < 1:
            raise SpecError(f"BatchedMLP needs at least one copy; got num_copies={num_copies}")
        if mlp_options.get("in_features") is None:
            raise SpecError("BatchedMLP needs in_features, the features of its joined inputs: it cannot be lazy")
        members = [MLP(**mlp_options) for _ in range(num_copies)]
        layers = batched_layers(members)
        if layers is None:
            raise SpecError(
                f"BatchedMLP cannot batch the layers {', '.join(type(layer).__name__ for layer in members[0])}: it "
                "knows nn.Linear, nn.LayerNorm, nn.Dropout and elementwise activations. Give the loss a list of single "
                "networks instead."
            )
        self._set_layers(layers)

    @classmethod
    def of(cls, members: Sequence[nn.Sequential]) -> BatchedMLP | None:
        """The members as one network with copies of their weights; None where a layer cannot be batched."""
        layers = batched_layers(members)
        if layers is None:
            return None
        made = cls.__new__(cls)
        StackedNetwork.__init__(made, len(members))
        made._set_layers(layers)
        return made.train(members[0].training)

    def _set_layers(self, layers: Sequence[nn.Module]) -> None:
        self.layers = nn.ModuleList(layers)
        self._largest = max(
            (layer.weight[0].numel() for layer in layers if isinstance(layer, BatchedLinear)), default=0
        )

    def forward(self, *inputs: Tensor) -> Tensor:
        """Outputs ``[N, *B, out]``."""
        joined = inputs[0] if len(inputs) == 1 else torch.cat(inputs, -1)
        rows = joined if joined.ndim == 2 else joined.reshape(-1, joined.shape[-1])
        count = self.num_copies if self.active is None else self.active
        apart = count == 1 or (rows.is_cpu and self._largest >= _LARGE and not torch.compiler.is_compiling())
        outputs = self._one_by_one(rows, count) if apart else self._together(rows, count)
        return outputs if joined.ndim == 2 else outputs.reshape(count, *joined.shape[:-1], outputs.shape[-1])

    def _together(self, rows: Tensor, count: int) -> Tensor:
        rows = rows.expand(count, -1, -1)
        for layer in self.layers:
            rows = layer(rows)
        return rows

    def _one_by_one(self, rows: Tensor, count: int) -> Tensor:
        """The same, member after member: what one layer has written is still in the cache when the next one reads."""
        maps = [layer.of_each(count) if isinstance(layer, _BATCHED) else [layer] * count for layer in self.layers]
        outputs = []
        for chain in zip(*maps, strict=True):
            values = rows
            for layer in chain:
                values = layer(values)
            outputs.append(values)
        return torch.stack(outputs) if count > 1 else outputs[0].unsqueeze(0)


_BATCHED = (BatchedLinear, BatchedLayerNorm)


def batched_layers(members: Sequence[nn.Sequential]) -> list[nn.Module] | None:
    """One layer for all members at each depth; None where one cannot be batched."""
    layers: list[nn.Module] = []
    for position in zip(*members, strict=True):
        layer = _batched(position)
        if layer is None:
            return None
        layers.append(layer)
    return layers


def _batched(layers: Sequence[Any]) -> nn.Module | None:
    first = layers[0]
    if first._forward_hooks or first._forward_pre_hooks:
        return None
    kind = type(first)
    if kind is nn.Linear:
        return BatchedLinear(layers)
    if kind is nn.LayerNorm and len(first.normalized_shape) == 1:
        return BatchedLayerNorm(layers)
    return first if kind is nn.Dropout or kind in _ELEMENTWISE else None


def _of_each(parameter: Tensor | None, count: int) -> Sequence[Any]:
    """The parameters of the first members, one by one."""
    if parameter is None:
        return [None] * count
    return parameter.unbind(0) if count == parameter.shape[0] else [parameter[member] for member in range(count)]


def _first(parameter: Tensor, rows: Tensor) -> Tensor:
    """The parameters of as many members as there are in the rows."""
    count = rows.shape[0]
    return parameter if parameter.shape[0] == count else parameter[:count]


def _stacked(tensors: Sequence[Tensor | None]) -> nn.Parameter | None:
    """The parameters of all members as one, trainable where they were; None where the layers have none."""
    present = [tensor for tensor in tensors if tensor is not None]
    if not present:
        return None
    return nn.Parameter(torch.stack([tensor.detach() for tensor in present]), present[0].requires_grad)
