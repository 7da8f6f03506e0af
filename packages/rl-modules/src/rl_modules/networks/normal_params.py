"""Split of a network's output into the location and the scale of a normal distribution."""

from __future__ import annotations

import torch.nn.functional as F
from tensordict.nn import biased_softplus, mappings
from torch import Tensor, nn

from rl_modules.scalars import scalar

__all__ = ["NormalParamExtractor", "NormalParamsNet"]


class NormalParamExtractor(nn.Module):
    """Splits the last dim of a tensor into halves: location, and a value that is mapped to a positive scale.

    Args:
        scale_mapping: name of a map of :func:`tensordict.nn.mappings`: ``"biased_softplus_1.0"`` (a softplus shifted so
            that 0 gives 1), ``"softplus"``, ``"exp"``, ``"relu"``, ``"none"`` ...
        scale_lb: lower bound of the scale.

    >>> import torch
    >>> NormalParamExtractor()(torch.tensor([0.5, 0.0]))
    (tensor([0.5000]), tensor([1.]))
    """

    def __init__(self, scale_mapping: str = "biased_softplus_1.0", scale_lb: float = 1e-4) -> None:
        super().__init__()
        mapping = mappings(scale_mapping)
        self._softplus: tuple[float, float] | None = None
        if isinstance(mapping, biased_softplus):
            self._softplus = (float(mapping.bias), float(mapping.min_val))
        self.scale_mapping = mapping
        self.scale_lb = scale_lb

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Split the first tensor; further ones pass through.

        Args:
            *tensors: ``[*B, 2 A]``, then anything.

        Returns:
            loc ``[*B, A]``, scale ``[*B, A]``, then the further tensors.

        Raises:
            ValueError: if the last dim is odd.
        """
        joint, *others = tensors
        if joint.shape[-1] % 2:
            raise ValueError(
                f"NormalParamExtractor splits the last dim in halves; got shape {list(joint.shape)}, whose last dim is "
                f"odd. The layer before it needs 2 * action_dim outputs."
            )
        loc, scale = joint.chunk(2, -1)
        if self._softplus is None:
            return (loc, self.scale_mapping(scale).clamp_min(self.scale_lb), *others)
        # the same operations, less those that change nothing
        shift, floor = self._softplus
        dtype, device = scale.dtype, scale.device
        scale = F.softplus(scale + scalar(shift, dtype, device)) + scalar(floor, dtype, device)
        return (loc, scale if floor >= self.scale_lb else scale.clamp_min(self.scale_lb), *others)


class NormalParamsNet(nn.Module):
    """A network followed by :class:`NormalParamExtractor`.

    Args:
        operator: the network; its (first) output has ``2 * A`` features.
        scale_mapping: as in :class:`NormalParamExtractor`.
        scale_lb: lower bound of the scale.
    """

    def __init__(self, operator: nn.Module, scale_mapping: str = "biased_softplus_1.0", scale_lb: float = 1e-4) -> None:
        super().__init__()
        self.operator = operator
        self.extractor = NormalParamExtractor(scale_mapping, scale_lb)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Loc ``[*B, A]``, scale ``[*B, A]`` and the network's further outputs."""
        output = self.operator(*tensors)
        return self.extractor(*output) if isinstance(output, tuple) else self.extractor(output)
