"""Planners on problems whose best action is known, and scores against their equations."""

import math

import pytest
import torch
from tensordict import TensorDict

from rl_core import Bounded, Categorical, Composite, EnvBase, OneHot, Unbounded, set_exploration_type
from rl_core.envs.partial_reset import reset_rows
from rl_core.errors import PolicyError
from rl_core.testing import CountingEnv
from rl_modules import (
    CEMPlanner,
    EXP3Score,
    MCTSPolicy,
    MCTSScores,
    MPPIPlanner,
    PUCTScore,
    UCB1TunedScore,
    UCBScore,
)


class Slope(EnvBase):
    """``x' = x + a`` with a in [-1, 1]; the reward is -x'^2; an episode ends, if ``wall`` is given, beyond the wall."""

    batch_locked = False

    def __init__(self, wall=None, bonus=0.0):
        super().__init__()
        self.wall, self.bonus = wall, bonus
        self.observation_spec = Composite(observation=Unbounded(shape=(1,)))
        self.state_spec = Composite(observation=Unbounded(shape=(1,)))
        self.action_spec = Bounded(-1.0, 1.0, (1,))

    def _reset(self, tensordict=None, **kwargs):
        return TensorDict({"observation": torch.zeros(1)})

    def _step(self, tensordict):
        x = tensordict["observation"] + tensordict["action"]
        over = torch.zeros_like(x, dtype=torch.bool) if self.wall is None else x > self.wall
        reward = -x.square() + self.bonus * over
        return TensorDict({"observation": x, "reward": reward, "terminated": over}, batch_size=tensordict.batch_size)


PLANNERS = {
    "cem": lambda env, **kw: CEMPlanner(env, planning_horizon=3, optim_steps=8, num_candidates=200, top_k=20, **kw),
    "mppi": lambda env, **kw: MPPIPlanner(
        env, temperature=4.0, planning_horizon=3, optim_steps=8, num_candidates=200, top_k=40, **kw
    ),
}


@pytest.mark.parametrize("make", PLANNERS.values(), ids=PLANNERS)
def test_the_first_action_leads_to_the_valley_from_every_state(make):
    torch.manual_seed(0)
    td = TensorDict({"observation": torch.tensor([[[3.0], [0.5]], [[-0.25], [-9.0]]])}, [2, 2])
    action = make(Slope())(td)["action"].squeeze(-1)
    torch.testing.assert_close(action, torch.tensor([[-1.0, -0.5], [0.25, 1.0]]), atol=0.06, rtol=0)
    assert set(td.keys()) == {"observation", "action"}


@pytest.mark.parametrize("make", PLANNERS.values(), ids=PLANNERS)
def test_rewards_after_an_end_do_not_count(make):
    """From 9, three steps down cost 64 + 49 + 36, one step over the wall 85 or more: then it is over."""
    torch.manual_seed(0)
    td = TensorDict({"observation": torch.tensor([9.0])}, [])
    assert 0.2 < make(Slope(wall=9.2))(td)["action"].item() < 0.4
    assert make(Slope(wall=99.0))(td)["action"].item() < -0.9


def test_a_planner_is_a_policy():
    torch.manual_seed(0)
    env = Slope()
    start = env.reset().set("observation", torch.ones(1))
    data = env.rollout(2, PLANNERS["cem"](env), auto_reset=False, tensordict=start)
    assert data["next", "observation"].abs().max() < 0.1


def test_the_advantage_of_a_plan_may_replace_its_rewards():
    """An advantage that likes high states turns the planner around."""

    def advantage(td):
        assert td.batch_dims == 2 and td.names[-1] == "time"
        return td.set("advantage", td["next", "observation"].sum(-2, keepdim=True).expand(*td.batch_size, 1))

    torch.manual_seed(0)
    planner = MPPIPlanner(Slope(), advantage, planning_horizon=2, optim_steps=6, num_candidates=100, top_k=20)
    assert planner(TensorDict({"observation": torch.tensor([3.0])}, []))["action"].item() > 0.9
    silent = MPPIPlanner(Slope(), lambda td: td, planning_horizon=2, optim_steps=1, num_candidates=4, top_k=2)
    with pytest.raises(PolicyError, match="'advantage'"):
        silent(TensorDict({"observation": torch.zeros(1)}, []))


def test_planners_refuse_what_they_cannot_imagine():
    with pytest.raises(PolicyError, match="batch_locked"):
        PLANNERS["cem"](CountingEnv())
    with pytest.raises(ValueError, match="top_k"):
        CEMPlanner(Slope(), 3, 2, num_candidates=4, top_k=5)
    with pytest.raises(ValueError, match="temperature"):
        MPPIPlanner(Slope(), temperature=0.0)


# ---------------------------------------------------------------- scores
WINS, VISITS = torch.tensor([3.0, 1.0, 0.0]), torch.tensor([4.0, 2.0, 0.0])
TOTAL = torch.tensor([6.0])


def test_scores_follow_their_equations():
    prior = torch.tensor([0.2, 0.3, 0.5])
    wanted = [m + 1.5 * p * math.sqrt(6) / (1 + n) for m, p, n in ((0.75, 0.2, 4), (0.5, 0.3, 2), (0.0, 0.5, 0))]
    torch.testing.assert_close(PUCTScore(1.5)(WINS, VISITS, TOTAL, prior), torch.tensor(wanted))
    wanted = [0.75 + 2 * math.sqrt(math.log(6) / 4), 0.5 + 2 * math.sqrt(math.log(6) / 2), math.inf]
    torch.testing.assert_close(UCBScore(2.0)(WINS, VISITS, TOTAL), torch.tensor(wanted))


def test_the_tuned_score_bounds_the_variance_by_a_quarter():
    total, squares = torch.tensor([1e6]), torch.tensor([3.0, 0.5, 0.0])
    visits, wins = torch.tensor([4e5, 2.0, 0.0]), torch.tensor([3e5, 1.0, 0.0])
    squares[0] = 2.4e5
    rate = math.log(1e6) / 4e5
    variance = 2.4e5 / 4e5 - 0.75**2 + math.sqrt(2 * rate)
    assert variance < 0.25
    wanted = [0.75 + math.sqrt(rate * variance), 0.5 + math.sqrt(math.log(1e6) / 2 * 0.25), math.inf]
    torch.testing.assert_close(UCB1TunedScore()(wins, visits, total, squares), torch.tensor(wanted))


def test_exp3_mixes_weights_with_uniform_exploration_and_updates_the_taken_one():
    score, weights = EXP3Score(0.3), torch.tensor([[2.0, 1.0, 1.0]])
    torch.testing.assert_close(score(weights), torch.tensor([[0.45, 0.275, 0.275]]))
    updated = score.update_weights(weights, torch.tensor([1]), torch.tensor([0.5]))
    torch.testing.assert_close(updated, torch.tensor([[2.0, math.exp(0.3 / 3 * 0.5 / 0.275), 1.0]]))
    assert all(isinstance(member.make().out_keys, list) for member in MCTSScores)


# ---------------------------------------------------------------- tree search
class Nim(EnvBase):
    """Two players take 1, 2 or 3 from a pile; who takes the last one wins. Leave a multiple of four."""

    def __init__(self, pile=5, one_hot=False, stateless=False):
        super().__init__()
        self.pile = self.left = pile
        self.batch_locked = not stateless
        self.observation_spec = Composite(
            observation=Unbounded(shape=(1,)), action_mask=Categorical(2, (3,), dtype=torch.bool)
        )
        if stateless:
            self.state_spec = Composite(observation=Unbounded(shape=(1,)))
        self.action_spec = OneHot(3) if one_hot else Categorical(3)

    def _view(self, left):
        return {"observation": torch.tensor([float(left)]), "action_mask": torch.arange(1, 4) <= max(left, 1)}

    def _reset(self, tensordict=None, **kwargs):
        assert reset_rows(tensordict) is None
        self.left = self.pile
        return TensorDict(self._view(self.left))

    def _step(self, tensordict):
        action = tensordict["action"]
        taken = 1 + int(action.int().argmax() if action.ndim else action)
        left = (self.left if self.batch_locked else int(tensordict["observation"])) - taken
        assert left >= 0, "an illegal move"
        if self.batch_locked:
            self.left = left
        over = torch.tensor([left == 0])
        return TensorDict({**self._view(left), "reward": over.float(), "terminated": over})


@pytest.mark.parametrize("pile", [2, 3, 5, 6, 7])
@pytest.mark.parametrize("kind", [{}, {"one_hot": True}, {"stateless": True}], ids=["stateful", "one_hot", "stateless"])
def test_the_search_finds_the_winning_move(pile, kind):
    torch.manual_seed(0)
    env = Nim(pile, **kind)
    td = env.reset()
    action = MCTSPolicy(env, 150, two_player=True)(td)["action"]
    assert 1 + int(action.int().argmax() if action.ndim else action) == pile % 4
    assert env.left == pile  # the game itself was not played
    env.step(td)


def test_prior_and_value_guide_the_search():
    """A network that knows the game: few simulations are enough, and nothing is played at random."""

    def value(td):
        return 1.0 if int(td["observation"]) % 4 else -1.0

    env = Nim(7)
    policy = MCTSPolicy(env, 12, PUCTScore(2.0), prior=lambda td: torch.full((3,), 1 / 3), value=value, two_player=True)
    assert policy(env.reset())["action"].item() == 2
    greedy = MCTSPolicy(env, 1, PUCTScore(9.0), prior=lambda td: torch.tensor([0.1, 0.8, 0.1]), value=value)
    assert greedy(env.reset())["action"].item() == 1


class Corridor(EnvBase):
    """One player: "0" takes 0.3 and ends; "1" twice in a row gives 1. The better path gives nothing at first."""

    def __init__(self):
        super().__init__()
        self.at = 0
        self.observation_spec = Composite(observation=Unbounded(shape=(1,)))
        self.action_spec = Categorical(2)

    def _reset(self, tensordict=None, **kwargs):
        self.at = 0
        return TensorDict({"observation": torch.zeros(1)})

    def _step(self, tensordict):
        on = int(tensordict["action"]) == 1
        self.at += 1
        over = not on or self.at == 2
        reward = 0.3 if not on else float(self.at == 2)
        return TensorDict(
            {
                "observation": torch.tensor([float(self.at)]),
                "reward": torch.tensor([reward]),
                "terminated": torch.tensor([over]),
            }
        )


@pytest.mark.parametrize(("gamma", "best"), [(1.0, 1), (0.2, 0)])
def test_a_discount_decides_between_now_and_later(gamma, best):
    torch.manual_seed(0)
    env = Corridor()
    with set_exploration_type(None):
        assert MCTSPolicy(env, 100, gamma=gamma)(env.reset())["action"].item() == best


def test_the_search_refuses_what_it_cannot_search():
    with pytest.raises(PolicyError, match="Categorical or OneHot"):
        MCTSPolicy(CountingEnv())
