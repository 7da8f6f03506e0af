"""Further options of the PPO losses: a delayed policy, capped weights, actions of several parts, torch.compile."""

import copy
import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import CompositeDistribution, TensorDictModule, set_composite_lp_aggregate
from torch import nn
from torch.distributions import Categorical, Independent, Normal

from rl_core import CarriedState, StateCarrier, recurrent_mode
from rl_core.errors import KeyMissingError, LossError, SpecError
from rl_core.specs import Unbounded
from rl_core.testing import LossKit
from rl_objectives import ClipPPOLoss, PPOLoss, SoftUpdate


class Policy(nn.Module):
    in_keys = ("observation",)
    out_keys = ("action",)

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)

    def get_dist(self, batch):
        return Independent(Normal(self.head(batch["observation"]), 1.0), 1)


def make_critic():
    return TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["state_value"])


def make_batch(size=16):
    torch.manual_seed(3)
    done = torch.rand(size, 1) < 0.3
    step = {"observation": torch.randn(size, 3), "reward": torch.randn(size, 1), "done": done, "terminated": done}
    data = {
        "observation": torch.randn(size, 3),
        "action": torch.randn(size, 2),
        "action_log_prob": torch.randn(size) - 2,
    }
    names = ("advantage", "value_target", "state_value")
    return TensorDict({**data, **{name: torch.randn(size, 1) for name in names}, "next": step}, [size])


def make_loss(kind=ClipPPOLoss, **options):
    torch.manual_seed(4)
    return kind(Policy(), make_critic(), **options)


def log_ratio(actor, batch):
    return actor.get_dist(batch).log_prob(batch["action"]) - batch["action_log_prob"]


class TestDelayedPPOKeepsItsPromises(LossKit):
    gradients = {"loss_objective": {"actor_network"}, "loss_critic": {"critic_network"}}

    def make_loss(self, **options):
        return make_loss(delay_actor=True, max_importance_ratio=2.0, entropy_bonus=False, **options)

    def make_batch(self):
        return make_batch()


def test_a_delayed_policy_is_what_the_ratio_is_clipped_around():
    """Hilton et al., 2021, eq. 3: w min(r A, clip(r) A), r = pi / pi_prox, w = pi_prox / pi_behav."""
    loss, batch = make_loss(delay_actor=True), make_batch()
    with torch.no_grad():
        loss.actor_network.head.bias.add_(0.5)
    advantage = batch["advantage"].squeeze(-1)
    weight = log_ratio(loss.target_actor_network, batch).exp()
    ratio = (log_ratio(loss.actor_network, batch) - log_ratio(loss.target_actor_network, batch)).exp()
    expected = -(weight * torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)).mean()
    out = loss(batch)
    torch.testing.assert_close(out["loss_objective"], expected)
    out["loss_objective"].backward()
    assert loss.actor_network.head.weight.grad.abs().sum() > 0
    assert not any("target" in name for name, _ in loss.named_parameters())


def test_a_target_updater_moves_the_delayed_policy():
    loss = make_loss(delay_actor=True)
    updater = SoftUpdate(loss, tau=0.25)
    with torch.no_grad():
        loss.actor_network.head.bias.zero_()
        loss.target_actor_network.head.bias.fill_(4.0)
    updater.step()
    torch.testing.assert_close(loss.target_actor_network.head.bias, torch.full((2,), 3.0))


@pytest.mark.parametrize("kind", [PPOLoss, ClipPPOLoss])
def test_weights_are_capped_and_capped_rows_have_no_gradient(kind):
    loss, batch = make_loss(kind, max_importance_ratio=0.6), make_batch()
    ratio = log_ratio(loss.actor_network, batch).exp()
    assert (ratio > 0.6).any() and (ratio < 0.6).any()
    advantage, capped = batch["advantage"].squeeze(-1), ratio.clamp(max=0.6)
    gain = capped * advantage
    if kind is ClipPPOLoss:
        gain = torch.minimum(gain, capped.clamp(0.8, 1.2) * advantage)
    torch.testing.assert_close(loss(batch)["loss_objective"], -gain.mean())
    only = batch[(ratio > 0.6).detach()]
    loss(only)["loss_objective"].backward()
    assert loss.actor_network.head.weight.grad.abs().sum() == 0


def test_a_huge_ratio_gives_no_nan_where_it_is_capped():
    loss, batch = make_loss(PPOLoss, max_importance_ratio=10.0), make_batch()
    batch["action_log_prob"] -= 500.0
    out = loss(batch)
    out["loss_objective"].backward()
    assert out["loss_objective"].isfinite() and loss.actor_network.head.weight.grad.isfinite().all()


def test_a_cap_that_is_no_weight_is_refused():
    with pytest.raises(SpecError, match="max_importance_ratio is a number > 0"):
        make_loss(max_importance_ratio=0.0)


def test_the_clip_range_may_lie_on_both_sides_of_a_schedule():
    loss, batch = make_loss(clip_epsilon=(0.1, 0.3)), make_batch()
    loss.clip_epsilon = (0.2, 0.2)
    torch.testing.assert_close(loss(batch)["loss_objective"], make_loss()(batch)["loss_objective"])


# ------------------------------------------------------------------------------------------- actions of several parts


class TwoHands(nn.Module):
    """A continuous and a discrete part."""

    in_keys = ("observation",)
    out_keys = (("action", "move"), ("action", "grip"))

    def __init__(self):
        super().__init__()
        self.move, self.grip = nn.Linear(3, 2), nn.Linear(3, 4)

    def parts(self, observation):
        return Independent(Normal(self.move(observation), 1.0), 1), Categorical(logits=self.grip(observation))

    def get_dist(self, batch):
        observation = batch["observation"]
        parameters = TensorDict(
            {
                "move": {"loc": self.move(observation), "scale": torch.ones(*batch.shape, 2)},
                "grip": {"logits": self.grip(observation)},
            },
            batch.batch_size,
        )
        return CompositeDistribution(
            parameters,
            {"move": Normal, "grip": Categorical},
            name_map={"move": ("action", "move"), "grip": ("action", "grip")},
        )


def two_handed_batch():
    batch = make_batch()
    del batch["action_log_prob"], batch["action"]
    batch["action"] = TensorDict({"move": torch.randn(16, 2), "grip": torch.randint(4, (16,))}, [16])
    batch["action", "move_log_prob"] = torch.randn(16) - 2
    batch["action", "grip_log_prob"] = torch.randn(16) - 1
    return batch


def make_two_handed(**options):
    torch.manual_seed(4)
    return ClipPPOLoss(TwoHands(), make_critic(), **options)


def test_the_parts_of_an_action_are_added_up():
    loss, batch = make_two_handed(), two_handed_batch()
    move, grip = loss.actor_network.parts(batch["observation"])
    new = move.log_prob(batch["action", "move"]) + grip.log_prob(batch["action", "grip"])
    ratio = (new - batch["action", "move_log_prob"] - batch["action", "grip_log_prob"]).exp()
    advantage = batch["advantage"].squeeze(-1)
    expected = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    with set_composite_lp_aggregate(False):
        out = loss(batch)
    torch.testing.assert_close(out["loss_objective"], expected)
    torch.testing.assert_close(out["entropy"], (move.entropy() + grip.entropy()).mean())
    # one number that is the sum already
    batch["action_log_prob"] = batch["action", "move_log_prob"] + batch["action", "grip_log_prob"]
    with set_composite_lp_aggregate(True):
        torch.testing.assert_close(loss(batch)["loss_objective"], expected)


def test_each_part_may_have_a_weight_of_its_entropy():
    loss, batch = make_two_handed(entropy_coeff={"move": 0.1, "grip": 0.5}), two_handed_batch()
    move, grip = loss.actor_network.parts(batch["observation"])
    with set_composite_lp_aggregate(False):
        out = loss(batch)
        torch.testing.assert_close(out["loss_entropy"], -(0.1 * move.entropy() + 0.5 * grip.entropy()).mean())
        with pytest.raises(SpecError, match="no part named 'foot'; it has move, grip"):
            make_two_handed(entropy_coeff={"foot": 1.0})(batch)
    with pytest.raises(SpecError, match=r"entropy_coeff is a dict.*Independent, of one part"):
        make_loss(entropy_coeff={"move": 1.0})(make_batch())


def test_missing_log_probabilities_of_the_parts_are_an_error():
    batch = two_handed_batch()
    del batch["action", "move_log_prob"], batch["action", "grip_log_prob"]
    with pytest.raises(KeyMissingError, match='ClipPPOLoss needs "action_log_prob"'), set_composite_lp_aggregate(False):
        make_two_handed()(batch)


# ------------------------------------------------------------------------------------------------------ torch.compile


@pytest.mark.parametrize("options", [{}, {"normalize_advantage": True, "clip_value": True, "delay_actor": True}])
def test_the_loss_compiles_into_one_graph(options):
    loss, batch = make_loss(**options), make_batch()
    twin = copy.deepcopy(loss)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    result, expected = compiled(batch), twin(batch)
    for key, value in expected.items():
        torch.testing.assert_close(result[key], value)
    for out in (result, expected):
        sum(value for key, value in out.items() if key.startswith("loss")).backward()
    for one, other in zip(loss.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_the_estimate_of_advantages_compiles_with_the_loss():
    loss, batch = make_loss(), make_batch().exclude("advantage", "value_target", "state_value").reshape(2, 8)
    loss.make_value_estimator(gamma=0.9, lmbda=0.8)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(batch)["loss_objective"], loss(batch)["loss_objective"])


def test_shape_faults_are_spec_errors_of_their_own_kind():
    batch = make_batch()
    batch["action_log_prob"] = torch.randn(16, 2)
    with pytest.raises(LossError):
        make_loss()(batch)
    assert issubclass(LossError, SpecError)


def test_the_ratio_is_capped_in_log_space():
    loss, batch = make_loss(PPOLoss, max_importance_ratio=math.e), make_batch()
    out = loss(batch)
    ratio = log_ratio(loss.actor_network, batch).exp().clamp(max=math.e)
    torch.testing.assert_close(out["loss_objective"], -(ratio * batch["advantage"].squeeze(-1)).mean())


# -------------------------------------------------------------------------------------------- policies with a memory


class Remembers(Policy, StateCarrier):
    """A policy whose mean is the running sum of observations since the last first step."""

    in_keys = ("observation", "memory", "is_init")
    out_keys = ("action", ("next", "memory"))

    def carried_state(self):
        return CarriedState(specs={"memory": Unbounded(shape=(3,))}, init_keys=["is_init"])

    def reads_sequences(self):
        return recurrent_mode() is True

    def get_dist(self, batch):
        assert self.reads_sequences(), "a loss reads sequences"
        carried, rows = batch["memory"][:, 0], []
        for t in range(batch.shape[1]):
            carried = batch["observation"][:, t] + carried * ~batch["is_init"][:, t]
            rows.append(carried)
        return Independent(Normal(self.head(torch.stack(rows, 1)), 1.0), 1)


def test_a_policy_with_memory_is_evaluated_along_time():
    torch.manual_seed(4)
    loss, batch = ClipPPOLoss(Remembers(), make_critic()), make_batch().reshape(2, 8)
    first = torch.zeros(2, 8, 1, dtype=torch.bool)
    first[0, 3] = True
    batch["is_init"], batch["memory"] = first, torch.ones(2, 8, 3)
    ratio_logs = loss(batch)
    expected = 0.0
    for row in range(2):
        memory = torch.ones(3)
        for t in range(8):
            memory = batch["observation"][row, t] + (0.0 if first[row, t] else memory)
            normal = Normal(loss.actor_network.head(memory), 1.0)
            log_prob = normal.log_prob(batch["action"][row, t]).sum()
            expected += (batch["action_log_prob"][row, t] - log_prob) / 16
    torch.testing.assert_close(ratio_logs["kl_approx"], expected.detach())
