"""The T-maze: what is seen, what is paid, and that memory is worth something."""

import pytest
import torch

from rl_core import registry
from rl_core.errors import EnvError
from rl_core.testing import EnvKit
from rl_envs import TMazeEnv


class TestTMazes(EnvKit):
    distribution = "rl-envs"

    def make_env(self):
        return TMazeEnv(num_envs=32, length=2)


class TestOneTMaze(EnvKit):
    distribution = "rl-envs"
    random_start = False  # one of two signs: two seeds may agree

    def make_env(self):
        return TMazeEnv(length=1)


def walk(env, *actions):
    """Rewards and the end flags of the last step, in one maze."""
    td, rewards = env.reset(), []
    for action in actions:
        td = env.step(td.set("action", torch.tensor(action)))
        rewards.append(round(td["next", "reward"].item(), 4))
        last = td["next"]
        td = env.step_mdp(td)
    return rewards, bool(last["terminated"]), bool(last["truncated"])


def test_a_sign_then_the_corridor_then_the_junction_is_seen():
    env = TMazeEnv(num_envs=64, length=2, seed=1)
    data = env.rollout(4, lambda td: td.set("action", torch.zeros(64, dtype=torch.int64)), auto_reset=True)
    seen = data["observation"].argmax(-1)
    assert set(seen[:, 0].tolist()) == {0, 1}
    assert (seen[:, 1:] == torch.tensor([2, 2, 3])).all()


@pytest.mark.parametrize("turn", [1, 2])
def test_the_turn_at_the_junction_ends_the_episode_and_pays_by_the_sign(turn):
    env = TMazeEnv(length=2, seed=3)
    sign = env.reset()["observation"].argmax(-1).item() + 1
    env.set_seed(3)
    rewards, terminated, truncated = walk(env, 0, 0, 0, turn)
    assert rewards == [0, 0, 0, 1 if turn == sign else -1] and terminated and not truncated


def test_bumps_cost_and_change_nothing():
    rewards, terminated, _ = walk(TMazeEnv(length=1, max_steps=100), 1, 2, 0, 1, 0, 0, 0)
    assert rewards == [-0.1, -0.1, 0, -0.1, 0, -0.1, -0.1] and not terminated


def test_an_episode_is_cut_after_its_longest_time():
    assert walk(TMazeEnv(length=1, max_steps=3), 1, 1, 1)[1:] == (False, True)
    assert TMazeEnv(length=10).max_steps == 55


def test_a_policy_that_remembers_the_sign_gets_one_and_one_that_does_not_zero_in_the_mean():
    signs = torch.zeros(400, dtype=torch.int64)

    def act(td, remember):
        place = td["observation"].argmax(-1)
        signs[place < 2] = place[place < 2] + 1
        turn = signs if remember else torch.ones_like(signs)
        return td.set("action", torch.where(place == 3, turn, 0))

    for remember, expected in ((True, 1.0), (False, 0.0)):
        env = TMazeEnv(num_envs=400, length=3, seed=0)
        data = env.rollout(5, lambda td, remember=remember: act(td, remember), break_when_any_done=False)
        assert data["next", "done"][:, -1].all()
        returns = data["next", "reward"].sum((1, 2))
        assert returns.mean().item() == pytest.approx(expected, abs=0.15 if expected == 0 else 1e-6)


def test_state_goes_on_in_another_maze():
    def turns(td):
        return td.set("action", (td["observation"].argmax(-1) == 3).long())

    env, other = TMazeEnv(num_envs=8, length=1, seed=0), TMazeEnv(num_envs=8, length=1, seed=5)
    td = env.step_mdp(env.step(turns(env.reset())))
    assert other.load_state_dict(env.state_dict())
    for _ in range(6):
        a, b = env.step_and_maybe_reset(turns(td.clone())), other.step_and_maybe_reset(turns(td.clone()))
        assert (a[1]["observation"] == b[1]["observation"]).all()
        td = a[1]


def test_the_registry_has_it_and_a_corridor_needs_a_cell():
    assert registry.envs.make("native:TMaze", num_envs=2).batch_size == (2,)
    with pytest.raises(EnvError, match="length=0"):
        TMazeEnv(length=0)
