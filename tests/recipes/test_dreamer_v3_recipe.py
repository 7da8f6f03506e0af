"""The dreamer_v3 recipe through the ``rl`` command: its files, resuming, and what it refuses."""

import json

import pytest

from rl_core import registry
from rl_core.cli import main
from rl_core.errors import RLError
from rl_trainers import read_metrics
from rl_trainers.recipes.dreamer_v3 import DreamerV3

SMALL = {
    "num_envs": 4,
    "frames_per_batch": 64,
    "updates_per_batch": 2,
    "warmup_frames": 128,
    "sequences": 4,
    "sequence_length": 8,
    "horizon": 3,
    "belief": 8,
    "hidden": 8,
    "depth": 2,
    "categoricals": 2,
    "classes": 4,
    "bins": 15,
    "eval_episodes": 4,
}


def options(**changes):
    given = {**SMALL, **changes}
    return [text for name, value in given.items() for text in (f"--{name.replace('_', '-')}", str(value))]


def test_one_command_trains_and_leaves_every_file(tmp_path, capfd):
    arguments = options(frames=256, run_dir=tmp_path, name="a")
    assert main(["train", "dreamer_v3", *arguments, "--no-progress"]) == 0
    files = {file.name for file in (tmp_path / "a").iterdir()}
    assert files == {"config.json", "metrics.csv", "learning_curve.png", "checkpoint"}
    assert json.loads((tmp_path / "a" / "config.json").read_text())["env"] == "native:Catch"
    columns = read_metrics(tmp_path / "a" / "metrics.csv")
    learnt = {"loss_model_reco", "loss_model_reward", "loss_model_continue", "loss_actor", "loss_value", "return_scale"}
    assert {f"optim/{name}" for name in learnt} <= set(columns)
    assert columns["eval/length_mean"][-1] == 7 and -1 <= columns["eval/return_mean"][-1] <= 1
    assert "evaluation" in capfd.readouterr().out


def test_a_resumed_run_goes_on_from_its_checkpoint(tmp_path):
    quiet = {**SMALL, "run_dir": str(tmp_path), "progress": False}
    DreamerV3(frames=192, name="short", **quiet).run()
    DreamerV3(frames=320, name="short", resume=str(tmp_path / "short"), **quiet).run()
    assert read_metrics(tmp_path / "short" / "metrics.csv")["step"][-1] == 320


def test_environments_without_pixels_or_one_hot_actions_are_refused(tmp_path):
    with pytest.raises(RLError, match="pixels"):
        DreamerV3(env="gym:CartPole-v1", run_dir=str(tmp_path), progress=False).run()
    assert registry.recipes.get("dreamer_v3") is DreamerV3
