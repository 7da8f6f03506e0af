"""The sampler of a dataset that is asked for parts of episodes."""

from __future__ import annotations

from rl_buffers.datasets.errors import DatasetError
from rl_buffers.samplers.slices import SliceSampler
from rl_buffers.samplers.slices_without_replacement import SliceSamplerWithoutReplacement
from rl_core.buffers import Sampler

__all__ = ["slice_sampler"]


def slice_sampler(
    sampler: Sampler | None, num_slices: int | None, slice_len: int | None, strict_length: bool, replacement: bool
) -> Sampler | None:
    """A slice sampler where a number or a length of slices is given, else `sampler`.

    Raises:
        DatasetError: both a sampler and slices are given.
    """
    if num_slices is None and slice_len is None:
        return sampler
    if sampler is not None:
        raise DatasetError("give a sampler, or num_slices or slice_len, not both")
    kind = SliceSampler if replacement else SliceSamplerWithoutReplacement
    return kind(num_slices=num_slices, slice_len=slice_len, strict_length=strict_length)
