"""Dreamer's image encoder and decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_modules.world_models.parts import linear

__all__ = ["ObsDecoder", "ObsEncoder"]


class ObsEncoder(nn.Module):
    """Convolutions with kernel 4 and stride 2, each with twice the channels of the one before, then flattened.

    Args:
        channels: of the first layer.
        num_layers: how many; 4 for images of 64 x 64.
        in_channels: of the image; found at the first call where None.
        depth: older name of channels.
        device: of the parameters.

    Hafner et al., 2020, Dream to Control, appendix A, arXiv 1912.01603.

    >>> ObsEncoder(in_channels=3)(torch.zeros(2, 5, 3, 64, 64)).shape
    torch.Size([2, 5, 1024])
    """

    def __init__(
        self,
        channels: int = 32,
        num_layers: int = 4,
        in_channels: int | None = None,
        depth: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise SpecError(f"ObsEncoder has at least one layer; got num_layers={num_layers}")
        channels = channels if depth is None else depth
        layers: list[nn.Module] = []
        widths = [channels * 2**index for index in range(num_layers)]
        for inputs, outputs in zip([in_channels, *widths[:-1]], widths, strict=True):
            options: dict[str, Any] = {"kernel_size": 4, "stride": 2, "device": device}
            layers.append(
                nn.LazyConv2d(outputs, **options) if inputs is None else nn.Conv2d(inputs, outputs, **options)
            )
            layers.append(nn.ReLU())
        self.layers = nn.Sequential(*layers)

    def forward(self, observation: Tensor) -> Tensor:
        """Features [*B, F] of images [*B, C, H, W]."""
        batch = observation.shape[:-3]
        output: Tensor = self.layers(observation.reshape(-1, *observation.shape[-3:]))
        return output.reshape(*batch, -1)


class ObsDecoder(nn.Module):
    """Transposed convolutions with stride 2, from a state and a belief to an image.

    Args:
        channels: of the last hidden layer; each before it has twice as many.
        num_layers: how many; without kernel_sizes 2, 3 and 4 give images of 16, 32 and 64 pixels.
        kernel_sizes: of each layer.
        latent_dim: size of state and belief together; found at the first call where None.
        out_channels: of the image.
        depth: older name of channels.
        device: of the parameters.

    Raises:
        SpecError: there is not one kernel size for each layer.

    Hafner et al., 2020, appendix A, arXiv 1912.01603.

    >>> ObsDecoder(latent_dim=50)(torch.zeros(2, 5, 30), torch.zeros(2, 5, 20)).shape
    torch.Size([2, 5, 3, 64, 64])
    """

    def __init__(
        self,
        channels: int = 32,
        num_layers: int = 4,
        kernel_sizes: int | Sequence[int] | None = None,
        latent_dim: int | None = None,
        out_channels: int = 3,
        depth: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        channels = channels if depth is None else depth
        kernels = _kernels(kernel_sizes, num_layers)
        width = channels * 2 ** (num_layers - 1) * 4
        self.width = width
        self.first = linear(latent_dim, width, device=device)
        layers: list[nn.Module] = [nn.ReLU()]
        for index, kernel in enumerate(kernels):
            last = index == num_layers - 1
            outputs = out_channels if last else channels * 2 ** (num_layers - 2 - index)
            layers.append(nn.ConvTranspose2d(width, outputs, kernel, stride=2, device=device))
            layers += [] if last else [nn.ReLU()]
            width = outputs
        self.layers = nn.Sequential(*layers)

    def forward(self, state: Tensor, rnn_hidden: Tensor) -> Tensor:
        """Images [*B, C, H, W] of states [*B, S] and beliefs [*B, H]."""
        hidden: Tensor = self.first(torch.cat([state, rnn_hidden], -1))
        output: Tensor = self.layers(hidden.reshape(-1, self.width, 1, 1))
        return output.reshape(*hidden.shape[:-1], *output.shape[1:])


def _kernels(kernel_sizes: int | Sequence[int] | None, num_layers: int) -> list[int]:
    if num_layers < 1:
        raise SpecError(f"ObsDecoder has at least one layer; got num_layers={num_layers}")
    if kernel_sizes is None:
        return ([5] * (num_layers - 2) + [6, 6])[-num_layers:]
    kernels = [kernel_sizes] * num_layers if isinstance(kernel_sizes, int) else list(kernel_sizes)
    if len(kernels) != num_layers:
        raise SpecError(f"ObsDecoder has {num_layers} layers and got {len(kernels)} kernel_sizes")
    return kernels
