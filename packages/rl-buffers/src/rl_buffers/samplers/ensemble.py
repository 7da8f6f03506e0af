"""SamplerEnsemble: which buffers of an ensemble take part in a batch; their own samplers choose the rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rl_core.buffers import Sampler
from rl_core.errors import ReplayBufferError

__all__ = ["SamplerEnsemble"]


class SamplerEnsemble:
    """The samplers of a :class:`~rl_buffers.ReplayBufferEnsemble`, and how often each of them is asked.

    Args:
        *samplers: one for each buffer.
        p: probabilities of the buffers, >= 0, of any sum; default: all the same.
        sample_from_all: each buffer gives one part of every batch; `p` and `num_buffer_sampled` are left out then.
        num_buffer_sampled: of how many parts a batch is, each from a buffer that is drawn with replacement; default: as
            many as there are buffers.

    >>> from rl_buffers import RandomSampler
    >>> SamplerEnsemble(RandomSampler(), RandomSampler(), sample_from_all=True).choose()
    [0, 1]
    """

    generator: torch.Generator | None = None

    def __init__(
        self,
        *samplers: Sampler,
        p: Sequence[float] | Tensor | None = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
    ) -> None:
        n = len(samplers)
        if not n:
            raise ReplayBufferError("a SamplerEnsemble needs at least one sampler")
        if sample_from_all and (p is not None or num_buffer_sampled not in (None, n)):
            raise ReplayBufferError(
                "sample_from_all=True takes one part of each buffer: leave out p and num_buffer_sampled"
            )
        if num_buffer_sampled is not None and num_buffer_sampled < 1:
            raise ReplayBufferError(f"num_buffer_sampled must be at least 1, got {num_buffer_sampled}")
        self.samplers, self.sample_from_all = samplers, sample_from_all
        self.num_buffer_sampled = n if num_buffer_sampled is None else num_buffer_sampled
        self.p = p

    @property
    def p(self) -> Tensor | None:
        """Probabilities of the buffers, float64 ``[buffers]`` of sum 1, or ``None`` where all are the same."""
        return self._p

    @p.setter
    def p(self, value: Sequence[float] | Tensor | None) -> None:
        if value is None:
            self._p: Tensor | None = None
            return
        p = torch.as_tensor(value, dtype=torch.float64).flatten()
        if p.numel() != len(self.samplers) or not bool((torch.isfinite(p) & (p >= 0)).all()) or not float(p.sum()) > 0:
            raise ReplayBufferError(
                f"p are {len(self.samplers)} numbers >= 0, one for each buffer and not all 0; got {p.tolist()}"
            )
        self._p = p / p.sum()

    def choose(self) -> list[int]:
        """The buffers that the next batch is of, one for each of its parts."""
        n = len(self.samplers)
        if self.sample_from_all:
            return list(range(n))
        if self._p is None:
            return torch.randint(n, (self.num_buffer_sampled,), generator=self.generator).tolist()
        return torch.multinomial(self._p, self.num_buffer_sampled, True, generator=self.generator).tolist()

    def part_size(self, batch_size: int) -> int:
        """The number of rows in each part.

        Raises:
            ReplayBufferError: the batch size cannot be divided.
        """
        if batch_size % self.num_buffer_sampled:
            raise ReplayBufferError(
                f"a batch of {batch_size} rows cannot be divided into {self.num_buffer_sampled} parts of one size: "
                "choose a multiple of it, or another num_buffer_sampled"
            )
        return batch_size // self.num_buffer_sampled

    def __getitem__(self, buffer: int) -> Sampler:
        return self.samplers[buffer]

    def __iter__(self) -> Iterator[Sampler]:
        return iter(self.samplers)

    def __len__(self) -> int:
        return len(self.samplers)
