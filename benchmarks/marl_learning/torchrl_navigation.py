"""TorchRL's navigation tutorial as one run: MAPPO on VMAS navigation, its learning curve to a CSV.

    python benchmarks/marl_learning/torchrl_navigation.py --frames 60000 --seed 0 --out run.csv

Runs in the environment of the peers (torchrl 0.14.1). The hyperparameters are the tutorial's, which our recipe has too;
the number of agents is the scenario's own.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from pathlib import Path
from typing import Any

import torch
from tensordict.nn import TensorDictModule, set_composite_lp_aggregate
from tensordict.nn.distributions import NormalParamExtractor
from torch import nn
from torchrl.collectors import Collector
from torchrl.data.replay_buffers import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
from torchrl.envs import RewardSum, TransformedEnv
from torchrl.envs.libs.vmas import VmasEnv
from torchrl.modules import MultiAgentMLP, ProbabilisticActor, TanhNormal
from torchrl.objectives import ClipPPOLoss, ValueEstimators

FRAMES_PER_BATCH, MAX_STEPS, EPOCHS, MINIBATCH = 6000, 100, 30, 400


def make_env(n_agents: int, seed: int) -> TransformedEnv:
    """Sixty environments of navigation that step together, with the return so far of each agent."""
    env = VmasEnv(
        scenario="navigation",
        num_envs=FRAMES_PER_BATCH // MAX_STEPS,
        continuous_actions=True,
        max_steps=MAX_STEPS,
        n_agents=n_agents,
        seed=seed,
    )
    return TransformedEnv(env, RewardSum(in_keys=[env.reward_key], out_keys=[("agents", "episode_reward")]))


def make_networks(env: TransformedEnv, n_agents: int, centralised: bool) -> tuple[ProbabilisticActor, TensorDictModule]:
    """The agents' shared policy and their shared critic."""
    features = env.observation_spec["agents", "observation"].shape[-1]
    action_spec = env.full_action_spec_unbatched[env.action_key]
    shape: dict[str, Any] = {"share_params": True, "depth": 2, "num_cells": 256, "activation_class": nn.Tanh}
    net = nn.Sequential(
        MultiAgentMLP(features, 2 * action_spec.shape[-1], n_agents, centralised=False, **shape), NormalParamExtractor()
    )
    policy = ProbabilisticActor(
        TensorDictModule(net, [("agents", "observation")], [("agents", "loc"), ("agents", "scale")]),
        spec=env.full_action_spec_unbatched,
        in_keys=[("agents", "loc"), ("agents", "scale")],
        out_keys=[env.action_key],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": action_spec.space.low, "high": action_spec.space.high},
        return_log_prob=True,
    )
    critic_net = MultiAgentMLP(features, 1, n_agents, centralised=centralised, **shape)
    return policy, TensorDictModule(critic_net, [("agents", "observation")], [("agents", "state_value")])


def train(frames: int, seed: int, n_agents: int, centralised: bool) -> list[tuple[int, float]]:
    """Frames seen and the mean return, over agents and episodes, of the batch that ended there."""
    torch.manual_seed(seed)
    env = make_env(n_agents, seed)
    policy, critic = make_networks(env, n_agents, centralised)
    collector = Collector(env, policy, frames_per_batch=FRAMES_PER_BATCH, total_frames=frames)
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(FRAMES_PER_BATCH), sampler=SamplerWithoutReplacement(), batch_size=MINIBATCH
    )
    loss_module = ClipPPOLoss(policy, critic, clip_epsilon=0.2, entropy_coeff=1e-4, normalize_advantage=False)
    loss_module.set_keys(
        reward=env.reward_key,
        action=env.action_key,
        sample_log_prob=("agents", "action_log_prob"),
        value=("agents", "state_value"),
        done=("agents", "done"),
        terminated=("agents", "terminated"),
    )
    loss_module.make_value_estimator(ValueEstimators.GAE, gamma=0.99, lmbda=0.9)
    optimizer = torch.optim.Adam(loss_module.parameters(), 3e-4)
    curve: list[tuple[int, float]] = []
    for batch in collector:
        shape = batch["next", "agents", "reward"].shape
        for end in ("done", "terminated"):
            batch["next", "agents", end] = batch["next", end].unsqueeze(-1).expand(shape)
        with torch.no_grad():
            loss_module.value_estimator(
                batch,
                params=loss_module.critic_network_params,
                target_params=loss_module.target_critic_network_params,
            )
        buffer.extend(batch.reshape(-1))
        for _ in range(EPOCHS * (FRAMES_PER_BATCH // MINIBATCH)):
            values = loss_module(buffer.sample())
            (values["loss_objective"] + values["loss_critic"] + values["loss_entropy"]).backward()
            nn.utils.clip_grad_norm_(loss_module.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        collector.update_policy_weights_()
        returns = batch["next", "agents", "episode_reward"][batch["next", "agents", "done"]]
        curve.append(((len(curve) + 1) * FRAMES_PER_BATCH, returns.double().mean().item()))
        print(*curve[-1], flush=True)
    collector.shutdown()
    return curve


def main() -> None:
    """One run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n-agents", type=int, default=4)
    parser.add_argument("--algorithm", choices=["mappo", "ippo"], default="mappo")
    parser.add_argument("--out", type=Path, required=True, metavar="CSV")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    set_composite_lp_aggregate(False).set()
    curve = train(options.frames, options.seed, options.n_agents, options.algorithm == "mappo")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("frames", "return"), *curve])


if __name__ == "__main__":
    main()
