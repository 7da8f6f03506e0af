"""The core's conformance kit on collectors with worker processes."""

from __future__ import annotations

from rl_collectors import AsyncCollector, MultiAsyncCollector, MultiSyncCollector
from rl_core.testing import CollectorKit
from rl_core.testing.kit import overrides_check


class TestMultiSyncCollector(CollectorKit):
    distribution = "rl-collectors"
    takes_environments = False

    def make(self, create_env_fn, policy, *, frames_per_batch, total_frames):
        return MultiSyncCollector(
            [create_env_fn] * 2, policy, frames_per_batch=frames_per_batch, total_frames=total_frames,
            mp_start_method="fork",
        )  # fmt: skip


TOO_FEW = "the check's budget ends before two batches in flight are over, twice; test_weight_sync.py has it"


class TestAsyncCollector(CollectorKit):
    distribution = "rl-collectors"
    takes_environments = False
    batches_in_flight = 2

    def make(self, create_env_fn, policy, *, frames_per_batch, total_frames):
        return AsyncCollector(
            create_env_fn, policy, frames_per_batch=frames_per_batch, total_frames=total_frames, mp_start_method="fork"
        )

    @overrides_check(reason=TOO_FEW)
    def test_updated_weights_arrive(self) -> None:
        pass


class TestMultiAsyncCollector(CollectorKit):
    distribution = "rl-collectors"
    takes_environments = False
    batches_in_flight = 4

    def make(self, create_env_fn, policy, *, frames_per_batch, total_frames):
        return MultiAsyncCollector(
            create_env_fn, policy, num_workers=2, frames_per_batch=frames_per_batch, total_frames=total_frames,
            mp_start_method="fork",
        )  # fmt: skip

    @overrides_check(reason="batches come in the order in which workers finish them, which no seed governs")
    def test_the_same_seed_gives_the_same_batches(self) -> None:
        pass

    @overrides_check(reason=TOO_FEW)
    def test_updated_weights_arrive(self) -> None:
        pass
