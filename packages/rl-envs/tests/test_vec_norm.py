"""VecNorm and VecNormV2: decayed moments against sums in float64, what is counted, freezing, sharing."""

import math
import multiprocessing
import os
import pickle

import pytest
import torch
from tensordict import TensorDict

from rl_core import Compose, TransformedEnv, check_env_specs
from rl_core.errors import EnvError, KeyMissingError
from rl_core.testing import ArrayCountingEnv, CountingEnv, GroupCountingEnv, TransformKit
from rl_envs import ObservationNorm, VecNorm, VecNormV2

KINDS = [CountingEnv, ArrayCountingEnv]


class TestVecNorm(TransformKit):
    needs = ("observation",)

    def make_transform(self):
        return VecNorm(["observation"], ["normed"]).freeze()  # its numbers depend on how often it was asked


class TestVecNormOfRewards(TransformKit):
    needs = ("observation", "reward")

    def make_transform(self):
        norm = VecNorm(decay=1.0)
        norm(TensorDict(observation=torch.tensor([[1.0], [4.0]]), reward=torch.tensor([[0.0], [2.0]]), batch_size=[2]))
        return norm.freeze()


# -------------------------------------------------------------------- numbers
def decayed(batches, decay):
    """Weight, mean and variance from decayed sums, as the definition says."""
    weight, total, squares = 0.0, 0.0, 0.0
    for batch in batches:
        weight = decay * weight + len(batch)
        total = decay * total + sum(batch)
        squares = decay * squares + sum(x * x for x in batch)
    mean = total / weight
    return weight, mean, squares / weight - mean * mean


def numbers(norm, key="observation"):
    state = norm.state_dict()
    return tuple(state[f"{key}.{name}"].squeeze().item() for name in ("count", "loc", "var"))


@pytest.mark.parametrize("decay", [1.0, 0.9, 0.5])
def test_the_moments_are_those_of_decayed_sums(decay):
    norm, batches = VecNorm(["observation"], decay=decay), [[1.0, 4.0], [2.0, 2.0], [-3.0, 7.0], [0.5, 1.5]]
    for batch in batches:
        out = norm(TensorDict(observation=torch.tensor(batch).unsqueeze(-1), batch_size=[2]))
    weight, mean, var = decayed(batches, decay)
    assert numbers(norm) == pytest.approx((weight, mean, var))
    expected = [(x - mean) / math.sqrt(var) for x in batches[-1]]
    assert out["observation"].flatten().tolist() == pytest.approx(expected, abs=1e-6)


def test_a_large_mean_costs_no_digits():
    norm = VecNorm(["observation"], decay=1.0)
    values = 1e6 + torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    for value in values:
        norm(TensorDict(observation=value.reshape(1, 1), batch_size=[1]))
    assert numbers(norm)[2] == pytest.approx(1.25, rel=1e-6)


def test_a_constant_entry_is_divided_by_eps():
    norm = VecNorm(["observation"], eps=0.5)
    data = TensorDict(observation=torch.ones(2, 1), batch_size=[2])
    assert norm(data)["observation"].tolist() == [[0.0], [0.0]] and norm.scale["observation"].tolist() == [0.5]
    norm.eval()
    assert norm(TensorDict(observation=torch.full((2, 1), 2.0), batch_size=[2]))["observation"].tolist() == [[2.0]] * 2


# -------------------------------------------------------------------- what is counted
@pytest.mark.parametrize("kind", KINDS)
def test_steps_and_the_first_observations_of_rows_that_were_reset_are_counted_once(kind):
    norm = VecNorm(["observation", "reward"], decay=1.0)
    env = TransformedEnv(kind(length=[99, 2, 99], batch_size=[3]), norm)
    env.rollout(3, break_when_any_done=False)
    observations = [[0, 0, 0], [1, 1, 1], [2, 2, 2], [0], [3, 1, 3]]  # row 1 ended after two steps
    assert numbers(norm) == pytest.approx(decayed(observations, 1.0))
    assert numbers(norm, "reward") == pytest.approx(decayed([[1, 1, 1], [2, 2, 2], [3, 1, 3]], 1.0))


def test_rows_that_wait_for_the_others_are_not_counted():
    norm = VecNorm(["reward"], decay=1.0)
    env = TransformedEnv(CountingEnv(length=[1, 3], batch_size=[2]), norm)
    env.rollout(9, break_when_all_done=True)
    assert numbers(norm, "reward") == pytest.approx(decayed([[1, 1], [2], [3]], 1.0))


@pytest.mark.parametrize("kind", KINDS)
def test_columns_and_tensordicts_count_and_map_alike(kind):
    def make():
        return TransformedEnv(kind(length=[2, 3, 9], batch_size=[3]), VecNorm(decay=0.9))

    env, twin = make(), make()
    data, td = env.rollout(7, break_when_any_done=False), twin.reset()
    for t in range(7):
        stepped, td = twin.step_and_maybe_reset(twin.rand_action(td)) if t < 6 else (twin.rand_step(td), td)
        for key in ("observation", ("next", "observation"), ("next", "reward")):
            assert torch.allclose(stepped[key], data[key][:, t], atol=1e-6), (t, key)
    for name, value in env.transform.state_dict().items():
        assert torch.allclose(twin.transform.state_dict()[name], value), name


def test_stored_steps_of_an_environment_are_mapped_and_not_counted():
    env = TransformedEnv(CountingEnv(length=3), VecNorm(["observation"], decay=1.0))
    raw = CountingEnv(length=3).rollout(3)
    env.rollout(3)
    before = numbers(env.transform)
    mapped = env.transform(raw.clone())
    assert numbers(env.transform) == before == pytest.approx(decayed([[0], [1], [2], [3]], 1.0))
    assert mapped["observation"].flatten().tolist() == pytest.approx([(x - 1.5) / 1.25**0.5 for x in (0, 1, 2)])
    assert mapped["next", "observation"].flatten().tolist() == pytest.approx([(x - 1.5) / 1.25**0.5 for x in (1, 2, 3)])


# -------------------------------------------------------------------- freezing
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["eval", "freeze"])
def test_nothing_moves_in_evaluation_by_any_way_in(kind, how):
    norm = VecNorm(decay=1.0)
    env = TransformedEnv(kind(length=[2, 3], batch_size=[2]), Compose(norm))
    env.rollout(4, break_when_any_done=False)
    before = dict(norm.state_dict())
    env.eval() if how == "eval" else norm.freeze()
    env.rollout(4, break_when_any_done=False)
    td = env.reset()
    for _ in range(3):
        _, td = env.step_and_maybe_reset(env.rand_action(td))
    norm(CountingEnv(length=3, batch_size=[2]).rollout(3))
    assert all(torch.equal(before[name], value) for name, value in norm.state_dict().items())
    env.train() if how == "eval" else norm.unfreeze()
    env.rollout(1)
    assert not torch.equal(before["reward.count"], norm.state_dict()["reward.count"])


def test_a_runner_that_is_bound_already_sees_the_freezing():
    from rl_core.envs.row_runner import RowRunner

    env = TransformedEnv(ArrayCountingEnv(length=99, batch_size=[2]), VecNorm(decay=1.0))
    runner = RowRunner(env, None, 4)
    runner.run()
    before = numbers(env.transform)
    env.eval()
    runner.run()
    assert numbers(env.transform) == before


def test_a_frozen_copy_maps_by_the_statistics_of_now_and_a_clone_by_its_own():
    norm = VecNorm(["observation"], decay=1.0)
    env = TransformedEnv(CountingEnv(length=9, batch_size=[2]), norm)
    env.rollout(2)
    view, clone = norm.frozen_copy(), norm.clone()
    env.rollout(5)
    assert numbers(view) == numbers(norm) != numbers(clone) and view.frozen and not clone.frozen
    raw = CountingEnv(length=9, batch_size=[2]).rollout(2)
    before = numbers(norm)
    view(raw)
    assert numbers(norm) == before


# -------------------------------------------------------------------- the named state
def test_statistics_of_several_and_nested_keys_are_one_named_state():
    keys = [("agents", "observation"), "team_reward"]
    env = TransformedEnv(GroupCountingEnv([2, 3], batch_size=[2]), VecNorm(keys))
    check_env_specs(env)
    env.rollout(3)
    state = env.transform.state_dict()
    assert set(state) == {
        f"{key}.{name}" for key in ("agents/observation", "team_reward") for name in ("count", "loc", "var")
    }
    assert state["agents/observation.loc"].shape == (2, 1) and state["agents/observation.loc"].dtype == torch.float64
    assert env.transform.loc["agents", "observation"].shape == (2, 1)
    fresh = VecNorm(keys)
    fresh.load_state_dict(state)
    assert all(torch.equal(value, fresh.state_dict()[name]) for name, value in state.items())
    nested = Compose(VecNorm(keys))
    nested.load_state_dict(Compose(env.transform.clone()).state_dict())
    assert torch.equal(nested[0].state_dict()["team_reward.var"], state["team_reward.var"])


def test_fixed_statistics_can_be_taken_out_and_the_map_undone():
    norm = VecNorm(["observation"], decay=1.0)
    TransformedEnv(CountingEnv(length=5), norm).rollout(5)
    fixed = norm.to_observation_norm()
    value = torch.tensor([[4.0]])
    mapped = norm(TensorDict(observation=value.clone(), batch_size=[1]))
    assert isinstance(fixed, ObservationNorm) and norm.standard_normal
    assert torch.allclose(fixed._apply_transform(value), mapped["observation"])
    assert torch.allclose(norm.denorm(mapped)["observation"], value)
    several = VecNorm(["observation", "reward"])
    with pytest.raises(EnvError, match="counted no"):
        several.to_observation_norm()
    TransformedEnv(CountingEnv(), several).rollout(2)
    assert len(several.to_observation_norm()) == 2


# -------------------------------------------------------------------- V2
@pytest.mark.parametrize("kind", KINDS)
def test_each_environment_of_a_batch_may_have_its_own_statistics(kind):
    own = TransformedEnv(kind(length=[2, 9], batch_size=[2]), VecNormV2(["observation"], decay=1.0))
    own.rollout(3, break_when_any_done=False)
    state = own.transform.state_dict()
    assert state["observation.loc"].shape == (2, 1) and state["observation.count"] == 4
    one = TransformedEnv(kind(length=9, batch_size=[2]), VecNormV2(["observation"], reduce_batch_dims=True))
    one.rollout(3)
    assert one.transform.state_dict()["observation.loc"].shape == (1,)
    with pytest.raises(ValueError, match="stateful=False"):
        VecNormV2(["observation"], stateful=False)


def test_the_shape_of_a_value_may_be_given():
    norm = VecNorm(["x"], shapes=[[3]], decay=1.0)
    norm(TensorDict(x=torch.arange(12.0).reshape(4, 3)))
    assert norm.loc["x"].tolist() == [4.5, 5.5, 6.5]
    with pytest.raises(EnvError, match=r"have shape \(3,\), the values now \(2,\)"):
        wrong = VecNorm(["x"])
        wrong(TensorDict(x=torch.zeros(4, 3), batch_size=[4]))
        wrong(TensorDict(x=torch.zeros(4, 2), batch_size=[4]))
    with pytest.raises(KeyMissingError, match="VecNorm needs 'x'"):
        norm(TensorDict(y=torch.zeros(1)))
    for decay in (0.0, 1.5):
        with pytest.raises(ValueError, match="decay"):
            VecNorm(decay=decay)


# -------------------------------------------------------------------- sharing
def count_in_a_process(norm, rows, steps):
    env = TransformedEnv(ArrayCountingEnv(length=99, batch_size=[rows]), norm)
    for _ in range(steps):
        env.rollout(1)


def test_environments_of_one_process_share_statistics():
    shared = VecNorm.build_td_for_shared_vecnorm(CountingEnv(batch_size=[2]))
    envs = [
        TransformedEnv(CountingEnv(length=99, batch_size=[2]), VecNorm(shared_td=shared, decay=1.0)) for _ in range(2)
    ]
    for env in envs:
        env.rollout(3)
    assert numbers(envs[0].transform) == numbers(envs[1].transform) == pytest.approx(decayed([[0, 1, 2, 3]] * 4, 1.0))
    assert os.path.exists(shared._shared.path)


def test_processes_count_into_one_state_without_losing_a_step():
    norm = VecNorm(
        ["observation"], shared_td=VecNorm.build_td_for_shared_vecnorm(CountingEnv(), ["observation"]), decay=1.0
    )
    context = multiprocessing.get_context("fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn")
    sent = pickle.loads(pickle.dumps(norm))  # as a worker gets it
    workers = [context.Process(target=count_in_a_process, args=(sent, 2, 50)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert numbers(norm) == pytest.approx(decayed([[0, 1]] * 200, 1.0))


def test_statistics_may_be_shared_later_and_a_copy_of_shared_ones_is_private():
    norm = VecNorm(["observation"], decay=1.0)
    TransformedEnv(CountingEnv(length=9), norm).rollout(3)
    before = numbers(norm)
    norm.share_memory()
    assert numbers(norm) == before
    other, clone = pickle.loads(pickle.dumps(norm)), norm.clone()
    count_in_a_process(other, 1, 1)
    assert numbers(norm) == numbers(other) != before and numbers(clone) == before
    with pytest.raises(EnvError, match="not of 'reward'"):
        VecNorm(["reward"], shared_td=norm._statistics)(TensorDict(reward=torch.zeros(2, 1), batch_size=[2]))
    with pytest.raises(TypeError, match="build_td_for_shared_vecnorm"):
        VecNorm(shared_td=TensorDict())
    with pytest.raises(EnvError, match="no statistics to share"):
        VecNorm().share_memory()


def test_the_file_goes_with_its_maker():
    shared = VecNorm.build_td_for_shared_vecnorm(CountingEnv())
    path, content = shared._shared.path, pickle.dumps(shared)
    del shared
    assert not os.path.exists(path)
    with pytest.raises(EnvError, match="are gone"):
        pickle.loads(content)
