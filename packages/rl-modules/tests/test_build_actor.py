import pytest
import torch
from tensordict import TensorDict
from torch import nn

from rl_core import ExplorationType, set_exploration_type
from rl_core.errors import SpecError
from rl_core.specs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    Unbounded,
)
from rl_modules import build_actor


def linear(outputs):
    return nn.Linear(3, outputs)


@pytest.mark.parametrize(
    "spec",
    [
        Categorical(4),
        OneHot(4, dtype=torch.int64),
        Bounded(-2.0, 2.0, (2,)),
        Unbounded((2,)),
        Bounded(0, torch.ones(3), (3,)),
        Bounded(-1.0, 1.0, (2, 3)),
        Unbounded((2, 3)),
        Binary(3),
        Binary(shape=(2, 3), dtype=torch.bool),
        MultiCategorical([3, 2]),
        MultiCategorical([2, 2], dtype=torch.int32),
        MultiCategorical([[3, 2], [2, 2]]),
        MultiOneHot([3, 2]),
    ],
    ids=lambda spec: f"{type(spec).__name__}{list(spec.shape)}",
)
def test_the_head_suits_the_spec(spec):
    actor = build_actor(spec, linear)
    for how in (ExplorationType.RANDOM, ExplorationType.DETERMINISTIC):
        with set_exploration_type(how):
            td = actor(TensorDict({"observation": torch.randn(5, 3)}, [5]))
        assert spec.expand(5, *spec.shape).is_in(td["action"])
        assert td["action_log_prob"].shape == (5,)
        again = actor.get_dist(td).log_prob(td["action"])
        torch.testing.assert_close(again, td["action_log_prob"], rtol=1e-3, atol=1e-3)  # atanh loses digits


def test_keys_can_be_chosen():
    actor = build_actor(Categorical(2), linear, ["pixels"], action_key=("agent", "action"), return_log_prob=False)
    assert actor.in_keys == ["pixels"] and actor.out_keys == [("agent", "logits"), ("agent", "action")]


@pytest.mark.parametrize("spec", [Categorical(3), OneHot(3, dtype=torch.int64)], ids=lambda spec: type(spec).__name__)
def test_a_masked_action_is_never_drawn(spec):
    actor = build_actor(spec, linear, action_mask_key=("agent", "legal"), action_key=("agent", "action"))
    legal = torch.tensor([[True, False, True]]).expand(200, 3)
    td = TensorDict({"observation": torch.randn(200, 3), "agent": {"legal": legal}}, [200])
    with set_exploration_type(ExplorationType.RANDOM):
        drawn = actor(td)["agent", "action"]
    chosen = drawn if isinstance(spec, Categorical) else drawn.argmax(-1)
    assert sorted(set(chosen.tolist())) == [0, 2]
    assert td["agent", "action_log_prob"].isfinite().all()


def test_a_mask_for_a_continuous_action_is_refused():
    with pytest.raises(SpecError, match="takes no action mask"):
        build_actor(Bounded(-1.0, 1.0, (2,)), linear, action_mask_key="action_mask")


def test_a_spec_without_a_head_says_which_have_one():
    with pytest.raises(SpecError, match=r"int.*distribution_class"):
        build_actor(Bounded(0, 5, (3,), dtype=torch.int64), linear)


def test_masks_of_several_choices_forbid_single_categories():
    actor = build_actor(MultiCategorical([3, 2]), linear, action_mask_key="action_mask")
    mask = torch.tensor([True, False, True, False, True]).expand(200, 5)
    with set_exploration_type(ExplorationType.RANDOM):
        td = actor(TensorDict({"observation": torch.randn(200, 3), "action_mask": mask}, [200]))
    assert set(td["action"][:, 0].tolist()) == {0, 2} and set(td["action"][:, 1].tolist()) == {1}


def joint_spec():
    return Composite(
        {
            "gear": Categorical(4),
            ("arm", "torque"): Bounded(-2.0, 2.0, (2,)),
            ("arm", "grip"): Binary(1),
        }
    )


def test_a_composite_gets_one_network_and_a_head_for_each_leaf():
    spec = joint_spec()
    actor = build_actor(spec, linear)
    with set_exploration_type(ExplorationType.RANDOM):
        td = actor(TensorDict({"observation": torch.randn(5, 3)}, [5]))
    assert spec.expand(5).is_in(td.select("gear", "arm"))
    for key in ("gear_log_prob", ("arm", "torque_log_prob"), ("arm", "grip_log_prob")):
        assert td[key].shape == (5,)
    assert actor.module[0].module[0].out_features == 4 + 4 + 1


def test_the_sum_of_a_composites_log_probabilities_on_request():
    actor = build_actor(joint_spec(), linear, log_prob_key="action_log_prob")
    with set_exploration_type(ExplorationType.RANDOM):
        td = actor(TensorDict({"observation": torch.randn(5, 3)}, [5]))
    parts = actor.get_dist(td)
    total = sum(parts[key].log_prob(td[key]) for key in ("gear", ("arm", "torque"), ("arm", "grip")))
    torch.testing.assert_close(td["action_log_prob"], total)


def test_the_agents_of_a_group_are_rows_of_the_network_with_bounds_of_their_own():
    low, high = (
        torch.tensor([[-1.0, -1.0], [-3.0, -3.0], [0.0, 0.0]]),
        torch.tensor([[1.0, 1.0], [3.0, 3.0], [9.0, 9.0]]),
    )
    spec = Bounded(low=low, high=high, shape=(3, 2), dtype=torch.float32)
    actor = build_actor(spec, lambda outputs: nn.Linear(5, outputs), outer_dims=1)
    td = actor(TensorDict({"observation": 100 * torch.randn(7, 3, 5)}, [7]))
    assert td["action"].shape == (7, 3, 2) and td["action_log_prob"].shape == (7, 3)
    assert ((td["action"] >= low) & (td["action"] <= high)).all()
    assert td["action"][:, 2].max() > 3, "the third agent must use its own bounds"
