"""DQNLoss against plain torch written from the papers, and what replay, masks and n-step data ask of it."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torch import nn

from rl_core.errors import KeyMissingError, LossError, PolicyError, SpecError
from rl_core.specs import Categorical, MultiOneHot, OneHot
from rl_core.testing import LossKit
from rl_objectives import DQNLoss, HardUpdate, SoftUpdate, TDLambdaEstimator, ValueEstimators
from rl_objectives.functional.q_learning import conservative_penalty, greedy_value, one_step_target, taken_value


class Greedy(TensorDictModuleBase):
    """A greedy choice as small as the contract allows."""

    def __init__(self, action_space="categorical", var_nums=(), mask_key=None):
        super().__init__()
        self.in_keys = ["action_value"] + ([mask_key] if mask_key else [])
        self.out_keys = ["action", "action_value"]
        self.action_space, self.var_nums = action_space, list(var_nums)
        self.calls = 0

    def forward(self, tensordict):
        self.calls += 1
        if len(self.in_keys) > 1 and not tensordict[self.in_keys[1]].any(-1).all():
            raise PolicyError("nothing is allowed")
        tensordict["action"] = tensordict["action_value"].argmax(-1)
        return tensordict


def make_net(n=4, seed=4):
    torch.manual_seed(seed)
    return TensorDictModule(
        nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, n)), ["observation"], ["action_value"]
    )


def make_loss(network=None, **options):
    loss = DQNLoss(make_net() if network is None else network, **options)
    torch.manual_seed(9)
    with torch.no_grad():  # a target that differs from its source
        for value in loss.target_value_network.state_dict().values():
            value.add_(0.3 * torch.randn_like(value))
    return loss


def make_batch(size=16, n=4, one_hot=False):
    torch.manual_seed(3)
    terminated = torch.rand(size, 1) < 0.3
    done = terminated | (torch.rand(size, 1) < 0.3)
    step = {
        "observation": torch.randn(size, 3),
        "reward": torch.randn(size, 1),
        "done": done,
        "terminated": terminated,
    }
    action = torch.randint(0, n, (size,))
    action = F.one_hot(action, n) if one_hot else action
    return TensorDict({"observation": torch.randn(size, 3), "action": action, "next": step}, [size])


def doubled(batch):
    return batch.apply(lambda value: value.double() if value.is_floating_point() else value)


class TestDQNKeepsItsPromises(LossKit):
    gradients = {"loss": {"value_network"}}
    network_outputs = {"action_value", "value"}

    def make_loss(self, **options):
        return make_loss(double_dqn=True, **options)

    def make_batch(self):
        batch = make_batch()
        batch["next", "action_mask"] = torch.rand(16, 4) < 0.9
        batch["next", "action_mask"][:, 0] = True
        batch["gamma"] = torch.full((16, 1), 0.9)
        return batch


def reference(loss, batch, *, gamma, double):
    """Mnih et al., 2013, eq. 2 and 3; van Hasselt et al., 2015, eq. 4; in float64."""
    net, target = loss.value_network.module, loss.target_value_network.module
    q = net(batch["observation"])[torch.arange(len(batch)), batch["action"]]
    with torch.no_grad():
        following = target(batch["next", "observation"])
        judge = net(batch["next", "observation"]) if double else following
        best = following[torch.arange(len(batch)), judge.argmax(1)]
        y = batch["next", "reward"][:, 0] + gamma * best * (~batch["next", "terminated"][:, 0])
    return q, y


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("distance", ["l2", "l1", "smooth_l1"])
def test_values_gradients_and_priorities_equal_plain_torch(double, distance):
    loss, batch = make_loss(loss_function=distance, double_dqn=double, gamma=0.9).double(), doubled(make_batch())
    q, y = reference(loss, batch, gamma=0.9, double=double)
    kind = {"l2": F.mse_loss, "l1": F.l1_loss, "smooth_l1": F.smooth_l1_loss}[distance]
    expected = kind(q, y)
    wanted = torch.autograd.grad(expected, list(loss.parameters()))
    out = loss(batch)
    torch.testing.assert_close(out["loss"], expected)
    for found, right in zip(torch.autograd.grad(out["loss"], list(loss.parameters())), wanted, strict=True):
        torch.testing.assert_close(found, right)
    torch.testing.assert_close(batch["td_error"], (q - y).abs().detach().unsqueeze(-1))
    torch.testing.assert_close(out["td_error"], (q - y).abs().mean().detach())
    torch.testing.assert_close(out["pred_value"], q.mean().detach())
    torch.testing.assert_close(out["target_value"], y.mean())


def test_truncated_steps_bootstrap_and_terminated_ones_do_not():
    loss, batch = make_loss(gamma=0.5), make_batch(2)
    batch["next", "done"] = torch.tensor([[True], [True]])
    batch["next", "terminated"] = torch.tensor([[False], [True]])
    batch["next", "observation"][1] = float("nan")
    q, _ = reference(loss, batch, gamma=0.5, double=False)
    best = loss.target_value_network.module(batch["next", "observation"])[0].max()
    y = batch["next", "reward"][:, 0] + torch.stack([0.5 * best, torch.zeros(())])
    torch.testing.assert_close(loss(batch)["loss"], F.mse_loss(q, y))


def test_without_terminated_every_end_counts_as_one():
    loss, batch = make_loss(), make_batch()
    batch["next", "terminated"] = batch["next", "done"].clone()
    expected = loss(batch)["loss"]
    torch.testing.assert_close(loss(batch.exclude(("next", "terminated")))["loss"], expected)


def test_the_default_discount_is_that_of_td0():
    batch = make_batch()
    torch.testing.assert_close(make_loss()(batch)["loss"], make_loss(gamma=0.99)(batch)["loss"])
    assert make_loss(gamma=0.9).value_estimator.gamma == 0.9


def test_each_row_of_n_step_data_has_its_own_discount():
    loss, batch = make_loss(gamma=0.9).double(), doubled(make_batch())
    steps = torch.randint(1, 4, (16, 1))
    q, y = reference(loss, batch, gamma=0.9 ** steps[:, 0], double=False)
    counted = batch.clone().set("steps_to_next_obs", steps)
    discounted = batch.clone().set("gamma", 0.9 ** steps.double())
    for data in (counted, discounted):
        torch.testing.assert_close(loss(data)["loss"], F.mse_loss(q, y))
    # the discount is the truth where both are present
    discounted["steps_to_next_obs"] = torch.ones_like(steps)
    torch.testing.assert_close(loss(discounted)["loss"], F.mse_loss(q, y))


def test_n_step_data_does_not_bootstrap_from_a_terminal_landing():
    # gamma .9, n 3, V(terminal) 1000; reward 1 per step: the sums over what is left of an episode of 4 steps
    values = torch.full((4, 1), 1000.0)
    reward = torch.tensor([[1 + 0.9 + 0.81], [2.71], [1.9], [1.0]])
    ends = torch.tensor([[False], [True], [True], [True]])
    target = one_step_target(reward, values, ends, torch.tensor([[0.9**3], [0.9**3], [0.81], [0.9]]))
    torch.testing.assert_close(target.flatten(), torch.tensor([731.71, 2.71, 1.9, 1.0]))


@pytest.mark.parametrize("choice", [ValueEstimators.TDLambda, "tdlambda", TDLambdaEstimator])
def test_lambda_returns_of_sequences_replace_the_one_step_target(choice):
    loss, batch = make_loss().double(), doubled(make_batch()).reshape(2, 8)
    loss.make_value_estimator(choice, gamma=0.9, lmbda=0.7)
    net, target = loss.value_network.module, loss.target_value_network.module
    q = net(batch["observation"]).gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
    best = target(batch["next", "observation"]).amax(-1).detach()
    reward, done, term = (batch["next", name].squeeze(-1) for name in ("reward", "done", "terminated"))
    y = torch.zeros_like(best)
    for row in range(2):
        following = best[row, -1]
        for t in reversed(range(8)):
            mixed = best[row, t] if done[row, t] else 0.3 * best[row, t] + 0.7 * following
            y[row, t] = following = reward[row, t] + 0.9 * mixed * (~term[row, t])
    torch.testing.assert_close(loss(batch)["loss"], F.mse_loss(q, y))
    batch["gamma"] = torch.full((2, 8, 1), 0.9, dtype=torch.float64)
    with pytest.raises(SpecError, match=r'n-step transitions.*"gamma".*Use TD0'):
        loss(batch)


def test_gae_is_refused_and_the_estimator_in_use_stays():
    loss = make_loss(gamma=0.8)
    with pytest.raises(SpecError, match=r"DQNLoss has no state value for GAE. Use TD0, TD1 or TDLambda"):
        loss.make_value_estimator("gae")
    assert loss.value_estimator.gamma == 0.8


# ---- actions


def test_one_hot_and_categorical_actions_give_the_same_loss():
    plain, hot = make_batch(), make_batch(one_hot=True)
    expected = make_loss()(plain)["loss"]
    column = plain.clone().set("action", plain["action"].unsqueeze(-1))
    boolean = hot.clone().set("action", hot["action"].bool())
    for data, space in ((column, None), (hot, None), (hot, "one_hot"), (boolean, OneHot(4)), (plain, Categorical(4))):
        torch.testing.assert_close(make_loss(action_space=space)(data)["loss"], expected)


def test_groups_of_one_hot_actions_add_their_values_up():
    value = torch.tensor([[1.0, 2.0, 9.0, 8.0, 7.0]])
    assert taken_value(value, torch.tensor([[0, 1, 1, 0, 0]]), "mult_one_hot").item() == 11
    assert greedy_value(value, groups=[2, 3]).item() == 11
    mask = torch.tensor([[True, False, False, True, True]])
    assert greedy_value(value, groups=[2, 3], action_mask=mask).item() == 9
    assert greedy_value(value, groups=[2, 3], chosen_by=-value).item() == 1 + 7
    loss, batch = make_loss(make_net(5), action_space=MultiOneHot([2, 3]), gamma=0.9), make_batch(n=5)
    batch["action"] = torch.cat([torch.eye(2)[torch.randint(2, (16,))], torch.eye(3)[torch.randint(3, (16,))]], -1)
    q = (loss.value_network.module(batch["observation"]) * batch["action"]).sum(-1)
    following = loss.target_value_network.module(batch["next", "observation"])
    best = following[:, :2].amax(-1) + following[:, 2:].amax(-1)
    y = (batch["next", "reward"][:, 0] + 0.9 * best * ~batch["next", "terminated"][:, 0]).detach()
    torch.testing.assert_close(loss(batch)["loss"], F.mse_loss(q, y))


def test_the_network_tells_its_action_space():
    network = TensorDictSequential(make_net(5), Greedy("mult-one-hot", [2, 3]))
    assert DQNLoss(network).space.groups == (2, 3)
    with pytest.raises(SpecError, match="action_space is 'one_hot', but the network chooses 'mult_one_hot'"):
        DQNLoss(network, action_space="one-hot")
    with pytest.raises(SpecError, match="give action_space a MultiOneHot spec"):
        DQNLoss(make_net(), action_space="mult_one_hot")
    with pytest.raises(SpecError, match=r"action_space is 'one_hot'.*got 'continuous'"):
        DQNLoss(make_net(), action_space="continuous")


def test_actions_of_the_wrong_space_are_refused():
    batch = make_batch(one_hot=True)
    with pytest.raises(LossError, match=r"\[16, 4\] do not fit action values \[16, 4\].*'categorical'"):
        make_loss(action_space="categorical")(batch)
    with pytest.raises(LossError, match=r"actions \[16\] do not fit"):
        make_loss(action_space="one_hot")(make_batch())
    batch["action"] = torch.ones(16, 4)
    with pytest.raises(SpecError, match="Name the action space"):
        make_loss()(batch)


def test_a_ruled_out_action_of_value_minus_infinity_gives_numbers():
    value = torch.tensor([[1.0, float("-inf")]], requires_grad=True)
    taken = taken_value(value, torch.tensor([[1, 0]]), "one_hot")
    taken.sum().backward()
    assert taken.item() == 1 and value.grad.tolist() == [[1.0, 0.0]]


# ---- action masks


def masked_batch():
    batch = make_batch()
    mask = torch.rand(16, 4) < 0.5
    mask[:, 2] = True
    mask[batch["next", "terminated"].flatten()] = False  # nothing is allowed after the end
    return batch.set(("next", "action_mask"), mask)


@pytest.mark.parametrize("double", [False, True])
def test_the_best_next_action_is_an_allowed_one(double):
    loss, batch = make_loss(gamma=0.9, double_dqn=double), masked_batch()
    q, _ = reference(loss, batch, gamma=0.9, double=double)
    y = batch["next", "reward"][:, 0].clone()
    following = loss.target_value_network.module(batch["next", "observation"])
    judge = loss.value_network.module(batch["next", "observation"]) if double else following
    for row in range(16):
        if not batch["next", "terminated"][row]:
            allowed = batch["next", "action_mask"][row].nonzero().flatten().tolist()
            y[row] += 0.9 * following[row, max(allowed, key=lambda a: judge[row, a].item())].item()
    torch.testing.assert_close(loss(batch)["loss"], F.mse_loss(q, y))


def test_a_row_without_an_allowed_action_is_named_unless_it_does_not_count():
    loss, batch = make_loss(), masked_batch()
    row = int((~batch["next", "terminated"].flatten()).nonzero()[2])
    batch["next", "action_mask"][row] = False
    with pytest.raises(PolicyError, match=rf"no action in row {row} of \[16\]"):
        loss(batch)
    valid = torch.ones(16, dtype=torch.bool)
    valid[row] = False
    out = loss(batch.set(("collector", "mask"), valid))
    assert out["loss"].isfinite()
    with pytest.raises(LossError, match=r"bool \[\*B, n\]; got torch.float32 \[16, 4\]"):
        loss(batch.set(("next", "action_mask"), torch.ones(16, 4)))


def test_the_greedy_choice_of_the_network_is_not_run_and_its_mask_is_respected():
    greedy = Greedy(mask_key="legal")
    loss, batch = make_loss(TensorDictSequential(make_net(), greedy), gamma=0.9), masked_batch()
    with pytest.raises(SpecError, match=r"call loss.set_keys\(action_mask='legal'\)|Call loss.set_keys"):
        loss(batch)
    loss.set_keys(action_mask="legal")
    with pytest.raises(KeyMissingError, match=r'DQNLoss needs \("next", "legal"\)'):
        loss(batch)
    batch.rename_key_(("next", "action_mask"), ("next", "legal"))
    expected = make_loss(gamma=0.9)(masked_batch())["loss"]
    torch.testing.assert_close(loss(batch)["loss"], expected)
    assert greedy.calls == 0 and loss.target_value_network.module[-1].calls == 0
    assert "legal" not in loss.in_keys and ("next", "legal") in loss.in_keys


def test_a_replaced_part_of_the_network_is_followed():
    network = TensorDictSequential(make_net(), Greedy())
    loss, batch = make_loss(network), make_batch()
    before = loss(batch)["pred_value"]
    network.module[0] = make_net(seed=77)
    after = loss(batch)["pred_value"]
    torch.testing.assert_close(
        after, network.module[0].module(batch["observation"]).gather(1, batch["action"][:, None]).mean()
    )
    assert (before - after).abs() > 1e-3


# ---- replay


def test_importance_weights_multiply_the_loss_and_are_not_divided_out():
    loss, batch = make_loss(gamma=0.9), make_batch()
    q, y = reference(loss, batch, gamma=0.9, double=False)
    weight = torch.rand(16) * 0.5
    expected = (weight * (q - y) ** 2).mean()
    for shaped in (weight, weight.unsqueeze(-1)):
        torch.testing.assert_close(loss(batch.clone().set("priority_weight", shaped))["loss"], expected)
    weighted = batch.clone().set("priority_weight", weight)
    torch.testing.assert_close(
        make_loss(gamma=0.9, use_prioritized_weights=False)(weighted)["loss"], loss(batch)["loss"]
    )
    with pytest.raises(KeyMissingError, match=r'"priority_weight".*prioritised sampler'):
        make_loss(use_prioritized_weights=True)(batch)
    with pytest.raises(LossError, match=r'"priority_weight" \[16, 2\] must be one weight per row'):
        loss(batch.clone().set("priority_weight", torch.ones(16, 2)))


def test_priorities_are_absolute_errors_or_squares_under_their_key():
    batch = make_batch()
    make_loss()(batch)
    error = batch["td_error"].clone()
    assert error.shape == (16, 1) and not error.requires_grad
    loss = make_loss(priority_type="squared")
    loss.set_keys(priority="urgency")
    loss(batch)
    torch.testing.assert_close(batch["urgency"], error.square())
    batch["collector", "mask"] = torch.arange(16) > 0
    make_loss()(batch)
    assert batch["td_error"][0].item() == 0
    torch.testing.assert_close(batch["td_error"][1:], error[1:])
    with pytest.raises(SpecError, match="'abs', 'squared'; got 'rank'"):
        make_loss(priority_type="rank")


def test_invalid_rows_of_nan_rewards_leave_the_gradient_finite():
    loss, batch = make_loss(), make_batch()
    batch["collector", "mask"] = torch.arange(16) % 2 == 0
    batch["next", "reward"][1::2] = float("nan")
    loss(batch)["loss"].backward()
    assert all(parameter.grad.isfinite().all() for parameter in loss.parameters())


# ---- targets


def test_no_gradient_reaches_the_target_or_flows_through_it():
    loss, batch = make_loss(double_dqn=True), make_batch()
    batch["next", "observation"].requires_grad_()
    loss(batch)["loss"].backward()
    assert batch["next", "observation"].grad is None
    assert not list(loss.target_value_network.parameters())


def test_without_delay_the_online_network_is_the_target():
    loss, batch = DQNLoss(make_net(), delay_value=False, gamma=0.9), make_batch()
    q = loss.value_network.module(batch["observation"]).gather(1, batch["action"][:, None])
    best = loss.value_network.module(batch["next", "observation"]).amax(1, keepdim=True).detach()
    y = batch["next", "reward"] + 0.9 * best * ~batch["next", "terminated"]
    torch.testing.assert_close(loss(batch)["loss"], F.mse_loss(q, y))
    with pytest.raises(SpecError, match="double_dqn needs a target network"):
        DQNLoss(make_net(), delay_value=False, double_dqn=True)


def test_the_policy_learns_without_a_copy_step_and_the_target_waits():
    network = make_net()
    loss, batch = make_loss(network), make_batch()
    updater = HardUpdate(loss, value_network_update_interval=2)
    optimiser = torch.optim.SGD(loss.parameters(), lr=0.1)
    old = copy.deepcopy(network.state_dict())
    loss(batch)["loss"].backward()
    optimiser.step()
    updater.step()
    assert not torch.equal(network.module[0].weight, old["module.0.weight"])
    torch.testing.assert_close(loss.target_value_network.module[0].weight, old["module.0.weight"])
    updater.step()
    torch.testing.assert_close(loss.target_value_network.module[0].weight, network.module[0].weight.data)


def test_views_of_the_parameters_build_optimisers():
    loss = make_loss()
    views = list(loss.value_network_params.values(True, True))
    assert {id(view) for view in views} == {id(parameter) for parameter in loss.parameters()}
    targets = loss.target_value_network_params.values(True, True)
    assert not any(target.requires_grad for target in targets)
    SoftUpdate(loss, tau=1.0)
    torch.testing.assert_close(
        loss.target_value_network_params["module", "0", "bias"], loss.value_network.module[0].bias.data
    )


# ---- shapes, copies, compilation


def test_shapes_that_would_broadcast_are_refused():
    loss, batch = make_loss(), make_batch()
    batch["next", "reward"] = torch.randn(16)
    with pytest.raises(
        LossError, match=r'taken actions are \[16, 1\], the batch has \("next", "reward"\) float32 \[16\]'
    ):
        loss(batch)
    batch = make_batch().set(("next", "terminated"), torch.zeros(16, 1))
    with pytest.raises(LossError, match=r'\("next", "terminated"\) float32 \[16, 1\].*must be bool'):
        loss(batch)
    with pytest.raises(LossError, match=r'"gamma" float32 \[16\]'):
        loss(make_batch().set("gamma", torch.ones(16)))


def test_two_heads_need_two_rewards():
    heads = TensorDictModule(
        nn.Sequential(nn.Linear(3, 8), nn.Unflatten(-1, (2, 4))), ["observation"], ["action_value"]
    )
    loss, batch = DQNLoss(heads, action_space="categorical"), make_batch()
    batch["action"] = torch.randint(0, 4, (16, 2))
    with pytest.raises(LossError, match=r"taken actions are \[16, 2, 1\].*\[16, 1\]"):
        loss(batch)
    for name in ("reward", "done", "terminated"):
        batch["next", name] = batch["next", name].unsqueeze(1).expand(16, 2, 1).clone()
    batch["collector", "mask"] = torch.arange(16) < 8
    batch["priority_weight"] = torch.ones(16)
    assert loss(batch)["loss"].isfinite() and batch["td_error"].shape == (16, 2, 1)


def test_a_value_network_is_keyed():
    with pytest.raises(SpecError, match="value_network to be a module with in_keys; got Linear"):
        DQNLoss(nn.Linear(3, 4))
    wrong = TensorDictModule(nn.Linear(3, 4), ["observation"], ["q"])
    with pytest.raises(KeyMissingError, match=r'writes "q", not "action_value".*set_keys'):
        DQNLoss(wrong)(make_batch())
    loss = DQNLoss(wrong)
    loss.set_keys(action_value="q")
    assert loss(make_batch())["loss"].isfinite()


def test_a_copy_in_another_precision_computes_with_its_own_networks():
    loss = make_loss(TensorDictSequential(make_net(), Greedy()))
    loss(make_batch())
    twin = copy.deepcopy(loss).double()
    with torch.no_grad():
        twin.value_network.module[0].module[2].bias += 1
    first, second = loss(make_batch()), twin(doubled(make_batch()))
    assert second["loss"].dtype == torch.float64
    torch.testing.assert_close(second["pred_value"].float(), first["pred_value"] + 1)


def test_it_compiles_as_one_graph():
    loss, batch = make_loss(double_dqn=True, gamma=0.9, action_space="categorical"), make_batch()
    expected = loss(batch.clone())
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    out = compiled(batch)
    for key, value in expected.items():
        torch.testing.assert_close(out[key], value)
    out["loss"].backward()
    assert all(parameter.grad is not None for parameter in loss.parameters())
    assert batch["td_error"].shape == (16, 1)


def test_the_penalty_of_equal_values_is_the_logarithm_of_their_number():
    values = torch.zeros(2, 4)
    taken = torch.zeros(2, 1)
    torch.testing.assert_close(conservative_penalty(values, taken).exp(), torch.full((2, 1), 4.0))
    mask = torch.tensor([[True, True, False, False], [False, True, True, True]])
    assert conservative_penalty(values, taken, mask).exp().flatten().tolist() == pytest.approx([2, 3])


@given(st.lists(st.floats(-5, 5), min_size=3, max_size=3), st.lists(st.floats(-5, 5), min_size=3, max_size=3))
def test_double_q_never_exceeds_the_maximum(values, judges):
    value, judge = torch.tensor(values), torch.tensor(judges)
    assert greedy_value(value, chosen_by=judge) <= greedy_value(value)
    assert greedy_value(value, chosen_by=value) == greedy_value(value)
