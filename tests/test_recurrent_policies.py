"""Recurrent policies through environments, collectors, split batches and value estimation."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl_collectors import Collector, split_trajectories
from rl_core import Compose, EnvBase, TransformedEnv, Unbounded, set_recurrent_mode, step_mdp
from rl_core.errors import KeyMissingError, PolicyError
from rl_core.testing import ArrayCountingEnv, CountingEnv
from rl_envs import GymEnv, InitTracker, StepCounter, TensorDictPrimer
from rl_modules import (
    GRUModule,
    LSTMModule,
    MultiStepActorWrapper,
    OrnsteinUhlenbeckProcessModule,
    SafeModule,
    SafeSequential,
    ValueOperator,
    gSDEModule,
)
from rl_objectives import GAE

BATCHES = {"single": (), "batch": (3,)}
ENVS: dict[str, type[EnvBase]] = {"columns": ArrayCountingEnv, "containers": CountingEnv}


def make_env(kind: str, batch: tuple[int, ...]) -> EnvBase:
    return ENVS[kind](length=[3, 5, 7] if batch else 4, batch_size=batch, truncate=True)


def make_policy(cell: str = "lstm") -> SafeSequential:
    torch.manual_seed(0)
    make: Callable[..., nn.Module] = LSTMModule if cell == "lstm" else GRUModule
    return SafeSequential(
        make(1, 8, num_layers=2, in_key="observation", out_key="features"),
        SafeModule(nn.Sequential(nn.Linear(8, 1), nn.Tanh()), ["features"], ["action"]),
        ValueOperator(nn.Linear(8, 1), ["features"]),
    )


def by_hand(policy: SafeSequential, observations: torch.Tensor) -> torch.Tensor:
    """The features of one episode's observations ``[T, 1]``, with torch's own network from a zero state."""
    module = policy[0]
    return module.network(observations.unsqueeze(0))[0].squeeze(0)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("kind", ENVS)
def test_collected_features_are_those_of_whole_episodes(kind, batch, cell):
    """Batches cut episodes: what was collected equals one run over each whole episode, whichever batch it lies in."""
    policy = make_policy(cell)
    rows = batch[0] if batch else 1
    collector = Collector(make_env(kind, batch), policy, frames_per_batch=4 * rows, total_frames=24 * rows)
    data = torch.cat(list(collector), -1).reshape(rows, 24)
    for row in data.unbind(0):
        starts = [*row["is_init"].flatten().nonzero().flatten().tolist(), 24]
        for begin, end in pairwise(starts):
            episode = row[begin:end]
            torch.testing.assert_close(episode["features"], by_hand(policy, episode["observation"]))


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("kind", ENVS)
def test_training_on_sequences_sees_the_actions_that_were_taken(kind, batch):
    """Also in batches that begin in the middle of an episode, whose first rows hold the state."""
    policy = make_policy()
    collector = Collector(make_env(kind, batch), policy, frames_per_batch=5 * (3 if batch else 1))
    for _, data in zip(range(4), collector, strict=False):
        with set_recurrent_mode(True):
            again = policy(data.clone())
        torch.testing.assert_close(again["action"], data["action"])
        last = again["next", "recurrent_state_h"][..., -1, :, :]
        torch.testing.assert_close(last, data["next", "recurrent_state_h"][..., -1, :, :])


def test_training_on_split_trajectories_sees_the_actions_that_were_taken():
    policy = make_policy()
    collector = Collector(ArrayCountingEnv(length=[3, 5, 7], batch_size=[3]), policy, frames_per_batch=30)
    data = split_trajectories(next(iter(collector)), prefix="collector")
    assert data.shape[0] > 3
    with set_recurrent_mode(True):
        again = policy(data.clone())
    mask = data["collector", "mask"]
    torch.testing.assert_close(again["action"][mask], data["action"][mask])


def test_an_environment_with_tracker_and_primer_of_its_own_is_left_as_it_is():
    policy = make_policy()
    env = TransformedEnv(make_env("columns", ()), Compose(InitTracker(), policy[0].make_tensordict_primer()))
    collector = Collector(env, policy, frames_per_batch=8)
    assert collector.env is env


def test_a_rollout_carries_the_state_and_the_environment_stays_as_it_was():
    policy, env = make_policy(), make_env("columns", ())
    data = env.rollout(8, policy, break_when_any_done=False)
    assert data["is_init"].flatten().tolist() == [True, False, False, False, True, False, False, False]
    torch.testing.assert_close(data["features"][:4], by_hand(policy, data["observation"][:4]))
    torch.testing.assert_close(data["features"][4:], by_hand(policy, data["observation"][4:]))
    assert env.observation_keys == ["observation"]


def test_a_loop_of_the_users_own_carries_the_state():
    policy = make_policy()
    lstm = policy[0]
    env = TransformedEnv(make_env("containers", ()), Compose(InitTracker(), lstm.make_tensordict_primer()))
    td, features = env.reset(), []
    for _ in range(4):
        td = env.step(policy(td))
        features.append(td["features"])
        td = step_mdp(td)
    observations = torch.arange(4.0).unsqueeze(-1)
    torch.testing.assert_close(torch.stack(features), by_hand(policy, observations))


@pytest.mark.parametrize("missing", ["recurrent_state_h", "is_init"])
def test_a_state_that_nobody_writes_is_an_error_with_the_cure(missing):
    policy = make_policy()
    transform = InitTracker() if missing == "recurrent_state_h" else policy[0].make_tensordict_primer()
    env = TransformedEnv(make_env("containers", ()), transform)
    with pytest.raises(KeyMissingError, match=f"{missing}.*get_env_transforms_from_module"):
        policy(env.reset())


def test_a_policy_that_drops_its_next_state_is_refused():
    policy = make_policy().select_out_keys("action")
    with pytest.raises(PolicyError, match="without memory"):
        Collector(make_env("columns", ()), policy, frames_per_batch=8)


def test_modules_of_tensordict_carry_state_too():
    lstm = LSTMModule(1, 8, in_key="observation", out_key="features")
    head = TensorDictModule(nn.Linear(8, 1), in_keys=["features"], out_keys=["action"])
    policy = TensorDictSequential(lstm, head)
    data = next(iter(Collector(make_env("columns", (3,)), policy, frames_per_batch=24)))
    with set_recurrent_mode(True):
        again = policy(data.clone())
    torch.testing.assert_close(again["action"], data["action"])


def test_frames_of_random_actions_hold_zero_states():
    collector = Collector(make_env("columns", ()), make_policy(), frames_per_batch=6, init_random_frames=6)
    batches = iter(collector)
    data = next(batches)
    assert not data["recurrent_state_h"].any() and not data["next", "recurrent_state_h"].any()
    assert next(batches)["next", "recurrent_state_h"].any()


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("cut", [False, True], ids=["rows", "split"])
def test_next_values_come_from_the_state_of_their_own_episode(shifted, cut):
    """Each next value against one step of torch's network from the state that was stored beside it."""
    policy = make_policy()
    value = SafeSequential(policy[0], policy[2]).select_out_keys("state_value")
    data = next(iter(Collector(make_env("columns", (3,)), policy, frames_per_batch=36)))
    if cut:
        data = split_trajectories(data, prefix="collector")
    with set_recurrent_mode(False):  # rows for themselves, from the stored states
        expected = value(data.get("next").clone())["state_value"]
    estimator = GAE(gamma=0.9, lmbda=0.8, value_network=value, shifted=shifted)
    with set_recurrent_mode(True):
        found = estimator(data.clone())
    real = data["collector", "mask"] if cut else torch.ones(data.batch_size, dtype=torch.bool)
    torch.testing.assert_close(found["next", "state_value"][real], expected[real])
    torch.testing.assert_close(found["state_value"][real], data["state_value"][real])
    twin = GAE(gamma=0.9, lmbda=0.8, value_network=value, shifted=shifted)(data.clone())
    torch.testing.assert_close(found["advantage"][real], twin["advantage"][real])


def test_a_gym_environment_and_a_step_counter_carry_state():
    pytest.importorskip("gymnasium")
    env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter(max_steps=9))
    lstm = GRUModule(4, 8, in_key="observation", out_key="features")
    policy = SafeSequential(lstm, SafeModule(nn.Linear(8, 2), ["features"], ["logits"]), _Greedy())
    data = next(iter(Collector(env, policy, frames_per_batch=32)))
    with set_recurrent_mode(True):
        again = lstm(data.clone())
    torch.testing.assert_close(again["features"], data["features"])


class _Greedy(SafeModule):
    def __init__(self) -> None:
        super().__init__(lambda logits: nn.functional.one_hot(logits.argmax(-1), 2), ["logits"], ["action"])


def test_primed_values_other_than_zero_reach_the_policy():
    primer = TensorDictPrimer(context=Unbounded(shape=(2,)), default_value=3.0)
    env = TransformedEnv(make_env("columns", ()), primer)
    data = env.rollout(3, lambda td: td.set("action", td["context"][..., :1] / 4))
    assert data["action"].flatten().tolist() == [0.75, 0.75, 0.75]


@pytest.mark.parametrize("kind", ENVS)
def test_exploration_noise_is_carried_within_an_episode_and_begins_with_it(kind):
    """With no randomness of its own (sigma 0) the process falls from x0 towards mu, anew in every episode."""
    env = make_env(kind, (3,))
    noise = OrnsteinUhlenbeckProcessModule(env.action_spec, 1.0, 1.0, theta=0.5, dt=1.0, sigma=0.0, x0=0.8)
    policy = SafeSequential(SafeModule(nn.Linear(1, 1), ["observation"], ["action"]), noise)
    nn.init.zeros_(policy[0].module.weight)
    nn.init.zeros_(policy[0].module.bias)
    data = next(iter(Collector(env, policy, frames_per_batch=24)))
    torch.testing.assert_close(data["action"], 0.8 * 0.5 ** (data["observation"] + 1))


@pytest.mark.parametrize("kind", ENVS)
def test_chunks_of_actions_are_carried_within_an_episode_and_begin_with_it(kind):
    """Each chunk counts 0.0, 0.1, 0.2 from a third of the observation at which it was made."""
    env = make_env(kind, (3,))
    chunk = SafeModule(lambda x: (x / 30 + torch.arange(3) / 10).unsqueeze(-1), ["observation"], ["action"])
    policy = MultiStepActorWrapper(chunk, 3, action_spec=Unbounded(shape=(3, 1)))
    data = next(iter(Collector(env, policy, frames_per_batch=30)))
    step = data["observation"]
    torch.testing.assert_close(data["action"], (step - step % 3) / 30 + (step % 3) / 10)


@pytest.mark.parametrize("kind", ENVS)
def test_a_random_matrix_of_exploration_stays_the_same_for_an_episode(kind):
    env = TransformedEnv(make_env(kind, (3,)), TensorDictPrimer({"_eps_gSDE": Unbounded(shape=(1, 1))}, random=True))
    policy = SafeSequential(
        SafeModule(lambda x: x * 0, ["observation"], ["loc"]),
        SafeModule(gSDEModule(1, 1), ["loc", "observation", "_eps_gSDE"], ["loc", "scale", "action", "_eps_gSDE"]),
    )
    collector = Collector(env, policy, frames_per_batch=12)
    data = torch.cat([batch for _, batch in zip(range(4), collector, strict=False)], -1)
    for row, length in zip(data["_eps_gSDE"].reshape(3, 16), (3, 5, 7), strict=True):
        episodes = row.split(length)
        assert all((episode == episode[0]).all() for episode in episodes)
        assert len({float(episode[0]) for episode in episodes}) == len(episodes)
