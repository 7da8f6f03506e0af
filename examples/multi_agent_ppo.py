"""Multi-agent PPO on VMAS navigation: the script that the field knows, with our imports."""

import sys

import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl_buffers import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
from rl_collectors import SyncDataCollector
from rl_core import TransformedEnv, check_env_specs
from rl_envs import RewardSum
from rl_marl import MultiAgentMLP, VmasEnv
from rl_modules import NormalParamExtractor, ProbabilisticActor, TanhNormal
from rl_objectives import ClipPPOLoss, ValueEstimators

# Sampling
frames_per_batch = 6_000  # steps of a batch, over all environments
total_frames = int(sys.argv[1]) if len(sys.argv) > 1 else 5 * frames_per_batch
max_steps = 100  # an episode's length
num_vmas_envs = frames_per_batch // max_steps
n_agents = 3

# Training
num_epochs = 30
minibatch_size = 400
lr = 3e-4
max_grad_norm = 1.0

# PPO
clip_epsilon = 0.2
gamma = 0.99
lmbda = 0.9
entropy_eps = 1e-4
share_parameters_policy = True
share_parameters_critic = True
mappo = True  # False: IPPO, each agent's critic sees what the agent sees

torch.manual_seed(0)

env = VmasEnv(
    scenario="navigation",
    num_envs=num_vmas_envs,
    continuous_actions=True,
    max_steps=max_steps,
    n_agents=n_agents,  # for the scenario
)
env = TransformedEnv(env, RewardSum(in_keys=[env.reward_key], out_keys=[("agents", "episode_reward")]))
check_env_specs(env)

policy_net = nn.Sequential(
    MultiAgentMLP(
        n_agent_inputs=env.observation_spec["agents", "observation"].shape[-1],
        n_agent_outputs=2 * env.action_spec.shape[-1],  # loc and scale
        n_agents=n_agents,
        centralised=False,  # an agent acts on its own observation
        share_params=share_parameters_policy,
        depth=2,
        num_cells=256,
        activation_class=nn.Tanh,
    ),
    NormalParamExtractor(),
)
policy_module = TensorDictModule(
    policy_net,
    in_keys=[("agents", "observation")],
    out_keys=[("agents", "loc"), ("agents", "scale")],
)
policy = ProbabilisticActor(
    module=policy_module,
    spec=env.action_spec_unbatched,
    in_keys=[("agents", "loc"), ("agents", "scale")],
    out_keys=[env.action_key],
    distribution_class=TanhNormal,
    distribution_kwargs={
        "low": env.full_action_spec_unbatched[env.action_key].space.low,
        "high": env.full_action_spec_unbatched[env.action_key].space.high,
    },
    return_log_prob=True,
)
critic = TensorDictModule(
    MultiAgentMLP(
        n_agent_inputs=env.observation_spec["agents", "observation"].shape[-1],
        n_agent_outputs=1,
        n_agents=n_agents,
        centralised=mappo,
        share_params=share_parameters_critic,
        depth=2,
        num_cells=256,
        activation_class=nn.Tanh,
    ),
    in_keys=[("agents", "observation")],
    out_keys=[("agents", "state_value")],
)

collector = SyncDataCollector(env, policy, frames_per_batch=frames_per_batch, total_frames=total_frames)
replay_buffer = ReplayBuffer(
    storage=LazyTensorStorage(frames_per_batch),
    sampler=SamplerWithoutReplacement(),
    batch_size=minibatch_size,
)
loss_module = ClipPPOLoss(
    actor_network=policy,
    critic_network=critic,
    clip_epsilon=clip_epsilon,
    entropy_coeff=entropy_eps,
    normalize_advantage=False,
)
loss_module.set_keys(
    reward=env.reward_key,
    action=env.action_key,
    sample_log_prob=("agents", "action_log_prob"),
    value=("agents", "state_value"),
    done=("agents", "done"),
    terminated=("agents", "terminated"),
)
loss_module.make_value_estimator(ValueEstimators.GAE, gamma=gamma, lmbda=lmbda)
GAE = loss_module.value_estimator
optim = torch.optim.Adam(loss_module.parameters(), lr)

for iteration, tensordict_data in enumerate(collector):
    reward_shape = tensordict_data["next", "agents", "reward"].shape
    for end in ("done", "terminated"):  # of the team: each agent's from here on
        flags = tensordict_data["next", end].unsqueeze(-1).expand(reward_shape)
        tensordict_data["next", "agents", end] = flags
    GAE(tensordict_data)  # writes the advantage and the value target
    replay_buffer.extend(tensordict_data.reshape(-1))

    for _ in range(num_epochs):
        for _ in range(frames_per_batch // minibatch_size):
            loss_vals = loss_module(replay_buffer.sample())
            loss_value = loss_vals["loss_objective"] + loss_vals["loss_critic"] + loss_vals["loss_entropy"]
            loss_value.backward()
            nn.utils.clip_grad_norm_(loss_module.parameters(), max_grad_norm)
            optim.step()
            optim.zero_grad()
    collector.update_policy_weights_()

    done = tensordict_data["next", "agents", "done"]
    episode_return = tensordict_data["next", "agents", "episode_reward"][done].mean().item()
    print(f"iteration {iteration + 1}: episode return {episode_return: .3f}", flush=True)
