"""The networks of the recipe ``crossq``: batch renormalisation before each linear layer, the inputs' included."""

from __future__ import annotations

import pytest
from torch import nn

from rl_core import registry
from rl_core.cli import main

pytestmark = pytest.mark.filterwarnings("ignore:the checkpoint .* also holds")

NORM = registry.modules.get("batch_renorm")


def test_every_linear_layer_reads_normalised_features():
    recipe = registry.recipes.get("crossq")(env="gym:Pendulum-v1", critic_hidden=(8, 16))
    env = registry.envs.make(recipe.env)
    critic, policy_net = recipe.make_critic(env, ["observation"]), recipe.make_net(3, 2, (8, 16))
    env.close()
    for net, inputs in ((critic, 3 + 1), (policy_net, 3)):
        layers = [module for module in net.modules() if isinstance(module, (NORM, nn.Linear, nn.ReLU))]
        kinds = [NORM, nn.Linear, nn.ReLU, NORM, nn.Linear, nn.ReLU, NORM, nn.Linear]
        assert [type(layer) for layer in layers] == kinds
        assert [layer.num_features for layer in layers if isinstance(layer, NORM)] == [inputs, 8, 16]


def test_the_policys_moments_follow_its_own_updates_and_not_what_it_does_between_them(tmp_path, states):
    rounds = ["--frames", 80, "--frames-per-batch", 16, "--updates-per-batch", 4, "--warmup-frames", 32]
    sizes = ["--minibatch-size", 8, "--hidden", 16, "--critic-hidden", 8, "--policy-delay", 2]
    quiet = ["--eval-episodes", 2, "--no-video", "--no-progress", "--run-dir", tmp_path, "--name", "a"]
    assert main(["train", "crossq", *map(str, [*rounds, *sizes, *quiet])]) == 0
    state = states(tmp_path / "a", "loss")["loss"]
    counts = {name: int(value) for name, value in state.items() if name.endswith("num_batches_tracked")}
    policy = [count for name, count in counts.items() if name.startswith("actor_network")]
    critics = [count for name, count in counts.items() if name.startswith("qvalue_network")]
    # The rounds after 32, 48, 64 and 80 frames make 4 updates each of the critics and 2 of the policy.
    assert policy == [8, 8] and set(critics) == {16}
