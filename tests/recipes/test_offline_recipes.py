"""The recipes that learn from data, through the ``rl`` command: sources of rows, files, resuming, errors."""

import json
import os
import signal

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl_core import hookimpl, hooks, registry
from rl_core.cli import main
from rl_trainers import read_metrics
from rl_trainers.recipes.dt import WindowPolicy
from rl_trainers.recipes.offline import IQL
from rl_trainers.recipes.offline_data import load_rows, with_step_count

SMALL = {
    recipe: ["--updates-per-round", 2, "--minibatch-size", 8, "--hidden", 16] for recipe in ("bc", "iql", "td3_bc")
}
SMALL["cql"] = [*SMALL["bc"], "--num-random", 2]
SMALL["dt"] = ["--updates-per-round", 2, "--windows", 3, "--context", 4, "--width", 8, "--layers", 1]
LOSSES = {"bc": "loss_bc", "iql": "loss_value", "cql": "loss_cql", "td3_bc": "loss_actor", "dt": "loss"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Two episodes of random actions, as a replay buffer wrote them."""
    env = registry.envs.make("gym:Pendulum-v1")
    env.set_seed(0)
    torch.manual_seed(0)
    rows = env.rollout(400, break_when_any_done=False)
    buffer = registry.buffers.get("tensordict_replay")(storage=registry.storages.get("lazy_tensor")(500), batch_size=1)
    buffer.extend(rows)
    folder = tmp_path_factory.mktemp("saved") / "rows"
    buffer.dumps(folder)
    return folder


def train(recipe, folder, name, *options):
    small = [*SMALL[recipe], "--eval-episodes", 2, "--no-progress", "--no-video", "--run-dir", folder, "--name", name]
    return main(["train", recipe, "--env", "gym:Pendulum-v1", *map(str, [*small, *options])])


@pytest.mark.parametrize("recipe", SMALL)
def test_a_recipe_learns_from_a_saved_buffer_and_leaves_its_files(recipe, saved, tmp_path, capsys):
    assert train(recipe, tmp_path, "a", "--frames", 5, "--data", saved) == 0
    files = {file.name for file in (tmp_path / "a").iterdir()}
    assert files == {"config.json", "metrics.csv", "learning_curve.png", "checkpoint"}
    columns = read_metrics(tmp_path / "a" / "metrics.csv")
    assert columns["step"] == [2, 4, 5] and np.isfinite(columns["eval/return_mean"][-1])
    losses = np.array(columns[f"optim/{LOSSES[recipe]}"])
    assert np.isfinite(losses).all()
    assert "2 deterministic episodes" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:the checkpoint .* also holds")
@pytest.mark.parametrize("recipe", ["iql", "td3_bc", "dt"])
def test_a_stopped_and_resumed_run_equals_one_that_never_stopped(recipe, saved, tmp_path, assert_equal_runs):
    class Stop:
        @hookimpl
        def on_update(self, run):
            if run.frames == 4:
                os.kill(os.getpid(), signal.SIGINT)

    options = ["--frames", 8, "--eval-every", 4, "--data", saved]
    assert train(recipe, tmp_path, "straight", *options, "--checkpoint-every", 8) == 0
    with registry.isolated():
        hooks.load().register(Stop())
        assert train(recipe, tmp_path, "stopped", *options) == 130
    assert main(["train", recipe, "--resume", str(tmp_path / "stopped"), "--no-progress"]) == 0
    assert_equal_runs(tmp_path / "straight", tmp_path / "stopped", ("loss",))


@pytest.mark.filterwarnings("ignore:the checkpoint .* also holds")
def test_without_data_a_run_is_made_whose_replay_is_the_dataset(tmp_path):
    options = ["--frames", 2, "--collect-frames", 64]
    assert train("bc", tmp_path, "a", *options) == 0
    behaviour = tmp_path / "a" / "behaviour"
    assert json.loads((behaviour / "config.json").read_text())["frames"] == 64
    rows = load_rows(str(behaviour))
    assert rows.batch_size == (64,) and rows["action"].abs().max() <= 2
    assert train("bc", tmp_path, "b", "--frames", 2, "--data", behaviour) == 0


def test_rows_of_lanes_come_one_lane_after_the_other(tmp_path):
    storage = registry.storages.get("lazy_tensor")(20, ndim=2)
    buffer = registry.buffers.get("tensordict_replay")(storage=storage, batch_size=1)
    buffer.extend(TensorDict({"x": torch.arange(6).reshape(2, 3)}, [2, 3]))
    buffer.dumps(tmp_path / "rows")
    assert load_rows(str(tmp_path / "rows"))["x"].tolist() == [0, 1, 2, 3, 4, 5]


def test_steps_are_counted_from_the_beginning_of_each_episode():
    done = torch.tensor([0, 0, 1, 0, 1, 0]).bool().unsqueeze(-1)
    rows = with_step_count(TensorDict({"next": {"done": done}}, [6]))
    assert rows["step_count"].flatten().tolist() == [0, 1, 2, 0, 1, 0]


@pytest.mark.parametrize("source", ["no/such/folder", "."])
def test_a_source_that_is_none_is_named(source, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train("iql", tmp_path, "a", "--frames", 2, "--data", source) == 2
    assert f"--data {source!r} is neither" in capsys.readouterr().err


def test_discrete_actions_are_refused(saved, tmp_path, capsys):
    code = main(["train", "iql", "--env", "gym:CartPole-v1", "--data", str(saved), "--run-dir", str(tmp_path)])
    assert code == 2 and "takes a vector of bounded numbers" in capsys.readouterr().err


def test_presets_follow_the_environment():
    assert IQL.from_argv([]) == IQL.preset("gym:Pendulum-v1")
    assert IQL.preset("gym:HalfCheetah-v5").collect_frames == 200_000


class Last(torch.nn.Module):
    """Gives back the window's observations, returns, steps and mask as they came."""

    def __init__(self):
        super().__init__()
        self.seen = None

    def forward_tensors(self, observation, action, left, count, mask):
        self.seen = [value.clone() for value in (observation, action, left, count, mask)]
        return (observation[..., :1] * 10,)


def test_the_window_policy_remembers_its_steps_and_what_is_left_of_the_goal():
    actor = Last()
    policy = WindowPolicy(actor, "observation", goal=5.0, scale=2.0, context=3, action_size=1)
    for step, (seen, count, done_so_far) in enumerate([(1.0, 0, 0.0), (2.0, 1, 1.0), (3.0, 0, 0.0)]):
        td = policy(
            TensorDict(
                {
                    "observation": torch.full((1, 2), seen),
                    "step_count": torch.full((1, 1), count),
                    "episode_reward": torch.full((1, 1), done_so_far),
                },
                [1],
            )
        )
        observation, action, left, _, mask = actor.seen
        assert td["action"].item() == 10 * seen and action[0, -1].item() == 0
        assert left[0, -1].item() == (5.0 - done_so_far) / 2
        assert mask[0].tolist() == [[False, False, True], [False, True, True], [False, False, True]][step]
    assert observation[0, :, 0].tolist() == [1, 2, 3] and action[0, :, 0].tolist() == [10, 20, 0]
