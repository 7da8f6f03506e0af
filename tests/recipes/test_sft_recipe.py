"""The sft recipe through the ``rl`` command: the loss falls, the answers become right, the model is kept."""

import numpy as np
import pytest

from rl_core.cli import main
from rl_trainers import read_metrics
from rl_trainers.recipes.sft import SFT


def train(*options):
    return main(["train", "sft", *map(str, options)])


def test_one_command_teaches_the_answers_and_leaves_every_file(tmp_path, capfd):
    code = train("--task", "letters", "--frames", 1040, "--eval-prompts", 52, "--run-dir", tmp_path, "--name", "a")
    shown = capfd.readouterr()
    assert code == 0
    folder = tmp_path / "a"
    files = {file.name for file in folder.iterdir()}
    assert files == {"config.json", "metrics.csv", "learning_curve.png", "checkpoint", "completions.txt", "model"}
    columns = read_metrics(folder / "metrics.csv")
    losses = [loss for loss in columns["optim/loss_sft"] if not np.isnan(loss)]
    accuracy = [share for share in columns["eval/accuracy"] if not np.isnan(share)]
    assert losses[0] > 2.5 and losses[-1] < 0.5
    assert accuracy[0] < 0.5 and accuracy[-1] > 0.9 and len(accuracy) == 10
    assert "greedy answers" in shown.out and "accuracy" in shown.out and "loss sft" in shown.err
    # GRPO goes on from the model
    grpo = ["train", "grpo", "--model", str(folder / "model"), "--frames", "128", "--run-dir", str(tmp_path)]
    assert main([*grpo, "--name", "b"]) == 0
    assert read_metrics(tmp_path / "b" / "metrics.csv")["train/reward"][0] > 0.5


@pytest.mark.filterwarnings("ignore:the checkpoint .* also holds")
def test_a_run_that_goes_on_equals_a_longer_one(tmp_path):
    options = ["--task", "letters", "--hidden", 32, "--layers", 1, "--batch-size", 13, "--eval-every", 26]
    options += ["--eval-prompts", 4, "--run-dir", tmp_path]
    assert train(*options, "--frames", 78, "--name", "straight") == 0
    assert train(*options, "--frames", 39, "--name", "short") == 0
    assert train("--resume", tmp_path / "short", "--frames", 78) == 0
    straight, short = (read_metrics(tmp_path / name / "metrics.csv") for name in ("straight", "short"))
    updates = [
        {step: loss for step, loss in zip(c["step"], c["optim/loss_sft"], strict=True) if not np.isnan(loss)}
        for c in (straight, short)
    ]
    assert updates[0] == updates[1] and list(updates[0]) == [13, 26, 39, 52, 65, 78]


def test_task_and_model_bring_their_own_defaults():
    assert SFT.from_argv(["--task", "letters"]).batch_size == 26
    assert SFT.from_argv(["--model", "smollm2"]).learning_rate == 1e-5


def test_an_answer_column_that_is_missing_is_named(tmp_path, capsys):
    assert train("--task", "letters", "--answer-key", "solution", "--frames", 26, "--run-dir", tmp_path) == 2
    error = capsys.readouterr().err
    assert "'solution'" in error and "answer" in error
