"""Several critics as one network: copies with weights of their own, stacked where a network offers it."""

import copy

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core.errors import LossError, SpecError
from rl_core.losses.ensembles import Stackable, StackedNetwork
from rl_objectives import DDPGLoss, SoftUpdate, TD3Loss
from rl_objectives.losses.critic_ensemble import CriticEnsemble, redrawn

KEYS = {"in_keys": ["observation", "action"], "out_keys": ["state_action_value"]}


class Joined(nn.Sequential):
    def forward(self, *inputs):
        return super().forward(torch.cat(inputs, -1))


class Stack(StackedNetwork):
    """Linear, tanh, linear, for all members at once."""

    def __init__(self, members):
        super().__init__(len(members))
        for index in (0, 2):
            for name in ("weight", "bias"):
                tensors = [getattr(member[index], name).detach() for member in members]
                self.register_parameter(f"{name}{index}", nn.Parameter(torch.stack(tensors)))

    def forward(self, *inputs):
        rows, part = torch.cat(inputs, -1), slice(self.active)
        hidden = torch.einsum("bi,noi->nbo", rows, self.weight0[part]) + self.bias0[part].unsqueeze(1)
        return torch.einsum("nbi,noi->nbo", hidden.tanh(), self.weight2[part]) + self.bias2[part].unsqueeze(1)


class StackableNet(Joined):
    stacks = True

    def stacked(self, members):
        return Stack(members) if self.stacks else None


def keyed(kind=Joined, hidden=6, outputs=1):
    return TensorDictModule(kind(nn.Linear(5, hidden), nn.Tanh(), nn.Linear(hidden, outputs)), **KEYS)


def make_ensemble(critics, count=3):
    torch.manual_seed(0)
    return CriticEnsemble(critics, count, "SomeLoss", "qvalue_network")


INPUTS = torch.randn(7, 3), torch.randn(7, 2)


def call(ensemble, **options):
    inputs = [INPUTS for _ in ensemble.critics()]
    return ensemble(inputs, "state_action_value", [7], **options)


def test_a_stackable_network_runs_as_one_with_the_numbers_of_its_copies():
    assert isinstance(StackableNet(), Stackable) and not isinstance(Joined(), Stackable)
    torch.manual_seed(1)
    critic = keyed(StackableNet)
    apart = copy.deepcopy(critic)
    apart.module.stacks = False
    together, looped = make_ensemble(critic), make_ensemble(apart)
    assert together.stack is not None and looped.stack is None
    assert together.num_copies == looped.num_copies == 3
    torch.testing.assert_close(call(together), call(looped))
    assert call(together).shape == (3, 7, 1)
    for count in (1, 2):
        torch.testing.assert_close(call(together, first=count), call(looped)[:count])
        torch.testing.assert_close(call(looped, first=count), call(looped)[:count])
    assert call(together).shape == (3, 7, 1)
    assert type(critic.module) is StackableNet  # the user's network is left alone


def test_an_ensemble_that_the_user_built_is_taken_as_it_is():
    members = [Joined(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1)) for _ in range(4)]
    critic = TensorDictModule(Stack(members), **KEYS)
    ensemble = make_ensemble(critic, count=2)
    assert ensemble.stack is critic and ensemble.num_copies == 4
    torch.testing.assert_close(call(ensemble), torch.stack([member(*INPUTS) for member in members]))


def test_copies_have_weights_of_their_own_and_the_first_has_those_given():
    torch.manual_seed(5)
    critic = keyed()
    ensemble = make_ensemble(critic)
    first, second, third = ([p for p in member.parameters()] for member in ensemble.members)
    for given, one, two, three in zip(critic.parameters(), first, second, third, strict=True):
        assert torch.equal(given, one) and given is not one
        assert not torch.equal(one, two) and not torch.equal(two, three)


def test_a_hooked_network_is_not_stacked_behind_its_hooks():
    critic = keyed(StackableNet)
    critic.register_forward_hook(lambda module, inputs, output: None)
    assert make_ensemble(critic).stack is None


def test_copies_are_drawn_as_the_network_was():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 200), nn.LayerNorm(200), nn.Linear(200, 3), nn.Linear(3, 300), nn.Linear(300, 4))
    nn.init.normal_(net[0].weight, std=7.0)
    nn.init.constant_(net[0].bias, 0.25)
    nn.init.zeros_(net[2].weight)
    nn.init.uniform_(net[4].weight, -3e-3, 3e-3)
    net.scale = nn.Parameter(torch.randn(5000) * 3 + 2)
    frozen = net[3].weight.requires_grad_(False)
    before = copy.deepcopy(net)
    twin = redrawn(net)
    for given, old in zip(net.parameters(), before.parameters(), strict=True):
        assert torch.equal(given, old)
    assert twin[0].weight.square().mean().sqrt().item() == pytest.approx(7.0, rel=0.05)
    assert not torch.equal(twin[0].weight, net[0].weight)
    assert (twin[0].bias == 0.25).all() and (twin[2].weight == 0).all()
    assert (twin[1].weight == 1).all() and (twin[1].bias == 0).all()
    assert 2.5e-3 < twin[4].weight.abs().max() < 3.5e-3
    assert twin.scale.mean().item() == pytest.approx(2.0, abs=0.2)
    assert twin.scale.std().item() == pytest.approx(3.0, abs=0.2)
    assert not twin[3].weight.requires_grad and not torch.equal(twin[3].weight, frozen)


def test_a_list_keeps_its_networks_and_may_mix_architectures():
    critics = [keyed(hidden=6), keyed(hidden=9)]
    ensemble = make_ensemble(critics)
    assert list(ensemble.members) == critics and ensemble.num_copies == 2
    torch.testing.assert_close(call(ensemble)[1], critics[1].module(*INPUTS))
    assert list(make_ensemble(nn.ModuleList(critics)).members) == critics


def test_critics_may_read_different_entries():
    other = TensorDictModule(Joined(nn.Linear(6, 1)), ["state", "action", "observation"], KEYS["out_keys"])
    ensemble = make_ensemble([keyed(), other])
    assert ensemble.in_keys == ["observation", "action", "state"] and ensemble.out_keys == KEYS["out_keys"]
    value = ensemble([INPUTS, (torch.randn(7, 1), INPUTS[1], INPUTS[0])], "state_action_value", [7])
    assert value.shape == (2, 7, 1)


def test_wrong_critics_are_refused():
    critic = keyed()
    with pytest.raises(SpecError, match="lists one network twice"):
        make_ensemble([critic, critic])
    with pytest.raises(SpecError, match="at least one qvalue_network"):
        make_ensemble([])
    with pytest.raises(SpecError, match="count of 0"):
        make_ensemble(critic, count=0)
    with pytest.raises(SpecError, match="in_keys; got Linear"):
        make_ensemble([critic, nn.Linear(3, 1)])
    lazy = TensorDictModule(Joined(nn.LazyLinear(4), nn.Linear(4, 1)), **KEYS)
    with pytest.raises(SpecError, match=r"lazy parameter.*Call the network once"):
        make_ensemble(lazy)
    with pytest.raises(LossError, match="must have one shape"):
        call(make_ensemble([critic, keyed(outputs=2)]))


class Flat(nn.Module):
    def forward(self, observation):
        return observation[..., :2].tanh()


def make_batch():
    torch.manual_seed(3)
    done = torch.rand(7, 1) < 0.3
    step = {"observation": torch.randn(7, 3), "reward": torch.randn(7, 1), "done": done, "terminated": done}
    return TensorDict({"observation": INPUTS[0], "action": INPUTS[1], "next": step}, [7])


def test_a_loss_gives_the_same_numbers_stacked_or_not():
    actor = TensorDictModule(nn.Sequential(nn.Linear(3, 2), nn.Tanh()), in_keys=["observation"], out_keys=["action"])
    results, networks = [], []
    torch.manual_seed(1)
    critic = keyed(StackableNet)
    for stacks in (True, False):
        critic = copy.deepcopy(critic)
        critic.module.stacks = stacks
        torch.manual_seed(2)
        loss = TD3Loss(copy.deepcopy(actor), critic, bounds=(-1, 1), policy_noise=0.0, loss_function="l2")
        updater = SoftUpdate(loss, tau=0.5)
        out = loss(make_batch())
        (out["loss_actor"] + out["loss_qvalue"]).backward()
        with torch.no_grad():
            for parameter in loss.parameters():
                parameter.sub_(0.1 * parameter.grad)
        updater.step()
        results.append((out, loss(make_batch())))
        networks.append(loss)
    for first, second in zip(*results, strict=True):
        for key, value in first.items():
            torch.testing.assert_close(second[key], value)
    stacked, looped = networks
    assert stacked.qvalue_network.stack is not None and looped.qvalue_network.stack is None
    for one, other in zip(stacked.actor_network.parameters(), looped.actor_network.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    weights = [member.module[0].weight.grad for member in looped.qvalue_network.members]
    torch.testing.assert_close(stacked.qvalue_network.stack.module.weight0.grad, torch.stack(weights))
    reloaded = copy.deepcopy(stacked)
    reloaded.load_state_dict(stacked.state_dict())


def test_a_single_critic_is_the_users_own():
    critic = keyed()
    loss = DDPGLoss(TensorDictModule(Flat(), ["observation"], ["action"]), critic)
    assert list(loss.value_network.members) == [critic]
    assert {id(p) for p in loss.parameters()} == {id(p) for p in critic.parameters()}
