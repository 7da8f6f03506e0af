"""QMixerLoss against a row-by-row reference, its masks, its targets, and the contract that scripts rely on."""

import copy
import pickle

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core.errors import KeyMissingError, PolicyError, SpecError
from rl_core.specs import Categorical, OneHot
from rl_core.testing import LossKit
from rl_marl.losses.qmix import QMixerLoss
from rl_marl.mixers.qmix import QMixer
from rl_marl.mixers.vdn import VDNMixer
from rl_marl.networks.mlp import MultiAgentMLP
from rl_modules import QValueActor, QValueModule
from rl_objectives import HardUpdate, SoftUpdate, TD1Estimator, TDLambdaEstimator, ValueEstimators

N, K, F = 3, 4, 2
GAMMA = 0.9


@pytest.fixture(autouse=True)
def double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def make_actor(action_mask_key=None, action_space="categorical", share_params=True):
    return QValueActor(
        MultiAgentMLP(F, K, N, centralized=False, share_params=share_params, num_cells=[]),
        [("agents", "observation")],
        action_space=action_space,
        action_value_key=("agents", "action_value"),
        action_key=("agents", "action"),
        chosen_action_value_key=("agents", "chosen_action_value"),
        action_mask_key=action_mask_key,
    )


def make_mixer(kind=VDNMixer):
    key = ("agents", "chosen_action_value")
    if kind is VDNMixer:
        return TensorDictModule(VDNMixer(N), [key], ["chosen_action_value"])
    return TensorDictModule(QMixer((2,), 5, N), [key, "state"], ["chosen_action_value"])


def make_loss(kind=VDNMixer, actor=None, **options):
    torch.manual_seed(4)
    loss = QMixerLoss(make_actor() if actor is None else actor, make_mixer(kind), **options)
    loss.make_value_estimator(gamma=GAMMA)
    for target in (loss._modules.get("target_local_value_network"), loss._modules.get("target_mixer_network")):
        for weight in target.buffers() if target is not None else ():
            weight.add_(0.1 * torch.randn_like(weight))
    return loss


def make_batch(*batch_size, one_hot=False, masks=False):
    batch_size = batch_size or (12,)
    torch.manual_seed(3)
    action = torch.randint(K, (*batch_size, N))
    terminated = torch.rand(*batch_size, 1) < 0.2
    step = {
        "agents": {"observation": torch.randn(*batch_size, N, F)},
        "state": torch.randn(*batch_size, 2),
        "reward": torch.randn(*batch_size, 1),
        "done": terminated | (torch.rand(*batch_size, 1) < 0.2),
        "terminated": terminated,
    }
    batch = TensorDict(
        {
            "agents": {
                "observation": torch.randn(*batch_size, N, F),
                "action": nn.functional.one_hot(action, K) if one_hot else action,
            },
            "state": torch.randn(*batch_size, 2),
            "next": step,
        },
        batch_size,
    )
    if masks:
        acting = torch.rand(*batch_size, N) < 0.7
        batch["agents", "mask"] = acting
        batch["next", "agents", "mask"] = acting & (torch.rand(*batch_size, N) < 0.7)
        batch["next", "agents", "action_mask"] = torch.rand(*batch_size, N, K) < 0.5
        batch["next", "agents", "action_mask"][..., 1] = True
    return batch


class TestVDNKeepsItsPromises(LossKit):
    gradients = {"loss": {"local_value_network"}}
    network_outputs = {"local_value", "global_value", "action_value"}

    def make_loss(self, **options):
        return make_loss(**options)

    def make_batch(self):
        return make_batch()


class TestQMIXKeepsItsPromises(TestVDNKeepsItsPromises):
    gradients = {"loss": {"local_value_network", "mixer_network"}}

    def make_loss(self, **options):
        return make_loss(QMixer, loss_function="smooth_l1", double_dqn=True, **options)


class TestQMIXWithOneHotActionsKeepsItsPromises(TestQMIXKeepsItsPromises):
    def make_batch(self):
        return make_batch(one_hot=True)


def reference(loss, batch, *, double=False):
    """(values, targets) of a flat batch, row by row and agent by agent: Rashid et al., 2018, eq. 6."""

    def action_values(module, observation):
        linear = module[0].module.net[0]
        return [[float((linear.weight[a] @ row + linear.bias[a]).detach()) for a in range(K)] for row in observation]

    def mixed(mixer, values, state):
        inputs = torch.tensor(values).reshape(1, N, 1)
        return float(mixer.module(inputs, *([state[None]] if mixer.module.needs_state else [])).detach())

    values, targets = [], []
    for row in batch:
        acting = row.get(("agents", "mask"), torch.ones(N, dtype=torch.bool))
        following = row.get(("next", "agents", "mask"), torch.ones(N, dtype=torch.bool))
        legal = row.get(("next", "agents", "action_mask"), torch.ones(N, K, dtype=torch.bool))
        if row["next", "done"]:
            following = following | acting
        online = action_values(loss.local_value_network, row["agents", "observation"])
        taken = [online[i][row["agents", "action"][i]] if acting[i] else 0.0 for i in range(N)]
        values.append(mixed(loss.mixer_network, taken, row["state"]))
        then = action_values(loss.target_local_value_network, row["next", "agents", "observation"])
        judge = action_values(loss.local_value_network, row["next", "agents", "observation"]) if double else then
        best = []
        for i in range(N):
            choice = max((a for a in range(K) if legal[i, a]), key=lambda a, i=i: judge[i][a])
            best.append(then[i][choice] if following[i] else 0.0)
        tail = mixed(loss.target_mixer_network, best, row["next", "state"]) if following.any() else 0.0
        targets.append(float(row["next", "reward"]) + (0.0 if row["next", "terminated"] else GAMMA * tail))
    return torch.tensor(values), torch.tensor(targets)


@pytest.mark.parametrize("kind", [VDNMixer, QMixer])
@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("double", [False, True])
def test_values_equal_a_row_by_row_reference(kind, masks, double):
    loss, batch = make_loss(kind, double_dqn=double), make_batch(40, masks=masks)
    values, targets = reference(loss, batch, double=double)
    rows = batch["agents", "mask"].any(-1) if masks else torch.ones(40, dtype=torch.bool)
    result = loss(batch)
    torch.testing.assert_close(result["loss"], (values - targets)[rows].square().mean())
    torch.testing.assert_close(result["td_error"], (values - targets)[rows].abs().mean())
    torch.testing.assert_close(result["pred_value"], values[rows].mean())
    torch.testing.assert_close(result["target_value"], targets[rows].mean())


def test_one_row_by_hand():
    loss, batch = make_loss(), make_batch(1)
    for name, table in (("local_value_network", [1.0, 2.0, 3.0, 4.0]), ("target_local_value_network", [5.0, 9, 7, 0])):
        linear = loss._modules[name][0].module.net[0]
        linear.weight.data.zero_()
        linear.bias.data.copy_(torch.tensor(table))
    batch["agents", "action"] = torch.tensor([[0, 1, 3]])  # 1 + 2 + 4
    batch["next", "reward"] = torch.tensor([[0.5]])
    batch["next", "done"] = batch["next", "terminated"] = torch.tensor([[False]])
    assert loss(batch)["loss"].item() == pytest.approx((7 - (0.5 + 0.9 * 27)) ** 2)  # 9 + 9 + 9
    batch["next", "agents", "action_mask"] = torch.tensor([[[1, 0, 0, 1], [0, 0, 1, 0], [1, 1, 1, 1]]]) > 0
    assert loss(batch)["loss"].item() == pytest.approx((7 - (0.5 + 0.9 * 21)) ** 2)  # 5 + 7 + 9
    batch["next", "agents", "mask"] = torch.tensor([[True, False, True]])
    batch["agents", "mask"] = torch.tensor([[True, True, False]])
    assert loss(batch)["loss"].item() == pytest.approx((3 - (0.5 + 0.9 * 14)) ** 2)  # 1 + 2; 5 + 9
    batch["next", "terminated"] = batch["next", "done"] = torch.tensor([[True]])
    assert loss(batch)["loss"].item() == pytest.approx((3 - 0.5) ** 2)


@pytest.mark.parametrize(("name", "distance"), [("l2", 4.0), ("l1", 2.0), ("smooth_l1", 1.5)])
def test_the_distance_is_chosen_by_name(name, distance):
    loss, batch = make_loss(loss_function=name), make_batch(1)
    linear = loss.local_value_network[0].module.net[0]
    nn.init.zeros_(linear.weight), nn.init.zeros_(linear.bias)
    batch["next", "reward"].fill_(2.0)
    batch["next", "done"].fill_(True), batch["next", "terminated"].fill_(True)
    assert loss(batch)["loss"].item() == pytest.approx(distance)


def test_one_hot_and_index_actions_mean_the_same():
    expected = make_loss()(make_batch())["loss"]
    batch = make_batch(one_hot=True)
    for options in ({}, {"action_space": "one-hot"}, {"action_space": OneHot(K)}):
        for dtype in (torch.int64, torch.bool, torch.float32):
            batch["agents", "action"] = batch["agents", "action"].to(dtype)
            torch.testing.assert_close(make_loss(**options)(batch)["loss"], expected)
    batch = make_batch()
    for options in ({"action_space": "categorical"}, {"action_space": Categorical(K)}):
        torch.testing.assert_close(make_loss(**options)(batch)["loss"], expected)
    batch["agents", "action"] = batch["agents", "action"].unsqueeze(-1)
    torch.testing.assert_close(make_loss()(batch)["loss"], expected)


# ---- agents that do not act


@pytest.mark.parametrize("kind", [VDNMixer, QMixer])
@pytest.mark.parametrize("share_params", [False, True])
def test_dead_agents_have_no_gradient_and_no_influence(kind, share_params):
    loss, batch = make_loss(kind, make_actor(share_params=share_params)), make_batch(masks=True)
    batch["agents", "mask"][:, 1] = batch["next", "agents", "mask"][:, 1] = False
    seen = batch["agents", "observation"].requires_grad_()
    expected = loss(batch)["loss"]
    expected.backward()
    acting = batch["agents", "mask"] & batch["agents", "mask"].any(-1, keepdim=True)
    assert (seen.grad[~acting] == 0).all() and (seen.grad[acting] != 0).all()
    if not share_params:
        for parameter in loss.local_value_network.parameters():
            assert (parameter.grad[1] == 0).all() and (parameter.grad[0] != 0).any()
    other = batch.detach().clone()
    other["agents", "observation"][~acting] = 50.0
    other["agents", "action"][~acting] = -1
    other["next", "agents", "observation"][:, 1] = -50.0
    other["next", "agents", "action_mask"][:, 1] = False
    torch.testing.assert_close(loss(other)["loss"], expected)


@pytest.mark.parametrize("kind", [VDNMixer, QMixer])
def test_a_group_with_a_dead_agent_equals_the_group_without_it(kind):
    torch.manual_seed(0)
    loss, batch = make_loss(kind), make_batch(masks=True)
    batch["agents", "mask"][:, 2] = batch["next", "agents", "mask"][:, 2] = False
    batch["agents", "mask"][:, 0] = True
    smaller_net = MultiAgentMLP(F, K, 2, centralized=False, share_params=True, num_cells=[])
    actor = QValueActor(
        smaller_net,
        [("agents", "observation")],
        action_space="categorical",
        action_value_key=("agents", "action_value"),
        action_key=("agents", "action"),
        chosen_action_value_key=("agents", "chosen_action_value"),
    )
    key, out = ("agents", "chosen_action_value"), ["chosen_action_value"]
    if kind is VDNMixer:
        mixer = TensorDictModule(VDNMixer(2), [key], out)
    else:
        mixer = TensorDictModule(QMixer((2,), 5, 2), [key, "state"], out)
    smaller = QMixerLoss(actor, mixer)
    smaller.make_value_estimator(gamma=GAMMA)
    state = loss.state_dict()
    for name, value in state.items():
        if "weight_net" in name and "out_" not in name:
            state[name] = value.unflatten(0, (3, 5))[:2].flatten(0, 1)
    smaller.load_state_dict(state)
    trimmed = batch.clone()
    for under in ((), ("next",)):
        group = trimmed[(*under, "agents")]
        for name in list(group.keys()):
            group[name] = group[name][:, :2]
    torch.testing.assert_close(smaller(trimmed)["loss"], loss(batch)["loss"])


def test_rows_in_which_nobody_acts_do_not_count():
    loss, batch = make_loss(QMixer), make_batch(masks=True)
    batch["agents", "mask"] = torch.ones(12, N, dtype=torch.bool)
    batch["agents", "mask"][3:5] = False
    kept = batch[[0, 1, 2, 5, 6, 7, 8, 9, 10, 11]]
    torch.testing.assert_close(loss(batch)["loss"], loss(kept)["loss"])


def test_a_state_in_which_nobody_acts_is_worth_nothing():
    loss, batch = make_loss(QMixer), make_batch(1, masks=True)
    batch["agents", "mask"].fill_(True), batch["next", "agents", "mask"].fill_(False)
    batch["next", "done"].fill_(False), batch["next", "terminated"].fill_(False)
    torch.testing.assert_close(loss(batch)["target_value"], batch["next", "reward"].squeeze())


def test_a_cut_episode_goes_on_with_those_who_had_not_terminated():
    loss, batch = make_loss(), make_batch(1)
    best = loss.target_local_value_network(batch["next"].clone())["agents", "chosen_action_value"].flatten()
    reward = batch["next", "reward"].item()
    batch["agents", "mask"] = torch.tensor([[True, True, False]])
    batch["next", "agents", "mask"] = torch.tensor([[False, False, False]])
    batch["next", "done"].fill_(True), batch["next", "terminated"].fill_(False)
    assert loss(batch)["target_value"].item() == pytest.approx(reward + GAMMA * float(best[0] + best[1]))
    batch["next", "agents", "terminated"] = torch.tensor([[[False], [True], [True]]])
    assert loss(batch)["target_value"].item() == pytest.approx(reward + GAMMA * float(best[0]))


def test_a_mask_on_one_side_only_is_refused():
    batch = make_batch(masks=True)
    del batch["next", "agents", "mask"]
    with pytest.raises(KeyMissingError, match='"next", "agents", "mask"'):
        make_loss()(batch)


def test_a_mixer_that_reads_the_mask_gets_the_one_in_force():
    key, out = ("agents", "chosen_action_value"), ["chosen_action_value"]
    torch.manual_seed(4)
    reading = QMixerLoss(make_actor(), TensorDictModule(VDNMixer(N), [key, ("agents", "mask")], out))
    reading.make_value_estimator(gamma=GAMMA)
    reading.load_state_dict(make_loss().state_dict())
    for masks in (False, True):
        batch = make_batch(masks=masks)
        torch.testing.assert_close(reading(batch)["loss"], make_loss()(batch)["loss"])


# ---- action masks


def test_the_target_never_takes_an_action_that_is_not_allowed():
    loss, batch = make_loss(), make_batch()
    batch["next", "done"].fill_(False), batch["next", "terminated"].fill_(False)
    value = loss.target_local_value_network(batch["next"].clone())["agents", "action_value"]
    worst = value.argmin(-1)
    batch["next", "agents", "action_mask"] = nn.functional.one_hot(worst, K) > 0
    expected = batch["next", "reward"].squeeze(-1) + GAMMA * value.amin(-1).sum(-1)
    torch.testing.assert_close(loss(batch)["target_value"], expected.mean())


def test_an_agent_that_acts_needs_an_allowed_action():
    loss, batch = make_loss(), make_batch(masks=True)
    batch["next", "agents", "mask"].fill_(True), batch["agents", "mask"].fill_(True)
    batch["next", "done"].fill_(False), batch["next", "terminated"].fill_(False)
    batch["next", "agents", "action_mask"][7, 2] = False
    with pytest.raises(PolicyError, match=r"\[7, 2\] of \[12, 3\]"):
        loss(batch)
    batch["next", "agents", "mask"][7, 2] = False
    assert loss(batch)["loss"].isfinite()
    batch["next", "agents", "mask"][7, 2] = True
    batch["next", "done"][7] = batch["next", "terminated"][7] = True  # nothing follows
    assert loss(batch)["loss"].isfinite()


def test_a_network_and_a_loss_with_different_action_masks_are_refused():
    torch.manual_seed(0)
    loss, batch = make_loss(actor=make_actor(("agents", "available"))), make_batch(masks=True)
    for part in (batch, batch["next"]):
        part["agents", "available"] = torch.ones(12, N, K, dtype=torch.bool)
    with pytest.raises(SpecError, match=r"set_keys\(action_mask=\('agents', 'available'\)\)"):
        loss(batch)
    batch["next", "agents", "available"] = batch["next", "agents", "action_mask"]
    loss.set_keys(action_mask=("agents", "available"))
    other = make_loss()
    other.load_state_dict(loss.state_dict())
    torch.testing.assert_close(loss(batch)["loss"], other(batch)["loss"])


# ---- estimators, targets, priorities


@pytest.mark.parametrize(
    ("value_type", "hyperparameters"),
    [
        (ValueEstimators.TD0, {"gamma": 0.5}),
        (ValueEstimators.TD1, {"gamma": 0.5}),
        (ValueEstimators.TDLambda, {"gamma": 0.5, "lmbda": 0.7}),
        ("td_lambda", {"gamma": 0.5, "lmbda": 0.0}),
    ],
)
def test_targets_follow_the_estimator(value_type, hyperparameters):
    loss, batch = make_loss(reduction="none"), make_batch(2, 6)
    loss.make_value_estimator(value_type, **hyperparameters)
    lmbda = {ValueEstimators.TD0: 0.0, ValueEstimators.TD1: 1.0}.get(value_type, hyperparameters.get("lmbda"))
    tail = loss.target_local_value_network(batch["next"].clone())["agents", "chosen_action_value"].sum((-1, -2))
    reward, done, terminated = (batch["next", name].squeeze(-1) for name in ("reward", "done", "terminated"))
    target = torch.zeros(2, 6)
    for b in range(2):
        for t in reversed(range(6)):
            ahead = tail[b, t] if t == 5 or done[b, t] else (1 - lmbda) * tail[b, t] + lmbda * target[b, t + 1]
            target[b, t] = reward[b, t] + 0.5 * ahead * ~terminated[b, t]
    torch.testing.assert_close(loss(batch)["target_value"], target.mean())
    values = loss.local_value_network(batch.clone())["agents", "action_value"]
    value = values.gather(-1, batch["agents", "action"].unsqueeze(-1)).sum((-1, -2))
    torch.testing.assert_close(loss(batch)["loss"], (value - target).square())


def test_gae_is_refused():
    loss = make_loss()
    with pytest.raises(SpecError, match="TD0, TD1 or TDLambda"):
        loss.make_value_estimator(ValueEstimators.GAE)
    assert loss.value_estimator.gamma == GAMMA  # the one before stays
    assert isinstance(make_loss().make_value_estimator(TD1Estimator, gamma=0.9).value_estimator, TD1Estimator)
    estimator = TDLambdaEstimator(gamma=0.9, lmbda=0.5)
    assert make_loss().make_value_estimator(estimator).value_estimator is estimator


def test_gamma_belongs_to_the_estimator():
    with pytest.raises(TypeError, match="make_value_estimator"):
        QMixerLoss(make_actor(), make_mixer(), gamma=0.9)


def test_both_networks_have_targets_that_an_updater_moves():
    loss = make_loss(QMixer)
    assert loss.target_names == ["local_value_network", "mixer_network"]
    updater = SoftUpdate(loss, tau=0.25)
    before = copy.deepcopy(loss.state_dict())
    with torch.no_grad():
        for parameter in loss.parameters():
            parameter.add_(1.0)
    updater.step()
    moved = [name for name in before if name.startswith("target_")]
    assert len(moved) == len(list(loss.parameters()))
    for name in moved:
        torch.testing.assert_close(loss.state_dict()[name], before[name] + 0.25)


def test_targets_do_not_move_with_the_optimiser():
    loss, batch = make_loss(QMixer), make_batch()
    before = loss(batch)["target_value"]
    optimizer = torch.optim.SGD(loss.parameters(), 0.1)
    loss(batch)["loss"].backward()
    optimizer.step()
    assert torch.equal(loss(batch)["target_value"], before)
    HardUpdate(loss, value_network_update_interval=1)
    assert not torch.equal(loss(batch)["target_value"], before)


def test_without_delay_the_online_networks_give_the_target_and_get_no_gradient_from_it():
    loss, batch = make_loss(QMixer, delay_value=False), make_batch()
    delayed = make_loss(QMixer)
    HardUpdate(delayed)
    delayed.load_state_dict({**delayed.state_dict(), **loss.state_dict()})
    HardUpdate(delayed)
    first, second = loss(batch), delayed(batch)
    torch.testing.assert_close(first["loss"], second["loss"])
    first["loss"].backward(), second["loss"].backward()
    for one, other in zip(loss.parameters(), delayed.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    with pytest.raises(SpecError, match="delay_value"):
        SoftUpdate(loss, tau=0.1)


def test_a_priority_is_written_only_if_it_has_a_key():
    batch = make_batch(masks=True)
    batch["collector", "mask"] = torch.arange(12) != 4
    loss = make_loss(priority_key="urgency", reduction="none")
    root = loss(batch)["loss"].detach().sqrt()
    torch.testing.assert_close(batch["urgency"], root.unsqueeze(-1))
    assert batch["urgency"][4] == 0 and batch["urgency"].max() > 0
    loss = make_loss()
    loss.set_keys(priority="later")
    loss(batch)
    assert "later" in batch.keys()  # noqa: SIM118 (no dict)


# ---- errors, copies


def test_rewards_of_agents_must_be_reduced_first():
    batch = make_batch()
    batch["next", "agents", "reward"] = torch.ones(12, N, 1)
    loss = make_loss()
    loss.set_keys(reward=("agents", "reward"))
    with pytest.raises(SpecError, match=r"\[12, 3, 1\].*mean\(-2\)"):
        loss(batch)
    loss.set_keys(reward=None)
    del batch["next", "reward"]
    with pytest.raises(KeyMissingError, match=r"mean\(-2\)"):
        loss(batch)


def test_end_flags_are_those_of_the_team():
    batch, loss = make_batch(), make_loss()
    batch["next", "agents", "done"] = torch.zeros(12, N, 1, dtype=torch.bool)
    loss.set_keys(done=("agents", "done"))
    with pytest.raises(SpecError, match="end flags of the team"):
        loss(batch)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"action_value": "q"}, 'local_value_network must write "q".*set_keys\\(action_value'),
        ({"global_value": "q"}, 'mixer_network must write "q".*set_keys\\(global_value'),
        ({"local_value": "q"}, 'mixer_network must read "q".*set_keys\\(local_value'),
    ],
)
def test_networks_that_do_not_fit_are_named(keys, said):
    loss = make_loss()
    loss.set_keys(**keys)
    with pytest.raises(KeyMissingError, match=said):
        loss(make_batch())


def test_what_the_mixer_needs_must_be_in_the_batch():
    batch = make_batch()
    del batch["next", "state"]
    with pytest.raises(KeyMissingError, match=r'"next", "state".*mixer_network'):
        make_loss(QMixer)(batch)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"action_space": "continuous"}, "continuous"),
        ({"loss_function": "l3"}, "l3"),
        ({"reduction": "median"}, "median"),
    ],
)
def test_unknown_options_are_refused(options, said):
    with pytest.raises(SpecError, match=said):
        make_loss(**options)


@pytest.mark.parametrize(("space", "one_hot"), [("one_hot", False), ("categorical", True)])
def test_actions_of_another_space_are_refused(space, one_hot):
    with pytest.raises(SpecError, match=space):
        make_loss(action_space=space)(make_batch(one_hot=one_hot))


def test_values_of_one_agent_are_refused():
    net = TensorDictModule(nn.Linear(2, K), ["state"], [("agents", "action_value")])
    loss = QMixerLoss(net, make_mixer())
    with pytest.raises(SpecError, match=r"\[\*B, n, K\]"):
        loss(make_batch())


def test_any_network_that_writes_action_values_will_do():
    loss, batch = make_loss(), make_batch()
    bare = TensorDictModule(
        loss.local_value_network[0].module, [("agents", "observation")], [("agents", "action_value")]
    )
    other = QMixerLoss(bare, make_mixer())
    other.make_value_estimator(gamma=GAMMA)
    HardUpdate(loss)
    torch.testing.assert_close(other(batch)["loss"], loss(batch)["loss"])


def test_the_groups_name_is_free():
    loss, batch = make_loss(QMixer), make_batch(masks=True)
    HardUpdate(loss)
    expected = loss(batch)["loss"]
    drones = {name: ("drones", name) for name in ("action_value", "action", "chosen_action_value", "action_mask")}
    actor = QValueActor(
        loss.local_value_network[0].module,
        [("drones", "observation")],
        action_space="categorical",
        **{f"{name}_key": drones[name] for name in ("action_value", "action", "chosen_action_value")},
    )
    keys = [drones["chosen_action_value"], "state"]
    renamed = QMixerLoss(actor, TensorDictModule(loss.mixer_network.module, keys, ["chosen_action_value"]))
    renamed.make_value_estimator(gamma=GAMMA)
    renamed.set_keys(
        local_value=drones.pop("chosen_action_value"),
        agent_mask=("drones", "mask"),
        agent_terminated=("drones", "terminated"),
        **drones,
    )
    for part in (batch, batch["next"]):
        part.rename_key_("agents", "drones")
    torch.testing.assert_close(renamed(batch)["loss"], expected)


def test_it_can_be_pickled_and_restored():
    loss, batch = make_loss(QMixer), make_batch(masks=True)
    fresh = QMixerLoss(make_actor(), make_mixer(QMixer))
    fresh.make_value_estimator(gamma=GAMMA)
    fresh.load_state_dict(loss.state_dict())
    expected = loss(batch)
    for other in (pickle.loads(pickle.dumps(loss)), copy.deepcopy(loss), fresh):
        if other.value_estimator.gamma != GAMMA:
            other.make_value_estimator(gamma=GAMMA)
        for key, value in other(batch).items():
            torch.testing.assert_close(value, expected[key])


def test_keywords_give_what_a_batch_gives():
    loss, batch = make_loss(QMixer), make_batch()
    assert isinstance(loss.local_value_network[1], QValueModule)
    value, *_ = loss(
        agents_observation=batch["agents", "observation"],
        agents_action=batch["agents", "action"],
        state=batch["state"],
        next_agents_observation=batch["next", "agents", "observation"],
        next_state=batch["next", "state"],
        next_reward=batch["next", "reward"],
        next_done=batch["next", "done"],
        next_terminated=batch["next", "terminated"],
    )
    torch.testing.assert_close(value, loss(batch)["loss"])
