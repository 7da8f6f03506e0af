"""rl_core.training.seeding: the chain, the independent streams and the process's generators."""

import random

import numpy as np
import pytest
import torch

from rl_core import seed_everything, seed_generator, spawn_seeds


def test_seed_everything_makes_python_numpy_and_torch_repeat():
    def draw():
        return random.random(), np.random.rand(3).tolist(), torch.rand(3).tolist()

    seed_everything(7)
    first = draw()
    seed_everything(7)
    assert draw() == first
    seed_everything(8)
    assert draw() != first


def test_seed_everything_accepts_seeds_beyond_32_bits():
    seed_everything(2**40)


@pytest.mark.parametrize("bad", [-1, 1.5, True, "3"])
def test_a_bad_seed_is_refused_by_value(bad):
    with pytest.raises(ValueError, match="integer >= 0"):
        seed_everything(bad)


def test_seed_generator_is_the_known_chain():
    # The peer's published chain starts 0 -> 795726461.
    assert seed_generator(0) == 795726461
    assert seed_generator(795726461) == seed_generator(795726461) != 795726461


def test_runs_with_neighbouring_seeds_share_no_stream():
    runs = [set(spawn_seeds(seed, 64)) for seed in range(20)]
    assert len(set().union(*runs)) == 20 * 64


def test_workers_of_one_run_share_no_stream():
    workers = [set(spawn_seeds(0, 16, key=(worker,))) for worker in range(16)]
    assert len(set().union(*workers)) == 16 * 16


def test_more_seeds_start_with_the_fewer():
    assert spawn_seeds(5, 10)[:4] == spawn_seeds(5, 4)
    assert spawn_seeds(5, 0) == []
