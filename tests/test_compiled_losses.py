"""Losses on our own policies compile into one graph at once, with no call before that prepares anything."""

import copy

import torch
from tensordict import TensorDict
from torch import nn

from rl_modules import MLP, NormalParamExtractor, ProbabilisticActor, SafeModule, TanhNormal, ValueOperator
from rl_objectives import SACLoss


def test_the_first_call_of_soft_actor_critic_may_be_compiled():
    torch.manual_seed(0)
    net = SafeModule(nn.Sequential(MLP(3, 4, num_cells=[8]), NormalParamExtractor()), ["observation"], ["loc", "scale"])
    bounds = {"low": torch.tensor([-1.9, -0.2]), "high": torch.tensor([0.6, 0.7])}
    actor = ProbabilisticActor(
        net, in_keys=["loc", "scale"], distribution_class=TanhNormal, distribution_kwargs=bounds, return_log_prob=True
    )
    critic = ValueOperator(MLP(5, 1, num_cells=[8]), in_keys=["observation", "action"])
    loss = SACLoss(actor, critic, gamma=0.9)
    twin = copy.deepcopy(loss)
    step = {"observation": torch.randn(6, 3), "reward": torch.randn(6, 1), "done": torch.rand(6, 1) < 0.3}
    step["terminated"] = step["done"]
    action = torch.rand(6, 2) * 0.5 - 0.1
    batch = TensorDict({"observation": torch.randn(6, 3), "action": action, "next": step}, [6])
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.manual_seed(1)
    found = compiled(batch.clone())
    torch.manual_seed(1)
    wanted = twin(batch.clone())
    for out in (found, wanted):
        sum(out[name] for name in ("loss_actor", "loss_qvalue", "loss_alpha")).backward()
    torch.testing.assert_close(dict(found.items()), dict(wanted.items()))
    for one, other in zip(loss.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
