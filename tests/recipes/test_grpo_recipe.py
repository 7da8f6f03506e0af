"""The grpo recipe through the ``rl`` command: learning, its files, its errors, and resuming as if never stopped."""

import json
import os
import signal

import numpy as np
import pytest

from rl_core import hookimpl, hooks, registry
from rl_core.cli import main
from rl_trainers import read_metrics
from rl_trainers.recipes.grpo import GRPO

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TINY = ["--hidden", "32", "--layers", "1", "--prompts-per-batch", "4", "--group-size", "4", "--max-new-tokens", "4"]


def train(*options):
    return main(["train", "grpo", *map(str, options)])


def test_one_command_trains_a_model_and_leaves_every_file_and_a_table(tmp_path, capfd):
    options = ["--max-new-tokens", 6, "--learning-rate", 3e-3, "--characters", LETTERS]
    code = train("--task", "letters", "--frames", 3200, *options, "--run-dir", tmp_path, "--name", "a")
    shown = capfd.readouterr()
    assert code == 0
    folder = tmp_path / "a"
    files = {file.name for file in folder.iterdir()}
    assert files == {"config.json", "metrics.csv", "learning_curve.png", "checkpoint", "completions.txt", "model"}
    columns = read_metrics(folder / "metrics.csv")
    rewards = columns["train/reward"]
    assert np.mean(rewards[:3]) < 0.1  # one letter of 26, now and then
    assert np.mean(rewards[-3:]) > 0.25
    assert columns["eval/return_mean"][-1] > 0.25 and columns["eval/episodes"][-1] == 64
    names = ("reward_std", "dead_groups", "completion_length", "cut_completions")
    logs = ("clip_fraction", "kl_approx", "ESS", "entropy", "loss_objective", "grad_norm", "learning_rate")
    assert {*(f"train/{name}" for name in names), *(f"optim/{name}" for name in logs)} <= set(columns)
    assert columns["optim/learning_rate"][:2] == pytest.approx([3e-3, 3e-3 * (1 - 128 / 3200)])
    config = json.loads((folder / "config.json").read_text())
    assert (config["task"], config["model"], config["group_size"]) == ("letters", "tiny_llama", 8)
    assert "completion" in (folder / "completions.txt").read_text(encoding="utf-8")
    for part in ("evaluation", "answers of the last batch", "prompt", "completions.txt", "model/"):
        assert part in shown.out
    for part in ("frames/s", "reward", "length"):
        assert part in shown.err
    # the model can be trained on from its folder
    assert train("--model", folder / "model", "--frames", 128, "--run-dir", tmp_path, "--name", "b") == 0
    assert read_metrics(tmp_path / "b" / "metrics.csv")["train/reward"][0] > 0.25


@pytest.mark.filterwarnings("ignore:the checkpoint .* also holds")
def test_a_stopped_and_resumed_run_equals_one_that_never_stopped(tmp_path, assert_equal_runs):
    class Stop:
        @hookimpl
        def on_update(self, run):
            if run.updates == 2:
                os.kill(os.getpid(), signal.SIGINT)

    options = ["--frames", 80, *TINY, "--minibatch-size", 8, "--run-dir", tmp_path]
    assert train(*options, "--checkpoint-every", 80, "--name", "straight") == 0
    with registry.isolated():
        hooks.load().register(Stop())
        assert train(*options, "--name", "stopped") == 130
    assert read_metrics(tmp_path / "stopped" / "metrics.csv")["step"] == [16, 32]
    assert train("--resume", tmp_path / "stopped") == 0

    names = ("model", "optimizer", "collector", "rng")
    assert_equal_runs(tmp_path / "straight", tmp_path / "stopped", names)
    assert read_metrics(tmp_path / "straight" / "metrics.csv")["step"] == [16, 32, 48, 64, 80]


def test_task_and_model_bring_their_own_defaults():
    assert GRPO.from_argv(["--task", "addition"]) == GRPO.preset("addition")
    assert GRPO.preset("addition").group_size == 16 != GRPO().group_size
    real = GRPO.from_argv(["--task", "addition", "--model", "smollm2"])
    assert real == GRPO.preset("addition", model="smollm2") and real.group_size == 4
    assert GRPO.from_argv(["--model=smollm2", "--group-size", "2"]).group_size == 2
    assert GRPO.preset("mine:riddles") == GRPO(task="mine:riddles")


def test_every_term_of_the_loss_can_be_turned_on(tmp_path):
    options = ["--kl-to-ref-coeff", 0.1, "--entropy-coeff", 0.01, "--aggregation", "dr_grpo", "--advantage", "mean"]
    assert train("--frames", 48, *TINY, *options, "--run-dir", tmp_path, "--name", "a") == 0
    columns = read_metrics(tmp_path / "a" / "metrics.csv")
    assert columns["optim/kl_to_ref"][0] == pytest.approx(0.0, abs=0.01) and columns["optim/kl_to_ref"][2] > 0
    assert columns["optim/loss_entropy"][0] < 0 and columns["optim/cut_answers"][0] == 0


def test_answers_that_met_the_length_limit_can_be_left_out(tmp_path):
    options = ["--max-new-tokens", 1, "--ignore-cut-answers"]
    assert train("--frames", 32, *TINY, *options, "--run-dir", tmp_path, "--name", "a") == 0
    columns = read_metrics(tmp_path / "a" / "metrics.csv")
    cut = columns["train/cut_completions"][0]
    assert cut > 0.8 and columns["optim/cut_answers"][0] == pytest.approx(cut)


class Same:
    """A chat in which every answer is worth the same."""

    def make(self, id, **kwargs):
        return registry.envs.make("chat:letters", reward=[worth_one], **kwargs)

    def ids(self):
        return ["one"]

    def describe(self, id):
        return "worth one"


def worth_one(completion):
    return 1.0


def test_dead_groups_that_are_dropped_leave_the_model_alone(tmp_path):
    options = ["--task", "same:one", "--frames", 32, *TINY, "--drop-dead-groups", "--run-dir", tmp_path, "--name", "a"]
    with registry.isolated():
        registry.envs.register("same", Same)
        assert train(*options) == 0
    columns = read_metrics(tmp_path / "a" / "metrics.csv")
    assert columns["train/dead_groups"][:2] == [1.0, 1.0] and columns["train/reward"][:2] == [1.0, 1.0]
    assert "optim/loss_objective" not in columns


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--task", "leters"], "letters"),
        (["--model", "nowhere"], "a folder with a model's config.json; got 'nowhere'"),
        (["--engine", "vlm"], "'transformers' or 'vllm'; got 'vlm'"),
    ],
)
def test_a_wrong_name_is_told_with_those_there_are(tmp_path, capsys, options, message):
    assert train(*options, "--frames", 16, *TINY, "--run-dir", tmp_path) == 2
    assert message in capsys.readouterr().err
    assert not [file for folder in tmp_path.iterdir() for file in folder.iterdir()]
