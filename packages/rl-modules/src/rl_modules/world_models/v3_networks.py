"""DreamerV3's networks: perceptron, image encoder and image decoder, normed at every layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_modules.world_models.parts import BlockLinear, ChannelRMSNorm, RMSNorm

__all__ = ["DreamerV3ImageDecoder", "DreamerV3ImageEncoder", "DreamerV3MLP"]


class DreamerV3MLP(nn.Module):
    """Hidden layers of linear map, RMS norm and SiLU, then a linear map.

    Weights are drawn from a truncated normal distribution of variance 1 / mean(inputs, outputs). Several inputs are
    concatenated on their last dimension.

    Args:
        in_features: of all inputs together.
        out_features: of the output; None: the last hidden layer is the output.
        depth: hidden layers.
        num_cells: units of each.
        outscale: factor on the last layer's first weights; 0 starts with the output 0, right for rewards and values.
        norm_eps: of the norms.
        device: of the parameters.

    Hafner et al., 2023, Mastering Diverse Domains through World Models, appendix B, arXiv 2301.04104.

    >>> DreamerV3MLP(7, 3, depth=2, num_cells=16)(torch.zeros(5, 4), torch.zeros(5, 3)).shape
    torch.Size([5, 3])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int | None,
        depth: int = 3,
        num_cells: int = 1024,
        outscale: float = 1.0,
        norm_eps: float = 1e-4,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(depth):
            layers += [_linear(in_features, num_cells, 1.0, device), RMSNorm(num_cells, norm_eps, device), nn.SiLU()]
            in_features = num_cells
        if out_features is not None:
            layers.append(_linear(in_features, out_features, outscale, device))
        self.layers = nn.Sequential(*layers)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Outputs [*B, out_features] of inputs [*B, F_i]."""
        output: Tensor = self.layers(inputs[0] if len(inputs) == 1 else torch.cat(inputs, -1))
        return output


class DreamerV3ImageEncoder(nn.Module):
    """Convolutions with stride 2, RMS norm over channels and SiLU, then flattened.

    Args:
        in_channels: of the image.
        depth: channels of layer i are ``depth * mults[i]``.
        mults: one for each layer; every layer halves height and width.
        kernel_size: an odd number.
        norm_eps: of the norms.
        device: of the parameters.

    Hafner et al., 2023, appendix B, arXiv 2301.04104.

    >>> encoder = DreamerV3ImageEncoder(3, depth=4)
    >>> encoder(torch.zeros(2, 5, 3, 64, 64)).shape, encoder.output_features((3, 64, 64))
    (torch.Size([2, 5, 256]), 256)
    """

    def __init__(
        self,
        in_channels: int = 3,
        depth: int = 64,
        mults: Sequence[int] = (2, 3, 4, 4),
        kernel_size: int = 5,
        norm_eps: float = 1e-4,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        _check_kernel(kernel_size)
        self.channels = [depth * mult for mult in mults]
        layers: list[nn.Module] = []
        for inputs, outputs in zip([in_channels, *self.channels[:-1]], self.channels, strict=True):
            convolution = nn.Conv2d(inputs, outputs, kernel_size, stride=2, padding=kernel_size // 2, device=device)
            layers += [convolution, ChannelRMSNorm(outputs, norm_eps, device), nn.SiLU()]
        self.layers = nn.Sequential(*layers)

    def output_features(self, image_shape: tuple[int, int, int]) -> int:
        """The number of features of an image of shape (C, H, W)."""
        height, width = image_shape[1:]
        for _ in self.channels:
            height, width = (height + 1) // 2, (width + 1) // 2
        return self.channels[-1] * height * width

    def forward(self, image: Tensor) -> Tensor:
        """Features [*B, F] of images [*B, C, H, W]."""
        output: Tensor = self.layers(image.reshape(-1, *image.shape[-3:]))
        return output.reshape(*image.shape[:-3], -1)


class DreamerV3ImageDecoder(nn.Module):
    """A block-linear map to a small image, then layers that double its size.

    Args:
        in_features: of all inputs together, a multiple of num_blocks.
        image_shape: (C, H, W); H and W are multiples of 2 to the number of layers.
        depth: channels of layer i are ``depth * mults[i]``, the last layer's being next to the small image.
        mults: one for each layer.
        kernel_size: an odd number.
        num_blocks: of the first layer.
        norm_eps: of the norms.
        device: of the parameters.
        squash: map the output into (0, 1) by a sigmoid, as DreamerV3 does for images in [0, 1].

    Raises:
        SpecError: the image or the number of inputs cannot be divided so.

    Hafner et al., 2023, appendix B, arXiv 2301.04104.

    >>> DreamerV3ImageDecoder(16, (1, 16, 16), depth=4, mults=(1, 2))(torch.zeros(3, 10), torch.zeros(3, 6)).shape
    torch.Size([3, 1, 16, 16])
    """

    def __init__(
        self,
        in_features: int,
        image_shape: tuple[int, int, int] = (3, 64, 64),
        depth: int = 64,
        mults: Sequence[int] = (2, 3, 4, 4),
        kernel_size: int = 5,
        num_blocks: int = 8,
        norm_eps: float = 1e-4,
        device: torch.device | str | None = None,
        *,
        squash: bool = False,
    ) -> None:
        super().__init__()
        _check_kernel(kernel_size)
        channels, height, width = image_shape
        shrink = 2 ** len(mults)
        if height % shrink or width % shrink:
            raise SpecError(
                f"{type(self).__name__} doubles an image {len(mults)} times; {height} x {width} is no multiple of "
                f"{shrink}: give fewer mults"
            )
        hidden = [depth * mult for mult in reversed(mults)]
        self.small = (hidden[0], height // shrink, width // shrink)
        self.first = BlockLinear(in_features, math.prod(self.small), num_blocks, device)
        layers: list[nn.Module] = [ChannelRMSNorm(hidden[0], norm_eps, device), nn.SiLU()]
        for inputs, outputs in zip(hidden, [*hidden[1:], channels], strict=True):
            layers.append(nn.Upsample(scale_factor=2, mode="nearest"))
            layers.append(nn.Conv2d(inputs, outputs, kernel_size, padding=kernel_size // 2, device=device))
            layers += [ChannelRMSNorm(outputs, norm_eps, device), nn.SiLU()]
        del layers[-2:]  # the image itself is neither normed nor cut
        self.layers = nn.Sequential(*layers, *([nn.Sigmoid()] if squash else []))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Images [*B, C, H, W] of inputs [*B, F_i]."""
        joined = inputs[0] if len(inputs) == 1 else torch.cat(inputs, -1)
        output: Tensor = self.layers(self.first(joined).reshape(-1, *self.small))
        return output.reshape(*joined.shape[:-1], *output.shape[1:])


def _check_kernel(kernel_size: int) -> None:
    if kernel_size < 1 or kernel_size % 2 == 0:
        raise SpecError(f"kernel_size is odd, so that layers halve and double the size exactly; got {kernel_size}")


def _linear(inputs: int, outputs: int, scale: float, device: torch.device | str | None) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, device=device)
    # 0.8796 is the standard deviation of a normal variable cut at 2
    std = scale * math.sqrt(2 / (inputs + outputs)) / 0.87962566
    if std:
        nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    else:
        nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
