"""The recipes of agent groups through the ``rl`` command: files, numbers, several groups, resuming, errors."""

import json

import pytest

from rl_core.cli import main
from rl_trainers import read_metrics

SMALL = {
    "mappo": ["--num-envs", 4, "--max-steps", 8, "--frames-per-batch", 32, "--epochs", 2, "--minibatch-size", 16],
    "qmix": ["--frames-per-batch", 25, "--warmup-frames", 50, "--updates-per-batch", 2, "--minibatch-size", 16],
}
SMALL["ippo"] = SMALL["mappo"]


def train(recipe, folder, name, *options):
    small = [*SMALL[recipe], "--hidden", 16, "--eval-episodes", 2, "--no-progress", "--run-dir", folder, "--name", name]
    return main(["train", recipe, *map(str, [*small, *options])])


@pytest.mark.parametrize("recipe", ["mappo", "ippo"])
def test_agents_of_vmas_train_and_leave_their_files(recipe, tmp_path, capsys):
    assert train(recipe, tmp_path, "a", "--env", "vmas:navigation", "--frames", 96) == 0
    files = {file.name for file in (tmp_path / "a").iterdir()}
    assert files == {"config.json", "metrics.csv", "learning_curve.png", "checkpoint"}
    columns = read_metrics(tmp_path / "a" / "metrics.csv")
    assert columns["step"] == [32, 64, 96]
    assert {"train/return", "eval/return_mean", "optim/loss_objective", "optim/loss_critic"} <= set(columns)
    assert columns["eval/length_mean"][-1] == 8  # max_steps
    assert "(mean of agents, 2 episodes)" in capsys.readouterr().out


def test_every_group_gets_a_loss_of_its_own(tmp_path):
    assert train("mappo", tmp_path, "a", "--env", "vmas:simple_tag", "--frames", 64, "--value-norm") == 0
    columns = read_metrics(tmp_path / "a" / "metrics.csv")
    assert {"optim/adversary/loss_objective", "optim/agent/loss_objective"} <= set(columns)


def test_the_team_of_a_game_learns_mixed_values(tmp_path):
    game = ["--env", "pettingzoo:mpe2/simple_spread_v3"]
    assert train("qmix", tmp_path, "a", *game, "--frames", 100, "--annealing-frames", 50) == 0
    columns = read_metrics(tmp_path / "a" / "metrics.csv")
    assert columns["optim/epsilon"][-1] == pytest.approx(0.05) and "optim/loss" in columns
    assert train("qmix", tmp_path, "b", *game, "--frames", 50, "--mixer", "vdn") == 0
    assert json.loads((tmp_path / "b" / "config.json").read_text())["mixer"] == "vdn"


def test_a_resumed_run_goes_on_where_it_stopped(tmp_path):
    assert train("mappo", tmp_path, "a", "--frames", 64) == 0
    assert main(["train", "mappo", "--resume", str(tmp_path / "a"), "--frames", "128", "--no-progress"]) == 0
    assert read_metrics(tmp_path / "a" / "metrics.csv")["step"] == [32, 64, 96, 128]


def test_games_of_several_groups_are_refused_by_qmix(tmp_path, capsys):
    assert train("qmix", tmp_path, "a", "--env", "pettingzoo:mpe2/simple_speaker_listener_v4", "--frames", 50) == 2
    assert "trains one group of agents" in capsys.readouterr().err


def test_an_unknown_scenario_is_named(tmp_path, capsys):
    assert train("mappo", tmp_path, "a", "--env", "vmas:navigaton", "--frames", 32) == 2
    assert "navigation" in capsys.readouterr().err
