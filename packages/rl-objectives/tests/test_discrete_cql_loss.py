"""DiscreteCQLLoss against Kumar et al., 2020, eq. 4, in plain torch."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core.errors import PolicyError
from rl_core.testing import LossKit
from rl_objectives import DiscreteCQLLoss, DQNLoss


def make_loss(kind=DiscreteCQLLoss, **options):
    torch.manual_seed(4)
    return kind(TensorDictModule(nn.Linear(3, 4), ["observation"], ["action_value"]), **options)


def make_batch(size=16):
    torch.manual_seed(3)
    ends = torch.rand(size, 1) < 0.3
    step = {"observation": torch.randn(size, 3), "reward": torch.randn(size, 1), "done": ends, "terminated": ends}
    return TensorDict(
        {"observation": torch.randn(size, 3), "action": torch.randint(0, 4, (size,)), "next": step}, [size]
    )


class TestDiscreteCQLKeepsItsPromises(LossKit):
    gradients = {"loss_qvalue": {"value_network"}, "loss_cql": {"value_network"}}
    network_outputs = {"action_value", "value"}

    def make_loss(self, **options):
        return make_loss(**options)

    def make_batch(self):
        return make_batch().set("priority_weight", torch.rand(16))


@pytest.mark.parametrize("masked", [False, True])
def test_values_and_gradients_equal_plain_torch(masked):
    loss, batch = make_loss(min_q_weight=0.7, gamma=0.9).double(), make_batch()
    batch = batch.apply(lambda value: value.double() if value.is_floating_point() else value)
    q = loss.value_network.module(batch["observation"])
    taken = q[torch.arange(16), batch["action"]]
    total = q.exp()
    if masked:
        mask = torch.rand(16, 4) < 0.5
        mask[torch.arange(16), batch["action"]] = True
        batch["action_mask"] = mask
        total = total * mask
    penalty = 0.7 * (total.sum(-1).log() - taken).mean()
    wanted = torch.autograd.grad(penalty, list(loss.parameters()))
    out = loss(batch)
    torch.testing.assert_close(out["loss_cql"], penalty)
    for found, right in zip(torch.autograd.grad(out["loss_cql"], list(loss.parameters())), wanted, strict=True):
        torch.testing.assert_close(found, right)
    value = make_loss(DQNLoss, gamma=0.9).double()(batch)
    torch.testing.assert_close(out["loss_qvalue"], value["loss"])
    for log in ("td_error", "pred_value", "target_value"):
        torch.testing.assert_close(out[log], value[log])


def test_importance_weights_reach_both_terms():
    loss, batch = make_loss(), make_batch()
    rows = make_loss(reduction="none")(batch)
    weight = torch.rand(16)
    out = loss(batch.set("priority_weight", weight))
    for key in ("loss_qvalue", "loss_cql"):
        torch.testing.assert_close(out[key], (weight * rows[key]).mean())


def test_the_weight_of_the_penalty_follows_a_schedule():
    loss, batch = make_loss(), make_batch()
    before = loss(batch)
    loss.min_q_weight = 0.25
    after = loss(batch)
    torch.testing.assert_close(after["loss_cql"], 0.25 * before["loss_cql"])
    torch.testing.assert_close(after["loss_qvalue"], before["loss_qvalue"])


def test_rows_that_do_not_count_may_allow_nothing():
    loss, batch = make_loss(), make_batch()
    mask = torch.ones(16, 4, dtype=torch.bool)
    mask[3] = False
    batch["action_mask"] = mask
    with pytest.raises(PolicyError, match=r"no action in row 3 of \[16\]"):
        loss(batch)
    batch["collector", "mask"] = torch.arange(16) != 3
    loss(batch)["loss_cql"].backward()
    assert all(parameter.grad.isfinite().all() for parameter in loss.parameters())
