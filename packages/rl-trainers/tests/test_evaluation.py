"""rl_trainers.evaluation: exact returns of closed-form environments, and no bias towards short episodes."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import InteractionType
from tensordict.nn.probabilistic import interaction_type

from rl_core.errors import EnvError, KeyMissingError
from rl_trainers import evaluate


class Rows:
    """Row i runs episodes of lengths[i][0], lengths[i][1], ... steps; every step pays the action."""

    def __init__(self, lengths, batch_size=None):
        self.lengths = lengths
        self.batch_size = torch.Size([len(lengths)] if batch_size is None else batch_size)
        self.n = len(lengths)

    def reset(self, td=None):
        if td is None:
            self.episode, self.t = [0] * self.n, [0] * self.n
        else:
            for row in td.pop("_reset").reshape(-1).nonzero().flatten().tolist():
                self.episode[row] += 1
                self.t[row] = 0
        return TensorDict({"observation": torch.zeros(*self.batch_size, 1)}, self.batch_size)

    def step_and_maybe_reset(self, td):
        done = []
        for row in range(self.n):
            self.t[row] += 1
            lengths = self.lengths[row]
            done.append(self.t[row] == lengths[self.episode[row] % len(lengths)])
            if done[-1]:
                self.episode[row] += 1
                self.t[row] = 0
        shape = (*self.batch_size, 1)
        td["next"] = TensorDict({"reward": td["action"], "done": torch.tensor(done).reshape(shape)}, self.batch_size)
        return td, TensorDict({"observation": torch.zeros(shape)}, self.batch_size)


def pay(amount):
    def policy(td):
        td["action"] = torch.full((*td.batch_size, 1), float(amount))
        return td

    return policy


def test_one_environment_runs_the_episodes_one_after_another():
    result = evaluate(Rows([[2, 4, 9]], batch_size=[]), pay(3), episodes=3)
    assert result == {
        "return_mean": 15.0,
        "return_std": pytest.approx((((6 - 15) ** 2 + (12 - 15) ** 2 + (27 - 15) ** 2) / 3) ** 0.5),
        "return_min": 6.0,
        "return_max": 27.0,
        "length_mean": 5.0,
        "episodes": 3.0,
    }


def test_long_episodes_count_as_often_as_short_ones():
    # The first four episodes to end would be 1, 1, 1, 1: the long row would never be counted.
    result = evaluate(Rows([[1], [100]]), pay(1), episodes=4)
    assert result["length_mean"] == (1 + 1 + 100 + 100) / 4


def test_a_count_that_does_not_divide_is_still_exact():
    result = evaluate(Rows([[1], [10], [100]]), pay(1), episodes=4)
    assert result["episodes"] == 4
    assert result["length_mean"] == (1 + 10 + 100 + 1) / 4


def test_fewer_episodes_than_environments():
    assert evaluate(Rows([[5], [1], [1]]), pay(1), episodes=1)["length_mean"] == 5


def test_max_steps_cuts_each_episode_on_its_own():
    result = evaluate(Rows([[3], [10**9]]), pay(1), episodes=4, max_steps=5)
    assert result["length_mean"] == (3 + 3 + 5 + 5) / 4


def test_any_batch_size_is_a_set_of_rows():
    assert evaluate(Rows([[1], [2], [3], [4]], batch_size=[2, 2]), pay(1), episodes=4)["length_mean"] == 2.5


def test_the_exploration_type_reaches_the_policy_and_is_put_back():
    seen = []

    def policy(td):
        seen.append(interaction_type())
        return pay(1)(td)

    before = interaction_type()
    evaluate(Rows([[1]]), policy, episodes=1)
    evaluate(Rows([[1]]), policy, episodes=1, exploration_type=InteractionType.RANDOM)
    assert seen == [InteractionType.DETERMINISTIC, InteractionType.RANDOM]
    assert interaction_type() == before


def test_a_module_is_in_eval_mode_and_gets_its_mode_back():
    class Policy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.frozen = torch.nn.Dropout()
            self.frozen.eval()

        def forward(self, td):
            assert not self.training
            return pay(1)(td)

    policy = Policy()
    evaluate(Rows([[1]]), policy, episodes=1)
    assert policy.training and not policy.frozen.training


def test_a_reward_under_another_name_is_asked_for_by_key():
    class Renamed(Rows):
        def step_and_maybe_reset(self, td):
            td, td_next = super().step_and_maybe_reset(td)
            td["next"].rename_key_("reward", "gain")
            return td, td_next

    assert evaluate(Renamed([[2]]), pay(1), episodes=1, reward_key="gain")["return_mean"] == 2
    with pytest.raises(KeyMissingError, match=r"needs \('next', 'reward'\); the environment writes .*'gain'"):
        evaluate(Renamed([[2]]), pay(1), episodes=1)


@pytest.mark.parametrize(("reduction", "expected"), [("sum", 12.0), ("mean", 4.0)])
def test_rewards_of_several_agents_are_summed_or_averaged(reduction, expected):
    def policy(td):
        td["action"] = torch.tensor([[1.0, 2.0, 3.0]]).expand(*td.batch_size, 3)
        return td

    result = evaluate(Rows([[2]]), policy, 3, reward_reduction=reduction)
    assert result["return_mean"] == expected


def test_nothing_to_run_is_an_error():
    with pytest.raises(ValueError, match="at least one episode"):
        evaluate(Rows([[1]]), pay(1), episodes=0)
    with pytest.raises(EnvError, match="at least one environment"):
        evaluate(Rows([]), pay(1), episodes=1)
