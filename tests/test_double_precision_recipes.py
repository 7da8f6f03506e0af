"""Recipes train where observations are float64, as MuJoCo's are, and on datasets of such observations."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from rl_core import registry

TINY = {"frames": 64, "hidden": (8,), "minibatch_size": 8, "eval_episodes": 1, "video": False, "progress": False}
TASK = {"env": "gym:InvertedPendulum-v5", "seed": 0}


@pytest.fixture(autouse=True)
def _is_what_it_says():
    env = registry.envs.make(TASK["env"])
    assert env.observation_spec["observation"].dtype == torch.float64
    env.close()


def trained(recipe: str, folder: Path, **options: object) -> list[dict[str, str]]:
    registry.recipes.get(recipe)(**TINY, **TASK, run_dir=str(folder), name="run", **options).run()
    with (folder / "run" / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("recipe", ["sac", "td3", "redq", "tqc", "crossq"])
def test_recipes_with_a_replay_buffer_train_on_float64_observations(recipe, tmp_path):
    rows = trained(recipe, tmp_path, warmup_frames=16, frames_per_batch=16, updates_per_batch=1)
    assert float(rows[-1]["eval/return_mean"]) > 0


@pytest.mark.parametrize("recipe", ["ppo", "a2c"])
def test_recipes_on_policy_train_on_float64_observations(recipe, tmp_path):
    options = {**TINY, "num_envs": 2, "frames_per_batch": 32}
    if recipe == "a2c":
        del options["minibatch_size"]
    registry.recipes.get(recipe)(**options, **TASK, run_dir=str(tmp_path), name="run").run()
    assert (tmp_path / "run" / "learning_curve.png").is_file()


def test_a_film_of_a_policy_on_float64_observations_is_made(tmp_path):
    options = {**TINY, "video": True, "video_steps": 5, "warmup_frames": 16, "frames_per_batch": 16}
    registry.recipes.get("td3")(**options, **TASK, run_dir=str(tmp_path), name="run", updates_per_batch=1).run()
    assert (tmp_path / "run" / "policy.mp4").stat().st_size > 0


def test_offline_recipes_learn_from_float64_rows(tmp_path):
    def end(n: int) -> torch.Tensor:
        return torch.zeros(n, 1, dtype=torch.bool)

    n = 32
    rows = TensorDict({"observation": torch.rand(n, 4, dtype=torch.float64), "action": torch.rand(n, 1) * 2 - 1}, [n])
    following = {"observation": torch.rand(n, 4, dtype=torch.float64), "reward": torch.rand(n, 1, dtype=torch.float64)}
    rows["next"] = TensorDict({**following, "done": end(n), "terminated": end(n)}, [n])
    buffer = registry.buffers.get("tensordict_replay")(storage=registry.storages.get("lazy_tensor")(n), batch_size=8)
    buffer.extend(rows)
    buffer.dumps(tmp_path / "rows")
    metrics = trained("bc", tmp_path, data=str(tmp_path / "rows"))
    assert float(metrics[-1]["eval/return_mean"]) > 0
