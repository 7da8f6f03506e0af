"""The catch game: its pictures, its physics, and a player that always catches."""

import pytest
import torch

from rl_core.errors import EnvError
from rl_core.testing import EnvKit
from rl_envs import CatchEnv


class TestCatchEnvs(EnvKit):
    distribution = "rl-envs"

    def make_env(self):
        return CatchEnv(num_envs=3, size=6)


class TestOneCatchEnv(EnvKit):
    distribution = "rl-envs"

    def make_env(self):
        return CatchEnv(size=5)


def one_hot(moves):
    return torch.nn.functional.one_hot(torch.as_tensor(moves), 3)


def lit(picture):
    return {tuple(place) for place in (picture[0] == 255).nonzero().tolist()}


def place(env, column, speed):
    """Put every ball into a column of the top row, with a drift."""
    td = env.reset()
    env._column[:], env._speed[:] = column, speed
    return td


def landing(column, speed, steps, size):
    """Where a ball ends up, unfolding the reflections: a walk on a circle of 2 (size - 1) columns."""
    place = (column + speed * steps) % (2 * (size - 1))
    return min(place, 2 * (size - 1) - place)


def test_a_picture_shows_ball_and_paddle():
    env = CatchEnv(size=8, seed=0)
    td = place(env, 2, 1)
    td = env.step(td.set("action", one_hot(0).bool()))
    assert lit(td["next", "pixels"]) == {(1, 3), (7, 2), (7, 3), (7, 4)}
    assert td["next", "pixels"].dtype == torch.uint8 and td["next", "reward"].item() == 0


def test_balls_are_reflected_at_the_walls():
    for column in range(6):
        for speed in (-1, 0, 1):
            env = CatchEnv(size=6)
            td = place(env, column, speed)
            for _ in range(5):
                td = env.step(td.set("action", one_hot(1).bool()))
            assert env._column.item() == landing(column, speed, 5, 6)
            caught = abs(env._column.item() - 3) <= 1
            assert td["next", "reward"].item() == (1 if caught else -1)
            assert td["next", "terminated"].all()


@pytest.mark.parametrize("size", [5, 16])
def test_every_ball_can_be_caught_so_the_best_return_is_one(size):
    starts = [(column, speed) for column in range(size) for speed in (-1, 0, 1)]
    env = CatchEnv(num_envs=len(starts), size=size)
    td = place(env, [column for column, _ in starts], [speed for _, speed in starts])
    targets = torch.tensor([landing(column, speed, size - 1, size) for column, speed in starts])
    total = torch.zeros(len(starts))
    for _ in range(size - 1):
        moves = 1 + (targets - torch.from_numpy(env._paddle)).sign()
        td = env.step(td.set("action", one_hot(moves).bool()))
        total += td["next", "reward"].flatten()
    assert td["next", "terminated"].all() and torch.equal(total, torch.ones(len(starts)))


def test_a_partial_reset_leaves_the_other_rows():
    env = CatchEnv(num_envs=2, size=8, seed=1)
    td = env.reset()
    for _ in range(3):
        td = env.step_mdp(env.rand_step(td))
    before = td["pixels"].clone()
    td = env.reset(td.set("_reset", torch.tensor([[True], [False]])))
    assert torch.equal(td["pixels"][1], before[1]) and env._row.tolist() == [0, 3]
    assert all(row in (0, 7) for row, _ in lit(td["pixels"][0]))


def test_seeds_and_states_repeat_the_game():
    games = [CatchEnv(num_envs=4, seed=3) for _ in range(2)]
    assert torch.equal(games[0].reset()["pixels"], games[1].reset()["pixels"])
    saved = games[0].state_dict()
    again = CatchEnv(num_envs=4, seed=9)
    assert again.load_state_dict(saved)
    assert torch.equal(again.reset()["pixels"], games[0].reset()["pixels"])
    assert CatchEnv(num_envs=50, drift=False)._speed.any() == False  # noqa: E712 (a numpy bool)
    with pytest.raises(EnvError, match="5 x 5"):
        CatchEnv(size=4)
