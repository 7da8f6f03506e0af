"""The loss keeps the contract, its numbers are right, and it learns the shortest walks."""

import torch
from rl_gridworld.env import GridWorldEnv
from rl_gridworld.loss import ReinforceLoss
from rl_gridworld.returns import reward_to_go
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn
from torch.distributions import Categorical

from rl_core.testing import LossKit


def networks(cells):
    torch.manual_seed(0)
    logits = TensorDictModule(nn.Linear(cells, 4), in_keys=["observation"], out_keys=["logits"])
    draw = ProbabilisticTensorDictModule(
        in_keys=["logits"], out_keys=["action"], distribution_class=Categorical, default_interaction_type="random"
    )
    baseline = TensorDictModule(nn.Linear(cells, 1), in_keys=["observation"], out_keys=["state_value"])
    return ProbabilisticTensorDictSequential(logits, draw), baseline


class TestReinforceLoss(LossKit):
    gradients = {"loss_policy": {"actor_network"}, "loss_baseline": {"baseline_network"}}

    def make_loss(self, **options):
        return ReinforceLoss(*networks(cells=9), **options)

    def make_batch(self):
        torch.manual_seed(1)
        rows = {"observation": torch.rand(8, 9), "action": torch.randint(4, (8,)), "returns": torch.randn(8, 1)}
        return TensorDict(rows, batch_size=[8])


def test_the_losses_are_those_of_the_formula():
    loss = ReinforceLoss(*networks(cells=2), baseline_coeff=0.25)
    for parameter in loss.parameters():
        nn.init.zeros_(parameter)  # four equal probabilities, a baseline of zero
    rows = {"observation": torch.ones(2, 2), "action": torch.tensor([0, 3]), "returns": torch.tensor([[2.0], [-6.0]])}
    losses = loss(TensorDict(rows, batch_size=[2]))
    log_prob = torch.tensor(0.25).log()
    torch.testing.assert_close(losses["loss_policy"], -log_prob * (2 - 6) / 2)
    torch.testing.assert_close(losses["loss_baseline"], torch.tensor(0.25 * (4 + 36) / 2))
    torch.testing.assert_close(losses["advantage"], torch.tensor(-2.0))


def test_returns_are_discounted_and_stop_at_the_end_of_an_episode():
    done = torch.tensor([[False, True, False, False]]).unsqueeze(-1)
    rollout = TensorDict({"next": {"reward": torch.full((1, 4, 1), 2.0), "done": done}}, batch_size=[1, 4])
    assert reward_to_go(rollout, gamma=0.5)["returns"].flatten().tolist() == [3.0, 2.0, 3.0, 2.0]


def test_it_learns_to_walk_to_the_goal():
    env = GridWorldEnv(3, batch_size=[64])
    actor, baseline = networks(cells=9)
    loss = ReinforceLoss(actor, baseline)
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.1)
    for _ in range(60):
        with torch.no_grad():
            batch = reward_to_go(env.rollout(16, actor, break_when_any_done=False), gamma=0.9)
        losses = loss(batch)
        (losses["loss_policy"] + losses["loss_baseline"]).backward()
        optimizer.step()
        optimizer.zero_grad()
    best = actor(env.reset())["logits"].argmax(-1)
    rows, columns = env.position.unbind(-1)
    assert torch.all((best == 1) & (columns < 2) | (best == 2) & (rows < 2))
