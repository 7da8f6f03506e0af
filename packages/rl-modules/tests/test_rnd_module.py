"""Running moments against moments of everything seen, and the bonus of random network distillation."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import nn

from rl_core.errors import KeyMissingError, SpecError
from rl_modules import RNDModule, RunningMeanStd


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.integers(0, 1000))
def test_moments_of_parts_are_those_of_the_whole(sizes, seed):
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(size, 2, generator=generator, dtype=torch.float64) * 3 + 7 for size in sizes]
    moments = RunningMeanStd((2,))
    for part in parts:
        moments.update(part)
    whole = torch.cat(parts)
    assert moments.count == len(whole)
    if len(whole):
        torch.testing.assert_close(moments.mean, whole.mean(0))
        torch.testing.assert_close(moments.var, whole.var(0, correction=0))


def test_moments_take_any_leading_shape_and_refuse_another_value():
    moments = RunningMeanStd((2,))
    moments.update(torch.arange(8.0).view(2, 2, 2))
    assert moments.mean.tolist() == [3.0, 4.0]
    for wrong in (torch.zeros(4), torch.zeros(4, 1), torch.zeros(())):
        with pytest.raises(SpecError, match=r"\[2\]"):
            moments.normalize(wrong)


def test_normalised_values_have_the_dtype_of_the_values():
    moments = RunningMeanStd(())
    moments.update(torch.tensor([0.0, 4.0]))
    normal = moments(torch.tensor([2.0, 4.0, 6.0]))
    assert normal.dtype == torch.float32
    torch.testing.assert_close(normal, torch.tensor([0.0, 1.0, 2.0]))


def make_bonus(**options):
    torch.manual_seed(0)
    return RNDModule(nn.Linear(3, 4), nn.Linear(3, 4), **options)


def make_steps(*shape):
    torch.manual_seed(1)
    return TensorDict({"next": {"observation": torch.randn(*shape, 3) * 5}}, shape)


def test_the_bonus_is_the_mean_squared_error_of_the_embedding():
    bonus, data = make_bonus(), make_steps(6)
    observation = data["next", "observation"]
    error = bonus.predictor_network(observation) - bonus.target_network(observation)
    expected = error.square().sum(-1, keepdim=True) / 4
    written = bonus(data)["intrinsic_reward"]
    torch.testing.assert_close(written, expected)
    assert not written.requires_grad


def test_observations_are_standardised_and_clipped_before_both_networks():
    bonus = make_bonus(obs_rms=RunningMeanStd((3,)), obs_clip=0.5)
    data = make_steps(6)
    bonus.update(data)
    observation = data["next", "observation"]
    normal = (observation - observation.mean(0)) / observation.std(0, correction=0)
    normal = normal.clamp(-0.5, 0.5)
    expected = (bonus.predictor_network(normal) - bonus.target_network(normal)).square().mean(-1, keepdim=True)
    torch.testing.assert_close(bonus(data)["intrinsic_reward"], expected)


def test_the_bonus_is_scaled_by_the_spread_of_its_discounted_sums_across_batches():
    bonus = make_bonus(reward_rms=RunningMeanStd(), gamma=0.5)
    data = make_steps(2, 6)
    raw = bonus.bonus(data["next", "observation"]).squeeze(-1)
    bonus.update(data[:, :4])
    bonus.update(data[:, 4:].reshape(2, 2))
    sums, total = [], torch.zeros(2)
    for t in range(6):
        total = 0.5 * total + raw[:, t]
        sums.append(total)
    expected = raw / torch.stack(sums).std(correction=0)
    torch.testing.assert_close(bonus(data)["intrinsic_reward"].squeeze(-1), expected)


def test_padding_does_not_count():
    bonus = make_bonus(obs_rms=RunningMeanStd((3,)), reward_rms=RunningMeanStd())
    data = make_steps(2, 4)
    data["collector"] = {"mask": torch.tensor([[True, True, False, False], [True, True, True, False]])}
    bonus.update(data)
    kept = data["next", "observation"][data["collector", "mask"]]
    torch.testing.assert_close(bonus.obs_rms.mean, kept.double().mean(0))
    assert bonus.reward_rms.count == 5


def test_only_the_predictor_is_trainable_and_both_are_saved():
    bonus = make_bonus()
    assert {name for name, weight in bonus.named_parameters() if weight.requires_grad} == {
        "predictor_network.weight",
        "predictor_network.bias",
    }
    assert {"target_network.weight", "predictor_network.weight"} <= set(bonus.state_dict())


def test_what_cannot_work_is_refused():
    net = nn.Linear(3, 4)
    with pytest.raises(ValueError, match="two networks"):
        RNDModule(net, net)
    with pytest.raises(SpecError, match="one shape"):
        RNDModule(nn.Linear(3, 4), nn.Linear(3, 1))(make_steps(5))
    with pytest.raises(KeyMissingError, match="observation"):
        make_bonus()(TensorDict({}, [5]))
