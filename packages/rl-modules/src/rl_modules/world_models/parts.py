"""Layers that world models are built of: norms, blocks of linear maps, and a linear map of two inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from rl_core.errors import SpecError
from rl_core.specs import Binary, MultiOneHot, OneHot, TensorSpec

__all__ = ["BlockLinear", "ChannelRMSNorm", "JointLinear", "RMSNorm", "action_width", "linear", "recurrent_step"]


def action_width(spec: TensorSpec | None, action_dim: int | Sequence[int] | None, owner: str) -> int:
    """The number of inputs that an action is.

    Args:
        spec: of the action.
        action_dim: the number, or the action's shape, where there is no spec.
        owner: who asks, for the error.

    Raises:
        SpecError: neither says it, or actions are indices.
    """
    if action_dim is not None:
        return action_dim if isinstance(action_dim, int) else math.prod(action_dim)
    if spec is None:
        raise SpecError(f"{owner} needs the size of an action: give action_spec, or action_dim")
    vector = isinstance(spec, OneHot | MultiOneHot | Binary) or (
        spec.dtype is not None and spec.dtype.is_floating_point
    )
    if not spec.shape or not vector:
        raise SpecError(
            f"{owner} reads actions as vectors; {spec} holds indices. Use one-hot actions (a OneHot spec, or "
            "categorical_action_encoding=False where a wrapper has that option)"
        )
    return int(spec.shape[-1])


def recurrent_step(cell: nn.GRUCell, inputs: Tensor, hidden: Tensor) -> Tensor:
    """One step of torch's GRU cell over any batch shape."""
    if inputs.ndim == 2:
        step: Tensor = cell(inputs, hidden)
        return step
    batch = inputs.shape[:-1]
    flat: Tensor = cell(inputs.reshape(-1, inputs.shape[-1]), hidden.reshape(-1, hidden.shape[-1]))
    return flat.reshape(*batch, -1)


def linear(inputs: int | None, outputs: int, **options: Any) -> nn.Module:
    """A linear map; the number of inputs is found at the first call where None."""
    return nn.LazyLinear(outputs, **options) if inputs is None else nn.Linear(inputs, outputs, **options)


class RMSNorm(nn.Module):
    """Division by the root of the mean square, times a learnt scale.

    Zhang and Sennrich, 2019, Root Mean Square Layer Normalization, eq. 4, arXiv 1910.07467.

    Args:
        features: size of the last dimension.
        eps: added to the mean square.
        device: of the scale.
    """

    def __init__(self, features: int, eps: float = 1e-4, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(features, device=device))

    def forward(self, value: Tensor) -> Tensor:
        """[*B, F]."""
        return F.rms_norm(value, self.weight.shape, self.weight, self.eps)


class ChannelRMSNorm(RMSNorm):
    """:class:`RMSNorm` over the channels of each pixel of images [N, C, H, W]."""

    def forward(self, value: Tensor) -> Tensor:
        """[N, C, H, W]."""
        scale = (value.square().mean(-3, keepdim=True) + self.eps).rsqrt()
        return value * scale * self.weight.reshape(-1, 1, 1)


class JointLinear(nn.Module):
    """One linear map of two inputs, ``W [x; y] + b``, whose two summands can be computed apart.

    Args:
        first_dim: size of x; found at the first call where None.
        second_dim: size of y; likewise.
        out_features: size of the output.
        device: of the parameters.
    """

    def __init__(
        self,
        first_dim: int | None,
        second_dim: int | None,
        out_features: int,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        known = first_dim is not None and second_dim is not None
        self.first_dim = first_dim
        self.layer = linear(first_dim + second_dim if known else None, out_features, device=device)  # type: ignore[operator]

    def first(self, value: Tensor) -> Tensor:
        """``W_x x``; :meth:`second` was called before."""
        return F.linear(value, self.layer.weight[:, : self.first_dim])  # type: ignore[index]

    def second(self, first: Tensor, value: Tensor) -> Tensor:
        """``W_y y + b``.

        Args:
            first: an x of any batch shape; its size is learnt from it at the first call.
            value: [*B, F].
        """
        if isinstance(self.layer.weight, UninitializedParameter):
            self.first_dim = first.shape[-1]
            self.layer(value.new_zeros(self.first_dim + value.shape[-1]))
        if self.first_dim is None:  # the weights came from a state_dict
            self.first_dim = first.shape[-1]
        return F.linear(value, self.layer.weight[:, self.first_dim :], self.layer.bias)  # type: ignore[index,arg-type]


class BlockLinear(nn.Module):
    """Linear maps of the blocks of a vector, each of its own: a block-diagonal matrix.

    Args:
        in_features: of the whole input, a multiple of num_blocks.
        out_features: of the whole output, a multiple of num_blocks.
        num_blocks: how many blocks.
        device: of the parameters.

    Raises:
        SpecError: the features cannot be divided.
    """

    def __init__(
        self, in_features: int, out_features: int, num_blocks: int, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        if num_blocks < 1 or in_features % num_blocks or out_features % num_blocks:
            raise SpecError(
                f"{in_features} inputs and {out_features} outputs cannot be divided into {num_blocks} blocks: give "
                "num_blocks= a common divisor"
            )
        self.num_blocks = num_blocks
        inputs, outputs = in_features // num_blocks, out_features // num_blocks
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(num_blocks, inputs, outputs, device=device).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_blocks, 1, outputs, device=device).uniform_(-bound, bound))

    def forward(self, value: Tensor) -> Tensor:
        """[*B, in_features] to [*B, out_features]."""
        batch = value.shape[:-1]
        blocks = value.reshape(-1, self.num_blocks, self.weight.shape[1]).transpose(0, 1)
        return torch.baddbmm(self.bias, blocks, self.weight).transpose(0, 1).reshape(*batch, -1)
