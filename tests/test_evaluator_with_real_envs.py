"""Evaluator with what other packages give it: gymnasium, normalisers, films, recurrent policies, loggers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import pytest
import torch
from PIL import Image
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collectors import Collector, Evaluator
from rl_core import EnvBase, EnvRef, TransformedEnv
from rl_core.testing import ArrayCountingEnv, CountingEnv
from rl_envs import EnvCreator, GymEnv, ObservationNorm, PixelRenderTransform, VecNorm, VideoRecorder
from rl_modules import GRUModule, SafeModule, SafeSequential
from rl_trainers import CSVLogger, evaluate

CART_POLE = {"categorical_action_encoding": True}


def make_policy() -> TensorDictModule:
    """Pushes the cart towards the side to which the pole leans; episodes last about 40 steps."""
    network = nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[0.0, 0.0, -1.0, 0.0], [0.0, 0.0, 1.0, 0.0]]))
    return TensorDictModule(nn.Sequential(network, Choose()), ["observation"], ["action"])


class Choose(nn.Module):
    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.argmax(-1)


def make_normed() -> EnvBase:
    return TransformedEnv(GymEnv("CartPole-v1", **CART_POLE), VecNorm(["observation"], decay=1.0))


def norm_state(env: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in env.transform.state_dict().items()}


SOURCES: dict[str, Callable[[], Any]] = {
    "environment": lambda: GymEnv("CartPole-v1", **CART_POLE),
    "reference": lambda: EnvRef("gym:CartPole-v1", CART_POLE),
    "creator": lambda: EnvCreator(functools.partial(GymEnv, "CartPole-v1", **CART_POLE)),
    "batch": lambda: functools.partial(GymEnv, "CartPole-v1", num_envs=3, **CART_POLE),
}


@pytest.mark.parametrize("backend", ["sync", "thread"])
@pytest.mark.parametrize("source", SOURCES)
def test_every_source_of_an_environment_gives_the_numbers_of_evaluate(source, backend):
    policy = make_policy()
    with Evaluator(SOURCES[source](), policy, num_trajectories=4, seed=5, backend=backend) as evaluator:
        results = [evaluator.evaluate(step=step) for step in (0, 1)]
    env = GymEnv("CartPole-v1", num_envs=3 if source == "batch" else None, **CART_POLE)
    expected = evaluate(env, policy, 4, seed=5)
    for result in results:  # the seed makes every evaluation the same
        assert {name: result[f"eval/{name}"] for name in expected} == expected
    assert 20 < expected["return_mean"] < 80


def test_a_process_gives_the_same_numbers():
    policy = make_policy()
    env = EnvRef("gym:CartPole-v1", CART_POLE)
    with Evaluator(env, policy, num_trajectories=4, seed=5, backend="process", mp_start_method="fork") as evaluator:
        result = evaluator.evaluate()
    expected = evaluate(GymEnv("CartPole-v1", **CART_POLE), policy, 4, seed=5)
    assert {name: result[f"eval/{name}"] for name in expected} == expected


@pytest.mark.parametrize("backend", ["sync", "thread", "process"])
def test_running_statistics_are_those_of_training_and_never_move_in_evaluation(backend):
    training_env = make_normed()
    collector = Collector(training_env, None, frames_per_batch=50)
    policy, seen = make_policy(), []
    options = {"mp_start_method": "fork"} if backend == "process" else {}
    with Evaluator(
        make_normed, policy, num_trajectories=2, training_env=training_env, seed=1, backend=backend, **options
    ) as evaluator:
        for _, _ in zip(range(2), collector, strict=False):
            before = norm_state(training_env)
            result = evaluator.evaluate()
            after = norm_state(training_env)
            assert all(torch.equal(before[name], after[name]) for name in before) and len(before) == 3
            by_hand = TransformedEnv(GymEnv("CartPole-v1", **CART_POLE), training_env.transform.to_observation_norm())
            assert result["eval/length_mean"] == pytest.approx(evaluate(by_hand, policy, 2, seed=1)["length_mean"])
            seen.append(float(before["observation.count"]))
    assert seen[1] > seen[0] > 0 and training_env.training
    collector.shutdown()


def test_a_frozen_view_of_the_training_statistics_needs_nothing_and_damages_nothing():
    training_env = make_normed()
    training_env.rollout(20, break_when_any_done=False)
    view = TransformedEnv(GymEnv("CartPole-v1", **CART_POLE), training_env.transform.frozen_copy())
    before = norm_state(training_env)
    with Evaluator(view, make_policy(), num_trajectories=2, training_env=training_env, backend="thread") as evaluator:
        evaluator.trigger_eval()
        training_env.rollout(20, break_when_any_done=False)
        moved = norm_state(training_env)
        evaluator.wait()
    after = norm_state(training_env)
    assert all(torch.equal(moved[name], after[name]) for name in moved)
    assert after["observation.count"] > before["observation.count"]


def test_measured_statistics_are_handed_over_to_a_transform_that_has_none():
    training_env = TransformedEnv(GymEnv("CartPole-v1", **CART_POLE), ObservationNorm(in_keys=["observation"]))
    training_env.transform.init_stats(50)
    fresh = TransformedEnv(GymEnv("CartPole-v1", **CART_POLE), ObservationNorm(in_keys=["observation"]))
    with Evaluator(fresh, make_policy(), num_trajectories=2, backend="sync") as evaluator:
        evaluator.update_env_state(training_env)
        evaluator.evaluate()
    assert torch.equal(fresh.transform.loc, training_env.transform.loc)


def make_filmed(folder: Path, video_format: str) -> EnvBase:
    env = GymEnv("CartPole-v1", render_mode="rgb_array", **CART_POLE)
    recorder = VideoRecorder(folder, "film", skip=1, video_format=video_format)
    return env.append_transform(PixelRenderTransform()).append_transform(recorder)


def pictures(film: Path) -> int:
    """How many there are; a gif shows equal ones as one that lasts longer."""
    if film.suffix == ".mp4":
        return len(imageio.imread(film, index=None))
    with Image.open(film) as gif:
        lasting = []
        for place in range(gif.n_frames):
            gif.seek(place)
            lasting.append(gif.info["duration"])
    return round(sum(lasting) / 30)  # a gif counts hundredths of a second: 1 / 30 s are 30 ms


@pytest.mark.parametrize(("backend", "video_format"), [("thread", "mp4"), ("process", "gif")])
def test_the_film_of_an_evaluation_is_written_at_its_step(tmp_path, backend, video_format):
    options = {"mp_start_method": "fork"} if backend == "process" else {}
    make = functools.partial(make_filmed, tmp_path, video_format)
    with Evaluator(
        make, make_policy(), num_trajectories=2, max_steps=6, video_every=2, backend=backend, **options
    ) as evaluator:
        for step in (100, 200, 300):
            evaluator.evaluate(step=step)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"film_{step}.{video_format}" for step in (100, 300)]
    for film in tmp_path.iterdir():
        assert pictures(film) == 2 * (1 + 6)  # the first one and those of 6 steps, twice


def test_films_and_numbers_share_a_logger_and_a_step(tmp_path):
    logger = CSVLogger("run", log_dir=tmp_path)
    env = GymEnv("CartPole-v1", render_mode="rgb_array", **CART_POLE).append_transform(PixelRenderTransform())
    env = env.append_transform(VideoRecorder(logger, "policy", skip=1))
    with Evaluator(env, make_policy(), num_trajectories=1, max_steps=5, logger=logger, backend="sync") as evaluator:
        result = evaluator.evaluate(step=640)
    logger.close()
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in written if path.suffix in (".mp4", ".gif") and "640" in path.name]
    lines = "\n".join(path.read_text() for path in written if path.suffix == ".csv")
    assert "640" in lines and str(result["eval/return_mean"]) in lines


def recurrent_policy() -> SafeSequential:
    return SafeSequential(
        GRUModule(1, 8, in_key="observation", out_key="features"),
        SafeModule(nn.Sequential(nn.Linear(8, 1), nn.Tanh()), ["features"], ["action"]),
    )


class ActionsEnv(CountingEnv):
    def _step(self, tensordict: Any) -> Any:
        return super()._step(tensordict).set("reward", tensordict["action"].clone())


def returns_by_hand(policy: SafeSequential, lengths: list[int]) -> list[float]:
    """The sum of actions over whole episodes, with torch's own network from a zero state."""
    found = []
    for length in lengths:
        with torch.no_grad():
            features = policy[0].network(torch.arange(float(length)).reshape(1, length, 1))[0].squeeze(0)
            found.append(policy[1].module(features).double().sum().item())
    return found


@pytest.mark.parametrize("batch", [False, True])
def test_a_recurrent_policy_keeps_its_memory_within_episodes_and_loses_it_between_them(batch):
    policy = recurrent_policy()
    env = ActionsEnv(length=[3, 5] if batch else 4, batch_size=[2] if batch else [])
    by_hand = returns_by_hand(policy, [3, 5, 3] if batch else [4, 4, 4])
    expected = pytest.approx(sum(by_hand) / 3, abs=1e-6)
    assert evaluate(env, policy, 3)["return_mean"] == expected
    with Evaluator(env, policy, num_trajectories=3, backend="thread") as evaluator:
        result = evaluator.evaluate()
        assert result["eval/return_mean"] == expected
        assert result["eval/return_min"] == pytest.approx(min(by_hand), abs=1e-6)
    cut = evaluate(env, policy, 3, max_steps=2)
    assert cut["return_mean"] == pytest.approx(returns_by_hand(policy, [2])[0], abs=1e-6)
    assert env.observation_keys == ["observation"]


def test_a_recurrent_policy_is_carried_on_columns_too():
    policy = recurrent_policy()
    assert evaluate(ArrayCountingEnv(length=3), policy, 2)["return_mean"] == 1 + 2 + 3
