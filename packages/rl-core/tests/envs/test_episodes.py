"""Complete episodes: what is kept of them, where they end, and that nothing is reset after the last."""

import pytest
import torch
from torch import nn

from rl_core import RandomPolicy
from rl_core.envs.episodes import Episode, episode_statistics, run_episodes
from rl_core.errors import KeyMissingError
from rl_core.evaluation_mode import evaluation_mode
from rl_core.testing import ArrayCountingEnv, CountingEnv, GroupCountingEnv

KINDS = [CountingEnv, ArrayCountingEnv]


def act(env):
    return RandomPolicy(env.full_action_spec)


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_runs_its_share_to_the_end(kind):
    env = kind(length=[1, 4], batch_size=[2])
    found = run_episodes(env, act(env), 5)
    assert [(episode.total, episode.length) for episode in found] == [(1, 1), (1, 1), (1, 1), (10, 4), (10, 4)]


@pytest.mark.parametrize("kind", KINDS)
def test_max_steps_cuts_rows_that_go_on_and_no_others(kind):
    env = kind(length=[2, 99], batch_size=[2])
    found = run_episodes(env, act(env), 4, max_steps=3)
    assert sorted((episode.total, episode.length) for episode in found) == [(3, 2), (3, 2), (6, 3), (6, 3)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(), (3,), (3, 1)])
def test_kept_data_are_whole_episodes(kind, batch):
    lengths = torch.tensor([2, 3, 5]).reshape(batch) if batch else 3
    env = kind(length=lengths, batch_size=batch)
    found = run_episodes(env, act(env), 7, max_steps=4, keep_data=True)
    for episode in found:
        assert episode.data.batch_size == (episode.length,) and episode.data.names == ["time"]
        assert episode.data["next", "observation"].flatten().tolist() == list(range(1, episode.length + 1))
    assert sorted(episode.length for episode in found) == ([2, 2, 2, 3, 3, 4, 4] if batch else [3] * 7)


def test_nothing_is_reset_after_the_last_episode():
    resets = []

    class Counted(CountingEnv):
        def _reset(self, tensordict=None, **kwargs):
            resets.append(1)
            return super()._reset(tensordict, **kwargs)

    env = Counted(length=3)
    run_episodes(env, act(env), 2)
    assert len(resets) == 2


def test_a_callback_hears_how_far_it_is_and_may_give_up():
    class GaveUpError(Exception):
        pass

    heard = []

    def before(finished):
        heard.append(finished)
        if len(heard) == 6:
            raise GaveUpError

    env = CountingEnv(length=2)
    with pytest.raises(GaveUpError):
        run_episodes(env, act(env), 9, before_step=before)
    assert heard == [0, 0, 1, 1, 2, 2]


def test_groups_of_agents_end_with_the_root():
    env = GroupCountingEnv([1, 3])
    found = run_episodes(env, act(env), 2, reward_key=[("agents", "reward"), "team_reward"])
    assert [(episode.total, episode.length) for episode in found] == [(2 * (1 + 1 + 2 + 3), 3)] * 2


def test_a_missing_reward_is_named():
    env = CountingEnv()
    with pytest.raises(KeyMissingError, match=r"needs \('next', 'gain'\)"):
        run_episodes(env, act(env), 1, reward_key="gain")


def test_statistics_by_hand():
    told = episode_statistics([Episode(1.0, 2), Episode(4.0, 3)])
    assert told == {
        "return_mean": 2.5, "return_std": 1.5, "return_min": 1.0, "return_max": 4.0, "length_mean": 2.5, "episodes": 2.0
    }  # fmt: skip


def test_modes_are_put_back_after_an_error_too():
    policy = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    with pytest.raises(ZeroDivisionError), evaluation_mode(policy):
        assert not policy.training and not policy[0].training
        raise ZeroDivisionError
    assert policy.training and policy[0].training and not policy[1].training
