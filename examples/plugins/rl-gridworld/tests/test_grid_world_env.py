"""The gridworld keeps the contract, and its best return is the one that a shortest walk earns."""

import torch
from rl_gridworld.env import GridWorldEnv
from tensordict import TensorDict

from rl_core.testing import EnvKit

UP, RIGHT, DOWN, LEFT = range(4)


class TestOneWalker(EnvKit):
    def make_env(self):
        return GridWorldEnv(8)


class TestManyWalkers(EnvKit):
    picklable = True

    def make_env(self):
        return GridWorldEnv(4, batch_size=[5])


def walk(env, action):
    return env.step(TensorDict({"action": torch.as_tensor(action)}, batch_size=env.batch_size))["next"]


def at(row, column, size=3):
    env = GridWorldEnv(size)
    env.reset()
    env.position = torch.tensor([row, column])
    return env


def test_a_shortest_walk_earns_the_best_return():
    env = GridWorldEnv(5, batch_size=[200])

    def shortest(td):
        return td.set("action", torch.where(env.position[:, 0] < env.size - 1, DOWN, RIGHT))

    start = env.reset()
    best = env.best_return()
    assert best.min() == -8 and best.max() == -1
    rollout = env.rollout(8, shortest, tensordict=start, auto_reset=False, break_when_any_done=False)
    before_the_end = rollout["next", "terminated"].cumsum(1) - rollout["next", "terminated"].long() == 0
    assert torch.equal((rollout["next", "reward"] * before_the_end).sum(1), best)


def test_each_action_moves_one_cell():
    for action, cell in ((UP, [0, 1]), (RIGHT, [1, 2]), (DOWN, [2, 1]), (LEFT, [1, 0])):
        env = at(1, 1)
        walk(env, action)
        assert env.position.tolist() == cell


def test_a_walker_at_the_border_stays_and_pays():
    env = at(0, 0)
    step = walk(env, UP)
    assert env.position.tolist() == [0, 0]
    assert step["reward"].item() == -1


def test_the_goal_ends_the_episode():
    assert walk(at(1, 2), DOWN)["terminated"].item()
    assert not walk(at(1, 2), UP)["terminated"].item()


def test_no_episode_begins_at_the_goal():
    env = GridWorldEnv(2, batch_size=[1000])
    assert env.reset()["observation"].sum(0).bool().tolist() == [True, True, True, False]
