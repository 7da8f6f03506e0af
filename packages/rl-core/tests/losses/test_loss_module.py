"""The loss contract on the smallest loss there is."""

import copy
from dataclasses import dataclass, field

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core.errors import KeyMissingError, SpecError
from rl_core.estimators import EstimatorKeys, ValueEstimator
from rl_core.keys import Key
from rl_core.losses import LossKeys, LossModule, entry, masked_rows, reduce
from rl_core.losses.networks import call_on_tensors


@dataclass(frozen=True)
class RegressionKeys(LossKeys):
    label: Key = field(default="label", metadata=entry(producer="The teacher writes it."))
    reward: Key = field(default="reward", metadata=entry(under_next=True))


class RegressionLoss(LossModule):
    default_keys = RegressionKeys()
    value_network_name = "value_network"

    def __init__(self, network, *, delayed=False, **options):
        super().__init__(**options)
        self.add_network("value_network", network, delayed=delayed)
        self.add_scalar("weight", 1.0)

    def default_in_keys(self):
        return ["observation", self.path("label"), self.path("reward")]

    def default_out_keys(self):
        return ["loss_value", "error"]

    def compute(self, batch):
        mask = self.valid_rows(batch)
        inputs = [batch["observation"]]
        value = call_on_tensors(self._modules["value_network"], inputs, "value", batch.batch_size)
        error = (value - self.read(batch, "label") - self.read(batch, "reward")).square().squeeze(-1)
        return {"loss_value": self.reduce(self.weight * error, mask), "error": error.detach().mean()}


def make_loss(**options):
    torch.manual_seed(0)
    return RegressionLoss(TensorDictModule(nn.Linear(2, 1), in_keys=["observation"], out_keys=["value"]), **options)


def make_batch():
    torch.manual_seed(1)
    reward = {"reward": torch.randn(6, 1)}
    return TensorDict({"observation": torch.randn(6, 2), "label": torch.randn(6, 1), "next": reward}, [6])


def test_the_sum_of_losses_trains_with_any_optimiser():
    loss, batch = make_loss(), make_batch()
    optimiser = torch.optim.SGD(loss.parameters(), lr=0.1)
    before = loss(batch)["loss_value"].item()
    sum(value for key, value in loss(batch).items() if key.startswith("loss")).backward()
    optimiser.step()
    assert loss(batch)["loss_value"].item() < before


def test_keyword_tensors_give_a_tuple_in_the_order_of_out_keys():
    loss, batch = make_loss(), make_batch()
    tensors = {"observation": batch["observation"], "label": batch["label"], "next_reward": batch["next", "reward"]}
    value, error = loss(**tensors)
    assert torch.equal(value, loss(batch)["loss_value"]) and torch.equal(error, value.detach())
    assert loss.select_out_keys("error")(**tensors) == (error,)


def test_an_unknown_keyword_is_refused_with_the_close_one():
    with pytest.raises(TypeError, match=r"reads no 'lable'. Did you mean 'label'\?"):
        make_loss()(lable=torch.ones(2, 1))
    with pytest.raises(TypeError, match="not both"):
        make_loss()(make_batch(), label=torch.ones(2, 1))


def test_keys_are_renamed_and_come_back():
    loss = make_loss()
    loss.set_keys(label="goal", reward=("agents", "reward"))
    assert loss.tensor_keys.label == "goal"
    assert loss.in_keys == ["observation", "goal", ("next", "agents", "reward")]
    loss.set_keys(label=None, reward=("next", "gain"))
    assert loss.in_keys == ["observation", "label", ("next", "gain")]


def test_an_unknown_name_is_refused_with_the_close_one():
    with pytest.raises(
        SpecError, match=r"no key named 'lable'. Did you mean 'label'\? It has 'mask', 'label', 'reward'"
    ):
        make_loss().set_keys(lable="x")


def test_a_missing_entry_is_named_with_what_is_there_and_the_cure():
    with pytest.raises(KeyMissingError) as error:
        make_loss()(make_batch().exclude("label"))
    assert str(error.value) == (
        'RegressionLoss needs "label"; the batch has "observation", ("next", "reward"). '
        "The teacher writes it. Rename with loss.set_keys(label=...)."
    )
    with pytest.raises(KeyMissingError, match=r'needs \("next", "reward"\); .*set_keys\(reward=\.\.\.\)'):
        make_loss()(make_batch().exclude(("next", "reward")))


def test_reductions_by_hand():
    values, mask = torch.tensor([1.0, 2.0, 9.0]), torch.tensor([True, True, False])
    assert reduce(values, "mean").item() == 4.0 and reduce(values, "sum").item() == 12.0
    assert reduce(values, "none") is values
    assert reduce(values, "mean", mask).item() == 1.5 and reduce(values, "sum", mask).item() == 3.0
    assert reduce(values, "none", mask).tolist() == [1.0, 2.0, 0.0]


def test_a_mask_covers_trailing_dimensions_and_stops_nan():
    values = torch.tensor([[1.0, 3.0], [float("nan"), 5.0]], requires_grad=True)
    mean = reduce(values, "mean", torch.tensor([True, False]))
    mean.backward()
    assert mean.item() == 2.0 and values.grad.tolist() == [[0.5, 0.5], [0.0, 0.0]]
    assert reduce(values, "mean", torch.zeros(2, dtype=torch.bool)).item() == 0.0


def test_masks_of_another_shape_or_type_are_refused():
    for mask in (torch.ones(2, 1).bool(), torch.ones(3)):
        with pytest.raises(SpecError, match="a mask is bool and has the leading shape"):
            reduce(torch.ones(3, 1), "mean", mask)
    with pytest.raises(SpecError):
        masked_rows(torch.ones(3, 1), torch.ones(2, dtype=torch.bool))


def test_the_mask_of_a_collector_is_found():
    loss, batch = make_loss(), make_batch()
    valid = torch.tensor([True, False, True, True, False, True])
    batch["collector", "mask"] = valid
    torch.testing.assert_close(loss(batch)["loss_value"], make_loss()(batch[valid].exclude("collector"))["loss_value"])


def test_scalars_accept_numbers_and_are_part_of_the_state():
    loss, batch = make_loss(), make_batch()
    before = loss(batch)["loss_value"]
    loss.weight = 3
    torch.testing.assert_close(loss(batch)["loss_value"], 3 * before)
    before.backward()  # the graph of the earlier loss still holds its own weight
    other = make_loss()
    other.load_state_dict(loss.state_dict())
    assert other.weight.item() == 3.0


def test_targets_are_frozen_copies():
    loss = make_loss(delayed=True)
    assert loss.target_names == ["value_network"]
    online, target = loss.value_network.module, loss.target_or_online("value_network").module
    assert torch.equal(online.weight, target.weight) and target.weight is not online.weight
    assert {id(p) for p in loss.parameters()} == {id(online.weight), id(online.bias)}
    assert not target(torch.ones(2)).requires_grad
    loss.requires_grad_(True)
    assert not target.weight.requires_grad


def test_without_a_target_the_online_network_stands_in():
    loss = make_loss()
    assert loss.target_or_online("value_network") is loss.value_network
    stand_in = loss.target_value_network_params["module", "weight"]
    assert not stand_in.requires_grad and torch.equal(stand_in, loss.value_network.module.weight)


def test_views_hold_the_live_tensors():
    loss = make_loss(delayed=True)
    live = list(loss.value_network_params.values(True, True))
    assert {id(p) for p in live} == {id(p) for p in loss.parameters()}
    assert loss.target_value_network_params["module", "weight"] is loss.target_value_network.module.weight


def test_tied_weights_stay_tied_in_a_target():
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    loss = RegressionLoss(TensorDictModule(tied, in_keys=["observation"], out_keys=["value"]), delayed=True)
    target = loss.target_value_network.module
    assert target[0].weight is target[1].weight
    assert len(loss.target_pairs()) == 3


def test_a_lazy_network_cannot_have_a_target_yet():
    network = TensorDictModule(nn.LazyLinear(1), in_keys=["observation"], out_keys=["value"])
    with pytest.raises(SpecError, match=r"lazy parameter 'module.weight'.*Call the network once"):
        RegressionLoss(network, delayed=True)


def test_a_deep_copy_is_independent():
    loss = make_loss(delayed=True)
    twin = copy.deepcopy(loss)
    with torch.no_grad():
        twin.value_network.module.weight += 1
    torch.testing.assert_close(loss(make_batch())["loss_value"], make_loss()(make_batch())["loss_value"])


@dataclass(frozen=True)
class ConstantKeys(EstimatorKeys):
    pass


class ConstantEstimator(ValueEstimator):
    default_keys = ConstantKeys()
    default_hyperparameters = {"gamma": 0.5}

    def __init__(self, *, value_network=None, gamma):
        super().__init__()
        self.value_network, self.gamma = value_network, gamma

    in_keys = out_keys = ()

    def forward(self, tensordict):
        return tensordict.set(self.path("value_target"), self.value_estimate(tensordict))

    def value_estimate(self, tensordict, *, next_value=None):
        return self.gamma * self.read(tensordict, "reward")


def test_an_estimator_of_any_package_can_serve_a_loss():
    loss = make_loss()
    loss.set_keys(reward="gain")
    loss.make_value_estimator(ConstantEstimator)
    estimator = loss.value_estimator
    assert estimator.gamma == 0.5 and estimator.value_network is loss.value_network
    assert estimator.path("reward") == ("next", "gain")
    loss.set_keys(reward=None)
    assert estimator.path("reward") == ("next", "reward")
    assert estimator not in list(loss.modules())
    assert len(loss.state_dict()) == 3


def test_estimators_that_cannot_be_built_are_refused():
    loss = make_loss()
    with pytest.raises(SpecError, match="RegressionLoss has no default value estimator"):
        _ = loss.value_estimator
    with pytest.raises(SpecError, match="a name, a subclass of ValueEstimator or an instance"):
        loss.make_value_estimator(nn.Linear)
    with pytest.raises(SpecError, match=r"is built already; it takes no \['gamma'\]"):
        loss.make_value_estimator(ConstantEstimator(gamma=0.1), gamma=0.2)


def test_targets_count_as_restored_once_a_state_that_holds_them_was_loaded():
    loss, other = make_loss(delayed=True), make_loss()
    assert not loss.targets_restored
    loss.load_state_dict(other.state_dict(), strict=False)
    assert not loss.targets_restored
    nn.ModuleDict({"loss": loss}).load_state_dict(
        {f"loss.{k}": v for k, v in make_loss(delayed=True).state_dict().items()}
    )
    assert loss.targets_restored and copy.deepcopy(loss).targets_restored
