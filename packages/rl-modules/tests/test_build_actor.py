import pytest
import torch
from tensordict import TensorDict
from torch import nn

from rl_core import ExplorationType, set_exploration_type
from rl_core.errors import SpecError
from rl_core.specs import Binary, Bounded, Categorical, OneHot, Unbounded
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
    ],
    ids=lambda spec: type(spec).__name__,
)
def test_the_head_suits_the_spec(spec):
    actor = build_actor(spec, linear)
    td = actor(TensorDict({"observation": torch.randn(5, 3)}, [5]))
    assert spec.is_in(td["action"])
    assert td["action_log_prob"].shape == (5,)


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
    with pytest.raises(SpecError, match=r"Binary.*distribution_class"):
        build_actor(Binary(3), linear)
