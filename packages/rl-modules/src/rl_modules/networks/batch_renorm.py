"""Batch normalisation whose training output follows the running moments."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl_core.errors import SpecError

__all__ = ["BatchRenorm1d"]


class BatchRenorm1d(nn.Module):
    r"""Normalises each feature by its batch moments, corrected towards the running ones.

    .. math:: y = w \left(\frac{x - \mu_B}{\sigma_B} r + d\right) + b, \quad
        r = \mathrm{clip}(\sigma_B / \sigma, 1 / r_{max}, r_{max}), \quad
        d = \mathrm{clip}((\mu_B - \mu) / \sigma, -d_{max}, d_{max})

    where r and d pass no gradient. Without the clips the output is that of evaluation, ``(x - mu) / sigma``, for which
    the running moments are used alone. During the warm-up r is 1 and d is 0, which is batch normalisation.

    Args:
        num_features: F.
        momentum: share of the batch moments that the running ones take at each training call, in (0, 1].
        eps: added to variances.
        max_r: the largest r, at least 1.
        max_d: the largest absolute d, at least 0.
        warmup_steps: training calls before the correction is in force.
        smooth: let the clips grow linearly to ``max_r`` and ``max_d`` over the warm-up instead of opening at its end.

    Raises:
        SpecError: an option is out of its range; the input's last dim is not F; one row in training.

    Ioffe, 2017, Batch Renormalization: Towards Reducing Minibatch Dependence in Batch-Normalized Models, algorithm 1,
    arXiv 1702.03275.

    >>> norm = BatchRenorm1d(1, warmup_steps=0)
    >>> norm(torch.tensor([[1.0], [3.0]])).detach().squeeze(-1)
    tensor([1.0000, 3.0000])
    """

    def __init__(
        self,
        num_features: int,
        momentum: float = 0.01,
        eps: float = 1e-5,
        max_r: float = 3.0,
        max_d: float = 5.0,
        warmup_steps: int = 10_000,
        smooth: bool = False,
    ) -> None:
        super().__init__()
        if not (0.0 < momentum <= 1.0 and max_r >= 1.0 and max_d >= 0.0 and warmup_steps >= 0):
            raise SpecError(
                "BatchRenorm1d needs momentum in (0, 1], max_r >= 1, max_d >= 0 and warmup_steps >= 0; got "
                f"momentum={momentum}, max_r={max_r}, max_d={max_d}, warmup_steps={warmup_steps}"
            )
        self.num_features, self.momentum, self.eps = num_features, momentum, eps
        self.max_r, self.max_d, self.warmup_steps, self.smooth = max_r, max_d, warmup_steps, smooth
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.running_mean: Tensor
        self.running_var: Tensor
        self.num_batches_tracked: Tensor
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.zeros((), dtype=torch.int64))

    def reset_parameters(self) -> None:
        """Forget what was learnt: identity weights and standard moments."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        self.running_mean.zero_()
        self.running_var.fill_(1)
        self.num_batches_tracked.zero_()

    def forward(self, features: Tensor) -> Tensor:
        """Normalised features.

        Args:
            features: ``[*B, F]``; all leading dims are rows.

        Returns:
            Same shape.
        """
        if features.shape[-1] != self.num_features:
            raise SpecError(f"BatchRenorm1d({self.num_features}) got {list(features.shape)}: another last dim")
        normal = self._normal(features) if self.training else self._fixed(features)
        return torch.addcmul(self.bias, normal, self.weight)

    def _fixed(self, features: Tensor) -> Tensor:
        return (features - self.running_mean) * (self.running_var + self.eps).rsqrt()

    def _normal(self, features: Tensor) -> Tensor:
        rows = features if features.ndim == 2 else features.reshape(-1, self.num_features)
        if rows.shape[0] < 2:
            raise SpecError("BatchRenorm1d needs at least 2 rows in training; call .eval() to use running moments")
        variance, mean = torch.var_mean(rows, 0, correction=0)
        normal = (features - mean) * (variance + self.eps).rsqrt()
        r, d = self._correction(mean.detach(), variance.detach())
        normal = torch.addcmul(d, normal, r)
        self._track(mean.detach(), variance.detach() * (rows.shape[0] / (rows.shape[0] - 1)))
        return normal

    def _correction(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """(r, d), each [F]; 1 and 0 in the warm-up. The step count stays a tensor: nothing waits for a device."""
        steps = self.num_batches_tracked
        if self.smooth and self.warmup_steps > 0:
            open_share = (steps / self.warmup_steps).clamp(max=1)
        else:
            open_share = (steps >= self.warmup_steps).to(mean.dtype)
        largest_r, largest_d = 1 + open_share * (self.max_r - 1), open_share * self.max_d
        scale = (self.running_var + self.eps).rsqrt()
        r = ((variance + self.eps).sqrt() * scale).clamp(1 / largest_r, largest_r)
        d = ((mean - self.running_mean) * scale).clamp(-largest_d, largest_d)
        return r, d

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_(variance.to(self.running_var.dtype), self.momentum)
        self.num_batches_tracked += 1

    def extra_repr(self) -> str:
        return f"{self.num_features}, momentum={self.momentum}, max_r={self.max_r}, max_d={self.max_d}"
