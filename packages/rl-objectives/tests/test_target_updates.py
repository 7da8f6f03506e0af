"""SoftUpdate and HardUpdate on losses with different kinds of networks."""

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core.errors import SpecError
from rl_core.losses import LossModule
from rl_objectives import HardUpdate, SoftUpdate


class ValueLoss(LossModule):
    """A loss with one delayed network, or a list of them."""

    def __init__(self, network, delayed=True):
        super().__init__()
        self.add_network("value_network", network, delayed=delayed)


def keyed(net):
    return TensorDictModule(net, in_keys=["observation"], out_keys=["state_value"])


def networks():
    with_statistics = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    twins = nn.ModuleList([keyed(nn.Linear(3, 1)), keyed(nn.Linear(3, 1))])
    different = nn.ModuleList([keyed(nn.Linear(3, 1)), keyed(with_statistics)])
    return {
        "plain": keyed(nn.Linear(3, 1)),
        "recurrent": keyed(nn.LSTM(3, 2)),
        "twins": twins,
        "different": different,
        "parameter-free": nn.ModuleList([keyed(nn.Linear(3, 1)), keyed(nn.Identity())]),
    }


@pytest.fixture(params=list(networks()))
def loss(request):
    torch.manual_seed(0)
    return ValueLoss(networks()[request.param])


def leaves(module):
    return {k: v for k, v in module.state_dict().items() if v.is_floating_point()}


def test_half_a_step_moves_each_leaf_by_half(loss):
    updater = SoftUpdate(loss, tau=0.5)
    target = loss.target_value_network
    before = {k: v.clone() for k, v in leaves(target).items()}
    with torch.no_grad():
        for value in leaves(loss.value_network).values():
            value += 1.0
    updater.step()
    assert before
    for key, value in leaves(target).items():
        torch.testing.assert_close(value, before[key] + 0.5)


def test_targets_are_no_parameters_and_state_dict_round_trips(loss):
    names = dict(loss.named_parameters())
    assert names and not [name for name in names if name.startswith("target")]
    state = {key: value.clone() for key, value in loss.state_dict().items()}
    assert [key for key in state if key.startswith("target_value_network")]
    with torch.no_grad():
        for value in leaves(loss).values():
            value += 1.0
    loss.load_state_dict(state)
    for key, value in loss.state_dict().items():
        torch.testing.assert_close(value, state[key])


def test_eps_is_one_less_tau():
    loss = ValueLoss(keyed(nn.Linear(3, 1)))
    updater = SoftUpdate(loss, eps=0.9)
    before = loss.target_value_network.module.weight.clone()
    with torch.no_grad():
        loss.value_network.module.weight += 1.0
    updater.step()
    torch.testing.assert_close(loss.target_value_network.module.weight, before + 0.1)


def test_counters_of_the_network_are_copied():
    net = nn.Sequential(nn.BatchNorm1d(3))
    loss = ValueLoss(keyed(net))
    net(torch.randn(8, 3))
    SoftUpdate(loss, tau=0.1).step()
    assert loss.target_value_network.module[0].num_batches_tracked.item() == 1


def test_building_an_updater_starts_targets_at_their_sources():
    loss = ValueLoss(keyed(nn.Linear(3, 1)))
    with torch.no_grad():
        loss.value_network.module.weight += 1.0
    SoftUpdate(loss, tau=0.005)
    torch.testing.assert_close(loss.target_value_network.module.weight, loss.value_network.module.weight.data)


def test_updates_go_on_after_a_move_to_another_precision():
    loss = ValueLoss(keyed(nn.Linear(3, 1)))
    updater = SoftUpdate(loss, tau=1.0)
    loss.double()
    with torch.no_grad():
        loss.value_network.module.weight += 1.0
    updater.step()
    torch.testing.assert_close(loss.target_value_network.module.weight, loss.value_network.module.weight.data)


def test_a_copied_recurrent_target_computes_with_its_own_weights():
    loss = ValueLoss(keyed(nn.LSTM(3, 2)))
    x = torch.randn(4, 3)
    expected = loss.value_network.module(x)[0].detach()
    with torch.no_grad():
        for parameter in loss.parameters():
            parameter += 1.0
    torch.testing.assert_close(loss.target_value_network.module(x)[0], expected)
    assert not loss.target_value_network.module(x)[0].requires_grad


def test_a_hard_update_copies_at_every_interval_exactly():
    loss = ValueLoss(keyed(nn.Linear(3, 1)))
    updater = HardUpdate(loss, value_network_update_interval=3)
    copied_at = []
    for step in range(1, 10):
        with torch.no_grad():
            loss.value_network.module.bias += 1.0
        updater.step()
        if torch.equal(loss.target_value_network.module.bias, loss.value_network.module.bias):
            copied_at.append(step)
    assert copied_at == [3, 6, 9]


def test_a_resumed_hard_update_keeps_its_phase():
    loss = ValueLoss(keyed(nn.Linear(3, 1)))
    first, second = (HardUpdate(loss, value_network_update_interval=3) for _ in range(2))
    first.step()
    first.step()
    second.load_state_dict(first.state_dict())
    with torch.no_grad():
        loss.value_network.module.bias += 1.0
    second.step()
    assert torch.equal(loss.target_value_network.module.bias, loss.value_network.module.bias)


def test_without_targets_there_is_nothing_to_update():
    loss = ValueLoss(keyed(nn.Linear(3, 1)), delayed=False)
    for build in (lambda: SoftUpdate(loss, tau=0.1), lambda: HardUpdate(loss)):
        with pytest.raises(SpecError, match=r"ValueLoss has no target network to update.*delay_value=True"):
            build()


def test_exactly_one_of_eps_and_tau():
    loss = ValueLoss(keyed(nn.Linear(3, 1)))
    for options in ({}, {"eps": 0.9, "tau": 0.1}):
        with pytest.raises(SpecError, match="exactly one of eps and tau"):
            SoftUpdate(loss, **options)
    with pytest.raises(SpecError, match=r"lie in \[0, 1\]; got eps=None, tau=2"):
        SoftUpdate(loss, tau=2)
    with pytest.warns(UserWarning, match=r"did you mean tau=0\.005"):
        SoftUpdate(loss, eps=0.005)
    for interval in (0, 2.5, float("inf"), float("nan")):
        with pytest.raises(SpecError, match=f"at least 1 step; got {interval}"):
            HardUpdate(loss, value_network_update_interval=interval)
    with pytest.raises(SpecError, match=r"lie in \[0, 1\]; got eps=None, tau=nan"):
        SoftUpdate(loss, tau=float("nan"))


def test_a_hard_update_copies_running_statistics_too():
    net = nn.Sequential(nn.BatchNorm1d(3))
    loss = ValueLoss(keyed(net))
    net(torch.randn(8, 3) + 5)
    HardUpdate(loss, value_network_update_interval=1).step()
    for key, value in net.state_dict().items():
        torch.testing.assert_close(loss.target_value_network.module.state_dict()[key], value)


@pytest.mark.parametrize("build", [lambda loss: SoftUpdate(loss, tau=0.1), HardUpdate])
@pytest.mark.parametrize("updater_first", [True, False])
def test_a_resumed_run_keeps_its_targets_whatever_is_built_first(build, updater_first):
    old, new = ValueLoss(keyed(nn.Linear(3, 1))), ValueLoss(keyed(nn.Linear(3, 1)))
    with torch.no_grad():
        old.value_network.module.weight += 1.0
    state = old.state_dict()
    if updater_first:
        build(new)
    new.load_state_dict(state)
    if not updater_first:
        build(new)
    for key, value in new.state_dict().items():
        torch.testing.assert_close(value, state[key])


def test_weights_without_targets_are_no_restored_targets():
    pretrained = ValueLoss(keyed(nn.Linear(3, 1)), delayed=False)
    loss = ValueLoss(keyed(nn.Linear(3, 1)))
    loss.load_state_dict(pretrained.state_dict(), strict=False)
    SoftUpdate(loss, tau=0.1)
    torch.testing.assert_close(loss.target_value_network.module.weight, pretrained.value_network.module.weight.data)


class TwoNetworks(LossModule):
    """Two delayed networks, added in either order."""

    def __init__(self, networks):
        super().__init__()
        for name, network in networks.items():
            self.add_network(name, network, delayed=True)


@pytest.mark.parametrize("names", [["actor", "critic"], ["critic", "actor"]])
def test_a_shared_trunk_moves_once_in_each_target_whatever_is_added_first(names):
    trunk = nn.Linear(3, 3)
    networks = {name: keyed(nn.Sequential(trunk, nn.Linear(3, 1), trunk)) for name in names}
    loss = TwoNetworks(networks)
    updater = SoftUpdate(loss, tau=0.5)
    before = trunk.weight.detach().clone()
    with torch.no_grad():
        trunk.weight += 1.0
    updater.step()
    for name in names:
        target = loss.get_submodule(f"target_{name}").module
        assert target[0] is target[2]
        torch.testing.assert_close(target[0].weight, before + 0.5)


def test_constants_with_infinities_stay_numbers():
    class Masked(nn.Linear):
        def __init__(self):
            super().__init__(3, 1)
            self.register_buffer("mask", torch.tensor([0.0, float("-inf")]))

    loss = ValueLoss(keyed(Masked()))
    SoftUpdate(loss, tau=0.1).step()
    assert loss.target_value_network.module.mask.tolist() == [0.0, float("-inf")]


def test_a_tensor_that_was_removed_is_named():
    loss = ValueLoss(keyed(nn.Linear(3, 1)))
    updater = SoftUpdate(loss, tau=0.1)
    loss.value_network.module.bias = None
    with pytest.raises(SpecError, match="'bias' of a network or of its target was removed"):
        updater.step()
