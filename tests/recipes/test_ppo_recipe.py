"""The ppo recipe through the ``rl`` command: its files, its errors, Ctrl-C, and resuming as if never stopped."""

import json
import os
import signal
import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from rl_core import hookimpl, hooks, registry
from rl_core.cli import main
from rl_trainers import Checkpoint, read_metrics
from rl_trainers.recipes.ppo import PPO

SMALL = ["--num-envs", "4", "--frames-per-batch", "128", "--epochs", "2", "--eval-episodes", "3", "--no-video"]


def train(*options):
    return main(["train", "ppo", *map(str, options)])


def test_one_command_leaves_every_file_and_a_table(tmp_path, capfd):
    code = train("--frames", 512, *SMALL, "--video", "--video-steps", 20, "--run-dir", tmp_path, "--name", "a")
    shown = capfd.readouterr()
    assert code == 0
    files = {file.name for file in (tmp_path / "a").iterdir()}
    assert files - {"policy.mp4", "policy.gif"} == {"config.json", "metrics.csv", "learning_curve.png", "checkpoint"}
    assert len(files) == 5
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert (config["env"], config["frames"], config["num_envs"]) == ("gym:CartPole-v1", 512, 4)
    columns = read_metrics(tmp_path / "a" / "metrics.csv")
    assert columns["step"] == [128, 256, 384, 512]
    assert {
        "train/return",
        "train/episode_length",
        "eval/return_mean",
        "optim/loss_objective",
        "optim/loss_critic",
    } <= set(columns)
    assert columns["eval/episodes"][-1] == 3
    for part in ("evaluation", "run folder", "learning_curve.png", "checkpoint"):
        assert part in shown.out
    for part in ("frames/s", "return", "length", "loss objective"):
        assert part in shown.err


def test_continuous_actions_train_within_their_bounds(tmp_path):
    seen = []

    class Spy:
        @hookimpl
        def on_batch(self, batch):
            seen.append(batch["action"].abs().max().item())

    with registry.isolated():
        hooks.load().register(Spy())
        code = train("--env", "gym:Pendulum-v1", "--frames", 256, *SMALL, "--run-dir", tmp_path, "--name", "a")
    assert code == 0
    assert len(seen) == 2 and 0 < max(seen) <= 2


def test_the_environment_brings_its_own_defaults():
    assert PPO.from_argv(["--env", "gym:Pendulum-v1"]) == PPO.preset("gym:Pendulum-v1")
    assert PPO.preset("gym:Pendulum-v1").gamma == 0.98 != PPO().gamma
    assert PPO.from_argv(["--env=gym:Pendulum-v1", "--gamma", "0.8"]).gamma == 0.8
    assert PPO.preset("gym:Acrobot-v1") == PPO(env="gym:Acrobot-v1")


@pytest.mark.filterwarnings("ignore:the checkpoint .* also holds")
def test_a_stopped_and_resumed_run_equals_one_that_never_stopped(tmp_path, assert_equal_runs):
    class Stop:
        @hookimpl
        def on_update(self, run):
            if run.updates == 2:
                os.kill(os.getpid(), signal.SIGINT)

    options = ["--frames", 512, *SMALL, "--eval-every", 128, "--run-dir", tmp_path]
    assert train(*options, "--checkpoint-every", 512, "--name", "straight") == 0
    with registry.isolated():
        hooks.load().register(Stop())
        assert train(*options, "--name", "stopped") == 130
    assert read_metrics(tmp_path / "stopped" / "metrics.csv")["step"] == [128, 256]
    assert train("--resume", tmp_path / "stopped") == 0

    names = ("actor", "critic", "optimizer", "scheduler", "collector", "rng")
    assert_equal_runs(tmp_path / "straight", tmp_path / "stopped", names)


def test_ctrl_c_saves_closes_and_says_how_to_go_on(tmp_path):
    command = [sys.executable, "-m", "rl_core.cli", "train", "ppo", *SMALL, "--run-dir", str(tmp_path), "--name", "a"]
    process = subprocess.Popen([*command, "--frames", "10000000"], stderr=subprocess.PIPE, text=True)
    before = [process.stderr.readline()]
    while "frames/s" not in before[-1] and process.poll() is None:
        before.append(process.stderr.readline())
    process.send_signal(signal.SIGINT)
    _, after = process.communicate(timeout=120)
    assert process.returncode == 130, "".join(before) + after
    assert f"Go on with: rl train ppo --resume {tmp_path / 'a'}" in after
    assert "Traceback" not in after
    frames = Checkpoint.metadata(tmp_path / "a" / "checkpoint")["frames"]
    assert frames > 0 and frames % 128 == 0
    assert train("--resume", tmp_path / "a", "--frames", frames + 128) == 0
    assert read_metrics(tmp_path / "a" / "metrics.csv")["step"] == list(range(128, frames + 129, 128))


def test_a_folder_that_cannot_be_written_stops_before_training(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert train("--run-dir", tmp_path / "file" / "runs") == 2
    assert "cannot be written (Not a directory); choose another place with --run-dir" in capsys.readouterr().err


def test_an_unknown_environment_is_named(tmp_path, capsys):
    assert train("--env", "gym:CartPoel-v1", "--run-dir", tmp_path) == 2
    error = capsys.readouterr().err
    assert "CartPoel-v1" in error and "CartPole-v1" in error
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_not_written_over(tmp_path, capsys):
    assert train("--frames", 128, *SMALL, "--run-dir", tmp_path, "--name", "a") == 0
    assert train("--frames", 128, *SMALL, "--run-dir", tmp_path, "--name", "a") == 2
    assert "already holds a run" in capsys.readouterr().err


class NaNAfterTen(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, dtype=np.float32), {}

    def step(self, action):
        self.steps += 1
        value = np.nan if self.steps > 10 else 0.5
        return np.full(2, value, dtype=np.float32), 1.0, False, False, {}


def test_a_nan_observation_is_an_error_that_names_it(tmp_path, capsys):
    if "NaNAfterTen-v0" not in gymnasium.registry:
        gymnasium.register("NaNAfterTen-v0", NaNAfterTen, disable_env_checker=True)
    code = train("--env", "gym:NaNAfterTen-v0", "--check-finite", *SMALL, "--frames", 512, "--run-dir", tmp_path)
    assert code == 2
    error = capsys.readouterr().err
    assert "observation" in error and "nan" in error.lower()


def test_tensorboard_files_are_written_on_demand(tmp_path):
    pytest.importorskip("tensorboard")
    assert train("--frames", 128, *SMALL, "--tensorboard", "--run-dir", tmp_path, "--name", "a") == 0
    assert list((tmp_path / "a").glob("events.out.tfevents.*"))
