"""Brax and Jumanji step by step against themselves; memory is shared, rows are reset alone."""

import brax.envs
import jax
import jax.numpy as jnp
import jumanji
import numpy as np
import pytest
import torch

from rl_core import TransformedEnv, check_env_specs, registry
from rl_core.errors import EnvError, UnknownNameError
from rl_core.testing import EnvKit
from rl_envs import StepCounter
from rl_envs.jax_envs.brax import BraxEnv, BraxWrapper
from rl_envs.jax_envs.env import to_torch
from rl_envs.jax_envs.jumanji import JumanjiEnv


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    """The kit makes the same environment many times: what was compiled is taken from a folder."""
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    yield
    jax.config.update("jax_compilation_cache_dir", None)


def keys_of(seed, resets, count=None):
    """The keys of each of the first resets, as JaxEnv draws them."""
    key, drawn = jax.random.PRNGKey(seed), []
    for _ in range(resets):
        key, part = jax.random.split(key)
        drawn.append(part if count is None else jax.random.split(part, count))
    return drawn


# -------------------------------------------------------------------- Jumanji
class TestSnake(EnvKit):
    distribution = "rl-envs"
    steps = 25

    def make_env(self):
        return JumanjiEnv("Snake-v1", num_envs=3, env_kwargs={"time_limit": 6})


class TestOneGameOf2048(EnvKit):
    distribution = "rl-envs"
    steps = 20

    def make_env(self):
        return TransformedEnv(JumanjiEnv("Game2048-v1", categorical_action_encoding=True), StepCounter(max_steps=8))


@pytest.mark.parametrize("name", ["Snake-v1", "Maze-v0", "Minesweeper-v0"])
def test_every_transition_is_jumanjis(name):
    env = JumanjiEnv(name, categorical_action_encoding=True)
    env.set_seed(4)
    data = env.rollout(30, break_when_any_done=False)
    raw = jumanji.make(name)
    reset, step = jax.jit(raw.reset), jax.jit(raw.step)
    keys = iter(keys_of(4, 31))
    state, now = reset(next(keys))
    for row in data:
        same(row, now.observation)
        state, now = step(state, jnp.asarray(row["action"].numpy().astype(np.int32)))
        same(row["next"], now.observation)
        assert row["next", "reward"].item() == np.float32(now.reward)
        assert row["next", "terminated"].item() == bool(now.last() and now.discount == 0)
        assert row["next", "done"].item() == bool(now.last())
        if now.last():
            state, now = reset(next(keys))
    if "action_mask" in data and data["action_mask"].ndim == 2:
        assert data["action_mask"].gather(-1, data["action"][:, None]).all()


def same(found, observation):
    for name, part in observation._asdict().items():
        if hasattr(part, "_asdict"):
            same(found[name], part)
        else:
            assert np.array_equal(found[name].numpy(), np.asarray(part)), name


def test_rows_of_a_batch_begin_anew_by_themselves():
    env = TransformedEnv(
        JumanjiEnv("Snake-v1", num_envs=3, env_kwargs={"time_limit": 4}), StepCounter(3, step_count_key="taken")
    )
    data = env.rollout(10, break_when_any_done=False)
    assert data["taken"].max() == 2 and (data["step_count"] <= data["taken"][..., 0]).all()
    fresh = data["taken"][..., 0] == 0
    assert torch.equal(fresh, data["step_count"] == 0)
    assert (data["grid"][fresh].flatten(1).sum(-1) > 0).all() and fresh[:, 1:].any()


def test_memory_is_shared_with_jax():
    array = jnp.arange(6.0).reshape(2, 3)
    assert to_torch(array).data_ptr() == array.unsafe_buffer_pointer()
    env = JumanjiEnv("Snake-v1", num_envs=2)
    env.reset()
    assert env.state.step_count.shape == (2,)


# -------------------------------------------------------------------- Brax
class Slide:
    """Brax's interface, small enough to compile at once: a point that moves by the action; ends beyond 2."""

    action_size, unwrapped = 1, None

    def __init__(self):
        self.unwrapped = self

    def reset(self, key):
        place = jax.random.uniform(key, (2,))
        return brax.envs.State(None, place, jnp.zeros(()), jnp.zeros(()))

    def step(self, state, action):
        place = state.obs + action
        return state.replace(obs=place, reward=place[0], done=(place[0] > 2).astype(jnp.float32))


class TestSlides(EnvKit):
    distribution = "rl-envs"

    def make_env(self):
        return BraxWrapper(Slide(), num_envs=3, episode_length=5)


class TestOneSlide(EnvKit):
    distribution = "rl-envs"

    def make_env(self):
        return BraxWrapper(Slide(), episode_length=5, jit=False)


def test_ends_beyond_two_terminate_and_the_episode_length_truncates():
    env = BraxWrapper(Slide(), episode_length=6)
    forward = env.rollout(9, lambda td: td.set("action", torch.full((1,), 0.75)))
    place = forward["next", "observation"][:, 0]
    assert forward["next", "terminated"][:, 0].tolist() == (place > 2).tolist() and place[-1] > 2
    still = env.rollout(9, lambda td: td.set("action", torch.zeros(1)))
    assert len(still) == 6 and still["next", "truncated"][-1] and not still["next", "terminated"].any()


def test_frame_skip_sums_rewards_up_to_the_end():
    env = BraxWrapper(Slide(), frame_skip=4, episode_length=None)
    env.set_seed(0)
    td = env.reset()
    start = td["observation"][0].item()
    stepped = env.step(td.set("action", torch.full((1,), 0.75)))
    places = [start + 0.75 * n for n in range(1, 5)]
    upto = next(n for n, place in enumerate(places) if place > 2) + 1
    assert stepped["next", "reward"].item() == pytest.approx(sum(places[:upto]), abs=1e-5)
    assert stepped["next", "terminated"]


def test_a_simulation_of_brax_is_followed():
    env = BraxEnv("inverted_pendulum", backend="spring", num_envs=2)
    env.set_seed(1)
    data = env.rollout(3)
    check_env_specs(env, seed=0)
    raw = brax.envs.get_environment("inverted_pendulum", backend="spring")
    state = jax.jit(jax.vmap(raw.reset))(keys_of(1, 1, 2)[0])
    step = jax.jit(jax.vmap(raw.step))
    for t in range(3):
        assert np.allclose(data["observation"][:, t].numpy(), np.asarray(state.obs), atol=1e-5)
        state = step(state, jnp.asarray(data["action"][:, t].numpy()))
        assert np.allclose(data["next", "reward"][:, t, 0].numpy(), np.asarray(state.reward))


# -------------------------------------------------------------------- names and errors
def test_names_and_errors():
    assert "ant" in registry.envs.ids("brax") and "Snake-v1" in registry.envs.ids("jumanji")
    assert registry.envs.make("jumanji:Maze-v0").name == "Maze-v0"
    with pytest.raises(UnknownNameError, match="ant"):
        registry.envs.make("brax:antt")
    with pytest.raises(UnknownNameError, match="Snake-v1"):
        JumanjiEnv("Snake-v0")
    env = BraxWrapper(Slide(), num_envs=2, episode_length=1)
    with pytest.raises(EnvError, match="before its first reset"):
        env.step(env.rand_action())
    single = BraxWrapper(Slide(), episode_length=1)
    td = single.rand_step()
    with pytest.raises(EnvError, match="after its episode ended"):
        single.step(single.rand_action(single.step_mdp(td)))


def test_rows_that_are_not_reset_keep_their_last_values():
    env = BraxWrapper(Slide(), num_envs=2, episode_length=None)
    td, push = env.reset(), torch.tensor([[3.0], [0.25]])
    first = env.step(td.set("action", push))
    assert first["next", "terminated"].flatten().tolist() == [True, False]
    second = env.step(env.step_mdp(first.clone()).set("action", push))
    assert torch.equal(second["next", "observation"][0], first["next", "observation"][0])
    assert second["next", "done"].flatten().tolist() == [True, False] and second["next", "reward"][0] == 0
    assert torch.allclose(second["next", "observation"][1], first["next", "observation"][1] + 0.25)
