"""TorchRL: Collector over its VmasEnv, with the tutorial's policy of MultiAgentMLP and TanhNormal."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from tensordict.nn import TensorDictModule, set_composite_lp_aggregate
from tensordict.nn.distributions import NormalParamExtractor
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs.libs.vmas import VmasEnv
from torchrl.modules import MultiAgentMLP, ProbabilisticActor, TanhNormal


def build(n_envs: int, n_agents: int, steps: int) -> Callable[[], object]:
    """One repetition collects ``steps`` steps of ``n_envs`` environments, an episode of each."""
    warnings.simplefilter("ignore")
    set_composite_lp_aggregate(False).set()
    env = VmasEnv("navigation", num_envs=n_envs, max_steps=steps, n_agents=n_agents, seed=0)
    features = env.observation_spec["agents", "observation"].shape[-1]
    action_spec = env.full_action_spec_unbatched[env.action_key]
    net = MultiAgentMLP(
        features,
        2 * action_spec.shape[-1],
        n_agents,
        centralized=False,
        share_params=True,
        depth=2,
        num_cells=256,
        activation_class=nn.Tanh,
    )
    policy = ProbabilisticActor(
        TensorDictModule(
            nn.Sequential(net, NormalParamExtractor()),
            in_keys=[("agents", "observation")],
            out_keys=[("agents", "loc"), ("agents", "scale")],
        ),
        spec=env.full_action_spec_unbatched,
        in_keys=[("agents", "loc"), ("agents", "scale")],
        out_keys=[env.action_key],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": action_spec.space.low, "high": action_spec.space.high},
        return_log_prob=True,
    )
    batches = iter(Collector(env, policy, frames_per_batch=steps * n_envs, total_frames=-1))
    return lambda: next(batches)
