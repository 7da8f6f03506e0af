"""The recipes of one agent beside ppo, through the ``rl`` command: files, numbers, presets, resuming, errors."""

import os
import signal
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import nn

from rl_core import hookimpl, hooks, registry
from rl_core.cli import main
from rl_core.specs import Bounded, Categorical, Unbounded
from rl_trainers import Checkpoint, read_metrics
from rl_trainers.recipes.dqn import C51, DQN
from rl_trainers.recipes.offline_data import load_rows
from rl_trainers.recipes.recurrent_ppo import RecurrentPPO
from rl_trainers.recipes.sac import REDQ, SAC
from rl_trainers.recipes.td3 import TD3
from rl_trainers.recipes.unit_actions import env_in_unit_actions, rows_in_env_actions, rows_in_unit_actions

pytestmark = pytest.mark.filterwarnings("ignore:the checkpoint .* also holds")

REPLAY = ["--frames-per-batch", 16, "--updates-per-batch", 3, "--minibatch-size", 8, "--warmup-frames", 32]
SMALL = dict.fromkeys(("dqn", "c51", "qr_dqn", "sac", "redq", "tqc", "crossq", "td3", "ddpg"), REPLAY)
SMALL["redq"] = [*REPLAY, "--num-critics", 3, "--policy-delay", 2]
SMALL["crossq"] = [*REPLAY, "--critic-hidden", 8, "--policy-delay", 2]
SMALL["a2c"] = ["--frames-per-batch", 16, "--num-envs", 2]
SMALL["recurrent_ppo"] = ["--num-envs", 4, "--frames-per-batch", 64, "--minibatch-size", 32, "--epochs", 2]
SMALL["recurrent_ppo"] += ["--lstm-units", 8]

LOSSES = {
    "dqn": "loss",
    "c51": "loss",
    "qr_dqn": "loss",
    "sac": "loss_alpha",
    "redq": "loss_qvalue",
    "tqc": "loss_actor",
    "crossq": "loss_actor",
    "td3": "loss_qvalue",
    "ddpg": "loss_value",
    "a2c": "loss_critic",
    "recurrent_ppo": "loss_objective",
}


def train(recipe, folder, name, *options):
    small = [*SMALL[recipe], "--hidden", 16, 16, "--eval-episodes", 2, "--no-progress", "--no-video"]
    return main(["train", recipe, *map(str, [*small, "--run-dir", folder, "--name", name, *options])])


@pytest.mark.parametrize("recipe", SMALL)
def test_a_recipe_trains_and_leaves_its_files(recipe, tmp_path, capsys):
    assert train(recipe, tmp_path, "a", "--frames", 128) == 0
    files = {file.name for file in (tmp_path / "a").iterdir()}
    assert files == {"config.json", "metrics.csv", "learning_curve.png", "checkpoint"}
    columns = read_metrics(tmp_path / "a" / "metrics.csv")
    assert columns["step"][-1] == 128 and np.isfinite(columns["eval/return_mean"][-1])
    losses = np.array(columns[f"optim/{LOSSES[recipe]}"])
    assert np.isfinite(losses[~np.isnan(losses)]).all() and np.isfinite(losses[-1])
    assert "2 deterministic episodes" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        ["--dueling", "--no-double-dqn"],
        ["--prioritized", "--n-step", 3],
        ["--num-envs", 2, "--n-step", 3],
    ],
    ids=["dueling", "prioritized", "lanes"],
)
def test_q_learning_has_its_options(options, tmp_path):
    assert train("dqn", tmp_path, "a", "--frames", 96, *options) == 0


@pytest.mark.parametrize("recipe", ["c51", "qr_dqn"])
def test_distributions_of_values_may_be_dueling(recipe, tmp_path):
    assert train(recipe, tmp_path, "a", "--frames", 64, "--dueling") == 0


def test_actor_critics_take_prioritised_n_step_replay(tmp_path):
    assert train("sac", tmp_path, "a", "--frames", 96, "--prioritized", "--n-step", 2) == 0
    assert train("td3", tmp_path, "b", "--frames", 96, "--prioritized", "--n-step", 2) == 0


def test_nothing_is_learnt_before_the_warmup_and_then_as_often_as_asked(tmp_path, states):
    assert train("dqn", tmp_path, "a", "--frames", 64, "--warmup-frames", 48) == 0
    columns = read_metrics(tmp_path / "a" / "metrics.csv")
    assert np.isnan(columns["optim/loss"][:2]).all() and np.isfinite(columns["optim/loss"][2:]).all()
    boxes = states(tmp_path / "a", "optimizer")
    assert boxes["optimizer"]["state"][0]["step"] == 2 * 3


def test_the_actor_waits_for_the_critics(tmp_path, states):
    """Of updates 6 .. 11 (of the batches that end at frames 32 and 48) every second one moves the actor."""
    assert train("td3", tmp_path, "a", "--frames", 48, "--policy-delay", 2) == 0
    steps = {float(entry["step"]) for entry in states(tmp_path / "a", "optimizer")["optimizer"]["state"].values()}
    assert steps == {3.0, 6.0}


def test_what_is_stored_are_true_transitions(tmp_path):
    """With one environment too: the last observation of an episode stays under "next"."""
    seen = []

    class Spy:
        @hookimpl
        def on_run_end(self, run):
            seen.append(run.checkpoint.components["buffer"][:])

    with registry.isolated():
        hooks.load().register(Spy())
        assert train("dqn", tmp_path, "a", "--frames", 128, "--warmup-frames", 128) == 0
    (rows,) = seen
    assert len(rows) == 128
    ends = rows["next", "done"].squeeze(-1)
    assert 2 < int(ends.sum()) < 20
    follow = rows["next", "observation"][:-1] == rows["observation"][1:]
    assert follow.all(-1)[~ends[:-1]].all() and not follow.all(-1)[ends[:-1]].any()
    leaning = rows["next", "observation"][:, 2].abs() > 12 * np.pi / 180
    assert torch.equal(leaning, rows["next", "terminated"].squeeze(-1))


RESUMED = {
    "dqn": (["--prioritized", "--n-step", 2], ("loss", "targets", "optimizer", "scheduler", "explorer", "buffer")),
    "qr_dqn": ([], ("loss", "targets", "optimizer", "explorer", "buffer")),
    "sac": ([], ("loss", "optimizer", "buffer")),
    "crossq": ([], ("loss", "optimizer", "buffer")),
    "td3": ([], ("loss", "optimizer", "buffer")),
    "a2c": ([], ("actor", "critic", "optimizer", "scheduler")),
    "recurrent_ppo": ([], ("networks", "optimizer", "scheduler")),
}


@pytest.mark.parametrize("recipe", RESUMED)
def test_a_stopped_and_resumed_run_equals_one_that_never_stopped(recipe, tmp_path, assert_equal_runs):
    class Stop:
        @hookimpl
        def on_update(self, run):
            if run.frames == 192:
                os.kill(os.getpid(), signal.SIGINT)

    more, parts = RESUMED[recipe]
    options = ["--frames", 320, "--eval-every", 64, *more]
    assert train(recipe, tmp_path, "straight", *options, "--checkpoint-every", 320) == 0
    with registry.isolated():
        hooks.load().register(Stop())
        assert train(recipe, tmp_path, "stopped", *options) == 130
    assert main(["train", recipe, "--resume", str(tmp_path / "stopped"), "--no-progress"]) == 0
    names = (*parts, "collector", "rng")
    assert_equal_runs(tmp_path / "straight", tmp_path / "stopped", names)


def test_policies_of_numbers_act_in_minus_one_to_one_and_steps_are_read_back_as_the_environment_takes_them(tmp_path):
    assert train("td3", tmp_path, "a", "--frames", 300, "--warmup-frames", 300) == 0
    folder = tmp_path / "a"
    buffer = TD3.preset("gym:Pendulum-v1").make_buffer()
    Checkpoint(buffer=buffer).load(folder / "checkpoint")
    kept, rows = buffer[:], load_rows(str(folder))
    assert 0.9 < kept["action"].abs().max() <= 1
    torch.testing.assert_close(rows["action"], 2 * kept["action"])
    angle = torch.atan2(rows["observation"][:, 1], rows["observation"][:, 0])
    cost = angle**2 + 0.1 * rows["observation"][:, 2] ** 2 + 0.001 * rows["action"][:, 0] ** 2
    torch.testing.assert_close(rows["next", "reward"][:, 0], -cost, rtol=1e-4, atol=1e-4)  # the torque counts as it was


@pytest.mark.parametrize("recipe", ["sac", "td3"])
def test_unit_actions_reach_the_bounds_of_the_environment(recipe, tmp_path):
    ask = registry.recipes.get(recipe).preset("gym:Pendulum-v1")
    with ExitStack() as stack:
        env, eval_env, _ = ask.make_envs(stack)
        for each in (env, eval_env):
            assert (each.action_spec.low == -1).all() and (each.action_spec.high == 1).all()
        start = env.reset()
        step = env.step(start.clone().set("action", torch.ones(env.action_spec.shape)))
    (_, sine, speed), turned = start["observation"].reshape(3), step["next", "observation"].reshape(3)
    torch.testing.assert_close(turned[2], speed + (15 * sine + 3 * 2.0) * 0.05, rtol=1e-4, atol=1e-4)  # the torque is 2


def test_actions_of_other_kinds_and_ranges_are_brought_to_one_or_left_alone():
    spec = Bounded(torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 1.0]), (2,))
    rows = TensorDict({"action": torch.tensor([[2.0, 0.0], [-1.0, 0.75]])}, [2])
    unit = rows_in_unit_actions(rows, spec)
    assert unit["action"].tolist() == [[1.0, -1.0], [-0.5, 0.5]]
    torch.testing.assert_close(rows_in_env_actions(unit, spec)["action"], rows["action"])
    assert rows["action"][0, 0] == 2  # copies
    for other in (Categorical(3), Unbounded((2,)), Bounded(0, 3, (2,), dtype=torch.int64)):
        assert rows_in_unit_actions(rows, other) is rows
    cart = registry.envs.make("gym:CartPole-v1", categorical_action_encoding=True)
    assert env_in_unit_actions(cart) is cart
    cart.close()


def test_the_environment_brings_its_own_defaults():
    assert DQN.from_argv(["--env", "gym:CartPole-v1"]) == DQN.preset("gym:CartPole-v1")
    assert DQN.from_argv([]).target_update == DQN.preset("gym:CartPole-v1").target_update != DQN(env="x").target_update
    assert (C51.from_argv([]).value_min, C51(env="x").value_min) == (0, -100)
    assert SAC.from_argv([]).env == "gym:Pendulum-v1" and SAC.from_argv([]).learning_rate == 1e-3
    assert REDQ.from_argv([]).updates_per_batch == 5 * REDQ.from_argv([]).frames_per_batch
    assert RecurrentPPO.from_argv([]).env == "native:TMaze"
    assert SAC.from_argv(["--env=gym:HalfCheetah-v5", "--gamma", "0.9"]) == SAC.preset("gym:HalfCheetah-v5", gamma=0.9)


@pytest.mark.parametrize("recipe", ["dqn", "c51", "qr_dqn"])
def test_numbers_as_actions_are_refused_by_q_learning(recipe, tmp_path, capsys):
    assert train(recipe, tmp_path, "a", "--env", "gym:Pendulum-v1", "--frames", 64) == 2
    error = capsys.readouterr().err
    assert f"the {recipe} recipe takes one discrete action; that of gym:Pendulum-v1 is" in error and "sac" in error
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("recipe", ["sac", "td3"])
def test_choices_as_actions_are_refused_by_actor_critics_of_numbers(recipe, tmp_path, capsys):
    assert train(recipe, tmp_path, "a", "--env", "gym:CartPole-v1", "--frames", 64) == 2
    assert "takes a vector of bounded numbers as action; that of gym:CartPole-v1" in capsys.readouterr().err


def test_pixels_are_refused(tmp_path, capsys):
    assert train("a2c", tmp_path, "a", "--env", "native:Catch", "--frames", 64) == 2
    assert "'pixels' of native:Catch is torch.uint8" in capsys.readouterr().err


def test_atoms_the_wrong_way_round_are_refused(tmp_path, capsys):
    assert train("c51", tmp_path, "a", "--frames", 64, "--value-min", 1, "--value-max", 0) == 2
    assert "--value-min below --value-max" in capsys.readouterr().err


def test_a_dueling_network_needs_a_layer_for_its_heads(tmp_path, capsys):
    assert train("dqn", tmp_path, "a", "--frames", 64, "--dueling", "--hidden", 16) == 2
    assert "--dueling needs two hidden layers" in capsys.readouterr().err


def test_a_subclass_that_makes_other_perceptrons_gets_them_for_its_critics():
    class Smooth(SAC):
        def make_mlp(self, outputs, hidden):
            return registry.modules.get("mlp")(out_features=outputs, num_cells=list(hidden), activation_class=nn.SiLU)

    ask = Smooth.preset("gym:Pendulum-v1")
    with ExitStack() as stack:
        env, _, keys = ask.make_envs(stack)
        critic = ask.make_critic(env, keys)
    assert any(isinstance(module, nn.SiLU) for module in critic.modules())
