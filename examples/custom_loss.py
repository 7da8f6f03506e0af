"""A loss of one's own: self-imitation learning, from its equation to a name in the registry.

A loss is a LossModule: a key map, networks, and ``compute``. Everything else comes with it: renamed keys, masks, three
reductions, keyword calls, views of the parameters, errors that name what is missing, and value estimators.

    python examples/custom_loss.py            # trains on a contextual bandit and prints how often the best arm is drawn

Oh et al., 2018, Self-Imitation Learning, eq. 1-3, arXiv 1806.05635.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor, nn

from rl_core import registry
from rl_core.errors import LossError
from rl_core.keys import Key, as_key
from rl_core.losses import (
    LossKeys,
    LossModule,
    call_on_tensors,
    distribution_on_tensors,
    entry,
    masked_mean,
    read_inputs,
)

# 1. The equation, on tensors: no keys, no reduction. Shapes are checked, so that nothing is broadcast.


def self_imitation(log_prob: Tensor, value: Tensor, returns: Tensor) -> tuple[Tensor, Tensor]:
    """Per row ``-log pi(a|s) (R - V)+`` and ``((R - V)+)^2 / 2``, for tensors of one shape."""
    if not log_prob.shape == value.shape == returns.shape:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in (log_prob, value, returns))
        raise LossError(f"log_prob, value and returns must have one shape; got {shapes}")
    better = (returns - value).clamp_min(0)
    return -log_prob * better.detach(), better.square() / 2


# 2. The entries that it reads, each under a name that users may set: loss.set_keys(returns="reward_to_go").


@dataclass(frozen=True)
class SelfImitationKeys(LossKeys):
    """The entries of :class:`SelfImitationLoss`; ``mask`` is inherited."""

    action: Key = field(default="action", metadata=entry(producer="The collecting policy writes it."))
    returns: Key = field(default="returns", metadata=entry(producer="Write reward2go(reward, done, gamma) before."))
    value: Key = "state_value"


# 3. The module: networks and coefficients are added by name; compute returns losses, and logs without gradient.


class SelfImitationLoss(LossModule):
    """Imitate the stored actions that turned out better than the critic expected."""

    default_keys = SelfImitationKeys()

    def __init__(
        self, actor_network: nn.Module, critic_network: nn.Module, *, critic_coeff: float = 0.01, reduction="mean"
    ):
        super().__init__(reduction=reduction)
        self.add_network("actor_network", actor_network)
        self.add_network("critic_network", critic_network)
        self.add_scalar("critic_coeff", critic_coeff)  # may be assigned later: loss.critic_coeff = 0.1

    def default_in_keys(self) -> list[Key]:
        networks = [*self.actor_network.in_keys, *self.critic_network.in_keys]
        return list(dict.fromkeys([self.path("action"), self.path("returns"), *map(as_key, networks)]))

    def default_out_keys(self) -> list[Key]:
        return ["loss_actor", "loss_value", "share_imitated"]

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        mask, name = self.valid_rows(batch), type(self).__name__
        policy = distribution_on_tensors(
            self.actor_network, read_inputs(self.actor_network, batch, name), batch.batch_size
        )
        inputs = read_inputs(self.critic_network, batch, name)
        value = call_on_tensors(self.critic_network, inputs, self.path("value"), batch.batch_size)
        log_prob = policy.log_prob(self.read(batch, "action")).unsqueeze(-1)
        actor, critic = self_imitation(log_prob, value, self.read(batch, "returns"))
        imitated = (critic.detach() > 0).to(critic.dtype)
        return {
            "loss_actor": self.reduce(actor.squeeze(-1), mask),
            "loss_value": self.reduce(self.critic_coeff * critic.squeeze(-1), mask),
            "share_imitated": masked_mean(imitated.squeeze(-1), mask),
        }


# 4. Its name. A package of your own says the same in its pyproject.toml, and nobody has to import it:
#        [project.entry-points."rl_core.losses"]
#        self_imitation = "my_package.losses:SelfImitationLoss"


def make_networks(contexts: int = 4, arms: int = 3) -> tuple[nn.Module, nn.Module]:
    """A policy over the arms and a critic."""
    logits = TensorDictModule(nn.Linear(contexts, arms), ["observation"], ["logits"])
    draw = ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=torch.distributions.Categorical)
    critic = TensorDictModule(nn.Linear(contexts, 1), ["observation"], ["state_value"])
    return ProbabilisticTensorDictSequential(logits, draw), critic


def main() -> None:
    """Learn from a fixed batch of random pulls; the best arm of context c is c modulo 3."""
    torch.manual_seed(0)
    registry.losses.register("self_imitation", SelfImitationLoss)
    context, arm = torch.randint(4, (512,)), torch.randint(3, (512,))
    batch = TensorDict({"observation": nn.functional.one_hot(context, 4).float(), "action": arm}, [512])
    batch["returns"] = (arm == context % 3).float().unsqueeze(-1)
    loss = registry.losses.get("self_imitation")(*make_networks())
    # One learning rate per network: a critic that is quick to expect the best leaves nothing to imitate.
    actor, critic = (list(view.values(True, True)) for view in (loss.actor_network_params, loss.critic_network_params))
    optimizer = torch.optim.Adam([{"params": actor, "lr": 0.05}, {"params": critic, "lr": 0.002}])
    for step in range(201):
        losses = loss(batch)
        optimizer.zero_grad()
        (losses["loss_actor"] + losses["loss_value"]).backward()
        optimizer.step()
        if step % 100 == 0:
            policy = loss.actor_network.get_dist(TensorDict({"observation": torch.eye(4)}, [4]))
            print(f"best arm: {policy.probs[torch.arange(4), torch.arange(4) % 3].mean():.2f}")


if __name__ == "__main__":
    main()
