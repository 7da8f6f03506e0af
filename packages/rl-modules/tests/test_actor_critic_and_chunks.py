"""ActorCriticOperator, ActorCriticWrapper and MultiStepActorWrapper."""

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from rl_core import Unbounded, carried_state
from rl_core.errors import KeyMissingError, PolicyError
from rl_core.specs import Bounded
from rl_modules import (
    Actor,
    ActorCriticOperator,
    ActorCriticWrapper,
    MultiStepActorWrapper,
    SafeModule,
    ValueOperator,
)


class Counted(nn.Module):
    """A network that counts its calls and returns what a function makes of its inputs."""

    def __init__(self, function):
        super().__init__()
        self.function, self.calls = function, 0

    def forward(self, *inputs):
        self.calls += 1
        return self.function(*inputs)


# ---------------------------------------------------------------- actor and critic
def test_the_critic_of_a_common_network_values_the_policys_action():
    common = Counted(lambda observation: observation * 2)
    both = ActorCriticOperator(
        SafeModule(common, ["observation"], ["hidden"]),
        Actor(Counted(lambda hidden: hidden[..., :1] + 1), ["hidden"]),
        Counted(lambda hidden, action: hidden.sum(-1, keepdim=True) * 10 + action),
    )
    td = both(TensorDict({"observation": torch.tensor([[1.0, 2.0]])}, [1]))
    assert td["action"].item() == 3.0 and td["state_action_value"].item() == 63.0 and common.calls == 1
    assert both.get_policy_operator().out_keys == ["hidden", "action"]
    assert both.get_value_operator().out_keys == ["hidden", "action", "state_action_value"]
    assert both.get_value_head().in_keys == ["hidden", "action"] and both.get_policy_head().in_keys == ["hidden"]


def test_a_critic_that_does_not_see_the_action_is_refused():
    with pytest.raises(PolicyError, match="ActorValueOperator"):
        ActorCriticOperator(
            nn.Linear(3, 4), Actor(nn.Linear(4, 1), ["hidden"]), ValueOperator(nn.Linear(4, 1), ["hidden"])
        )


def test_a_wrapper_holds_two_networks_that_share_nothing():
    policy, value = Actor(nn.Linear(3, 2)), ValueOperator(nn.Linear(3, 1))
    both = ActorCriticWrapper(policy, value)
    td = both(TensorDict({"observation": torch.ones(4, 3)}, [4]))
    assert td["action"].shape == (4, 2) and td["state_value"].shape == (4, 1)
    assert both.get_policy_operator() is policy and both.get_value_head() is value
    with pytest.raises(TypeError, match="in_keys"):
        ActorCriticWrapper(nn.Linear(3, 2), value)


# ---------------------------------------------------------------- chunks
def chunked(replan_interval=None, n_steps=3):
    """A chunk of three actions: 10 times the observation, plus 0, 1, 2."""
    network = Counted(lambda observation: (10 * observation + torch.arange(3.0)).unsqueeze(-1))
    actor = Actor(network, spec=Unbounded(shape=(3, 1)))
    return MultiStepActorWrapper(actor, n_steps, replan_interval=replan_interval), network


def act(module, observations, flags):
    """The actions of steps ``[B, T]``."""
    rows = observations.shape[0]
    td = TensorDict({"action_orig": torch.full((rows, 3, 1), -7.0), "counter": torch.ones(rows, 1).long()}, [rows])
    taken = []
    for t in range(observations.shape[1]):
        td = module(td.set("observation", observations[:, t, None]).set("is_init", flags[:, t, None]))
        taken.append(td["action"])
        td.update(td.pop("next"))
    return torch.cat(taken, 1)


def test_each_row_takes_its_chunks_actions_in_turn():
    """Row 1 is reset at step 2, and gets a chunk of its own there while row 0 goes on with the one it has."""
    module, network = chunked()
    flags = torch.tensor([[1, 0, 0, 0, 0], [1, 0, 1, 0, 0]], dtype=torch.bool)
    observations = torch.arange(5.0).expand(2, 5)
    assert act(module, observations, flags).tolist() == [[0, 1, 2, 30, 31], [0, 1, 20, 21, 22]]
    assert network.calls == 3  # at steps 0, 2 and 3


def test_chunks_may_be_left_early():
    module, _ = chunked(replan_interval=2)
    flags = torch.tensor([[1, 0, 0, 0, 0]], dtype=torch.bool)
    assert act(module, torch.arange(5.0).expand(1, 5), flags).tolist() == [[0, 1, 20, 21, 40]]


def test_chunks_are_declared_as_carried_state():
    module, _ = chunked(n_steps=None)
    state = carried_state(module)
    assert {key: tuple(spec.shape) for key, spec in state.specs.items()} == {"action_orig": (3, 1), "counter": (1,)}
    with pytest.raises(KeyMissingError, match=r"'action_orig'.*get_env_transforms_from_module"):
        module(TensorDict({"observation": torch.zeros(1, 1), "is_init": torch.ones(1, 1, dtype=torch.bool)}, [1]))


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: MultiStepActorWrapper(Actor(nn.Linear(1, 3)), 3), PolicyError, "action_spec"),
        (lambda: MultiStepActorWrapper(Actor(nn.Linear(1, 3), spec=Unbounded((3, 1))), 4), PolicyError, "chunk of 4"),
        (lambda: MultiStepActorWrapper(ValueOperator(nn.Linear(1, 3)), 3), PolicyError, "action_keys"),
        (lambda: chunked(replan_interval=4), ValueError, "replan_interval"),
    ],
)
def test_chunks_that_do_not_fit_are_refused(make, error, match):
    with pytest.raises(error, match=match):
        make()


def test_an_actor_whose_chunk_has_another_shape_is_named():
    module = MultiStepActorWrapper(Actor(nn.Linear(1, 3), spec=Bounded(-1.0, 1.0, (3, 1))), 3)
    with pytest.raises(PolicyError, match=r"\[2, 3\].*\[2, 3, 1\]"):
        act(module, torch.zeros(2, 1), torch.ones(2, 1, dtype=torch.bool))
