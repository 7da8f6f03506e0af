"""SamplerKit: what every sampler of a replay buffer must get right.

A plugin's test file subclasses it and says how to make the subject::

    class TestMySampler(SamplerKit):
        def make(self):
            return MySampler()
"""

from __future__ import annotations

import copy
from typing import ClassVar

import torch

from rl_core.buffers import Sampler
from rl_core.errors import ReplayBufferError
from rl_core.testing.kit import Kit
from rl_core.testing.numbered_rows import CountedSlots, assert_raises

__all__ = ["SamplerKit"]


class SamplerKit(Kit):
    """Checks of a sampler.

    Attributes:
        without_replacement: whether an epoch gives every row exactly once; else the sampler never runs out.
        deterministic: whether it ignores the generator.
    """

    without_replacement: ClassVar[bool] = False
    deterministic: ClassVar[bool] = False

    def make(self) -> Sampler:
        """A new sampler; to be written by the subclass."""
        raise NotImplementedError("define make(self) in your subclass of SamplerKit")

    def _ready(self, filled: int, seed: int | None = 0) -> tuple[Sampler, CountedSlots]:
        sampler, storage = self.make(), CountedSlots(filled)
        sampler.generator = None if seed is None else torch.Generator().manual_seed(seed)
        sampler.extend(torch.arange(filled))
        return sampler, storage

    def test_slots_are_int64_on_the_cpu_and_filled(self) -> None:
        """Whatever the number of rows."""
        for filled in (1, 2, 7, 1000):
            sampler, storage = self._ready(filled)
            for _ in range(20):
                index, info = sampler.sample(storage, 5)
                assert index.dtype == torch.int64 and index.device.type == "cpu" and index.ndim == 1
                assert isinstance(info, dict)
                assert bool(((index >= 0) & (index < filled)).all()), f"slots {index.tolist()} of {filled} filled ones"
                assert 1 <= index.numel() <= 5

    def test_an_empty_storage_raises(self) -> None:
        """There is nothing to draw."""
        sampler, storage = self._ready(0)
        assert_raises(ReplayBufferError, lambda: sampler.sample(storage, 2), "sampling an empty storage")

    def test_every_row_can_come(self) -> None:
        """First and last included."""
        sampler, storage = self._ready(10)
        seen = {slot for _ in range(200) for slot in sampler.sample(storage, 5)[0].tolist()}
        assert seen == set(range(10)), f"slots {sorted(set(range(10)) - seen)} never came in 1000 draws"

    def test_new_rows_are_drawn(self) -> None:
        """Rows written after the first sample."""
        sampler, storage = self._ready(2)
        sampler.sample(storage, 2)
        storage.filled = 6
        sampler.extend(torch.arange(2, 6))
        seen = {slot for _ in range(100) for slot in sampler.sample(storage, 3)[0].tolist()}
        assert seen == set(range(6)), f"of 6 slots only {sorted(seen)} came"

    def test_an_epoch_covers_each_row_once_or_never_ends(self) -> None:
        """``ran_out`` tells the truth."""
        sampler, storage = self._ready(10)
        for _ in range(3):
            sampler.begin_epoch()
            drawn: list[int] = []
            for _ in range(4):
                if sampler.ran_out:
                    break
                drawn += sampler.sample(storage, 3)[0].tolist()
            if self.without_replacement:
                assert sampler.ran_out and sorted(drawn) == list(range(10)), f"an epoch gave {sorted(drawn)}"
            else:
                assert not sampler.ran_out

    def test_randomness_comes_from_the_generator_only(self) -> None:
        """Equal seeds, equal draws, for a generator and for ``torch.manual_seed``; other seeds, other draws."""

        def draws(seed: int, use_generator: bool) -> list[int]:
            sampler, storage = self._ready(1000, seed if use_generator else None)
            if not use_generator:
                torch.manual_seed(seed)
            return [slot for _ in range(5) for slot in sampler.sample(storage, 20)[0].tolist()]

        state = torch.get_rng_state()
        try:
            for use_generator in (True, False):
                first = draws(3, use_generator)
                torch.manual_seed(99)
                assert draws(3, use_generator) == first, "equal seeds gave different draws"
                assert self.deterministic or draws(4, use_generator) != first, "the seed has no effect"
        finally:
            torch.set_rng_state(state)

    def test_a_loaded_sampler_goes_on_as_the_saved_one(self) -> None:
        """In the middle of an epoch; and the loaded one can be saved again."""
        sampler, storage = self._ready(10)
        sampler.sample(storage, 3)
        generator = sampler.generator
        assert generator is not None
        state = generator.get_state()
        loaded, again = self.make(), self.make()
        loaded.load_state_dict(copy.deepcopy(sampler.state_dict()))
        again.load_state_dict(copy.deepcopy(loaded.state_dict()))
        draws = []
        for subject in (sampler, loaded, again):
            subject.generator = torch.Generator()
            subject.generator.set_state(state)
            draws.append([subject.sample(storage, 3)[0].tolist() for _ in range(5)])
        assert draws[0] == draws[1] == draws[2], f"saved, loaded and loaded again draw {draws}"
