"""The critic of the recipe ``crossq``: batch renormalisation before each linear layer, the inputs' included."""

from __future__ import annotations

from torch import nn

from rl_core import registry


def test_every_linear_layer_reads_normalised_features():
    recipe = registry.recipes.get("crossq")(env="gym:Pendulum-v1", critic_hidden=(8, 16))
    env = registry.envs.make(recipe.env)
    critic = recipe.make_critic(env, ["observation"])
    env.close()
    norm = registry.modules.get("batch_renorm")
    layers = [module for module in critic.modules() if isinstance(module, (norm, nn.Linear, nn.ReLU))]
    assert [type(layer) for layer in layers] == [norm, nn.Linear, nn.ReLU, norm, nn.Linear, nn.ReLU, norm, nn.Linear]
    assert [layer.num_features for layer in layers if isinstance(layer, norm)] == [3 + 1, 8, 16]
