"""The names that our own distributions offer, so that an absent one is answered with the command that installs it."""

from __future__ import annotations

__all__ = ["requirement_for"]

# Written by tools/known_names.py:
_OFFERED: dict[str, dict[str, str]] = {
    "buffers": {
        "rl-buffers": (
            "ensemble her offline_to_online prioritized_replay replay tensordict_prioritized_replay tensordict_replay"
        ),
        "rl-buffers[ray]": "ray",
    },
    "collectors": {
        "rl-collectors": "async async_batched distributed multi_async multi_sync serial",
        "rl-collectors[ray]": "ray",
        "rl-llm": "llm",
    },
    "datasets": {
        "rl-buffers": "atari atari_dqn",
        "rl-buffers[d4rl]": "d4rl",
        "rl-buffers[minari]": "minari",
        "rl-buffers[parquet]": "lerobot",
    },
    "envs": {
        "rl-envs": "model_based native",
        "rl-envs[brax]": "brax",
        "rl-envs[dm_control]": "dm_control",
        "rl-envs[envpool]": "envpool",
        "rl-envs[gym]": "gym",
        "rl-envs[jumanji]": "jumanji",
        "rl-envs[mujoco_playground]": "mujoco_playground",
        "rl-envs[open_spiel]": "open_spiel",
        "rl-llm[transformers]": "chat",
        "rl-marl[pettingzoo]": "pettingzoo",
        "rl-marl[vmas]": "vmas",
    },
    "estimators": {
        "rl-marl": "multi_agent_gae",
        "rl-objectives": "gae retrace td0 td1 td_lambda vtrace",
    },
    "loggers": {
        "rl-trainers": "csv",
        "rl-trainers[tensorboard]": "tensorboard",
    },
    "losses": {
        "rl-llm": "grpo sft",
        "rl-marl": "ippo mappo qmix",
        "rl-objectives": (
            "a2c act awac bc cql crossq ddpg diffusion_bc discrete_cql discrete_iql discrete_sac distributional_dqn "
            "dqn dreamer_actor dreamer_model dreamer_v3_actor dreamer_v3_model dreamer_v3_value dreamer_value dt gail "
            "impala iql iqn kl_pen_ppo online_dt ppo qr_dqn redq reinforce rnd sac sac_v1 td3 td3_bc tqc"
        ),
    },
    "modules": {
        "rl-llm": "char_tokenizer tiny_llama transformers_wrapper vllm_wrapper",
        "rl-marl": (
            "build_group_actor build_group_critic build_group_q_actor multi_agent_mlp pop_art_value_norm qmixer "
            "running_value_norm vdn_mixer"
        ),
        "rl-modules": (
            "act act_actor actor actor_critic_operator actor_value_operator additive_gaussian batch_renorm batched_mlp "
            "build_actor cem_planner decision_transformer decision_transformer_inference diffusion_actor "
            "distributional_q_value_actor dreamer_actor dreamer_obs_decoder dreamer_obs_encoder dreamer_v3_block_gru "
            "dreamer_v3_discrete_actor dreamer_v3_image_decoder dreamer_v3_image_encoder dreamer_v3_mlp dt_actor "
            "dueling_cnn dueling_mlp egreedy gru gsde implicit_quantile_actor implicit_quantile_net lstm mcts mlp "
            "mppi_planner multi_step_actor noisy_linear online_dt_actor ornstein_uhlenbeck probabilistic_actor "
            "q_value_actor quantile_q_value_actor rnd rssm_belief_carrier rssm_posterior rssm_posterior_v3 rssm_prior "
            "rssm_prior_v3 rssm_rollout rssm_rollout_v3 rssm_state_estimator_v3 sequential symexp_two_hot tanh "
            "temporal_ensemble value_operator world_model_wrapper"
        ),
    },
    "recipes": {
        "rl-trainers[llm]": "grpo sft",
        "rl-trainers[marl]": "ippo mappo qmix",
        "rl-trainers[recipes]": (
            "a2c bc c51 cql crossq ddpg dqn dreamer_v3 dt iql ppo qr_dqn recurrent_ppo redq sac td3 td3_bc tqc"
        ),
    },
    "samplers": {
        "rl-buffers": (
            "consuming prioritized prioritized_slices random slices slices_without_replacement staleness "
            "without_replacement"
        ),
    },
    "storages": {
        "rl-buffers": "compressed_list lazy_stack lazy_tensor list memmap tensor trajectory",
    },
    "target_updates": {
        "rl-objectives": "hard soft",
    },
    "transforms": {
        "rl-buffers": "hindsight multi_step reward2go",
        "rl-envs": (
            "ActionDiscretizer ActionMask ActionScaling AutoResetTransform BatchSizeTransform BinarizeReward "
            "BurnInTransform CatFrames CatTensors CenterCrop ClipTransform ConditionalPolicySwitch ConditionalSkip "
            "Crop DTypeCastTransform DeviceCastTransform DiscreteActionProjection DoubleToFloat EndOfLifeTransform "
            "ExcludeTransform ExpandAs FiniteTensorDictCheck FlattenAction FlattenObservation FlattenTensorDict "
            "FrameSkipTransform GrayScale Hash InitTracker LineariseRewards MeanActionSelector ModuleTransform "
            "MultiAction NoopResetEnv ObservationNorm PermuteTransform PinMemoryTransform PixelRenderTransform "
            "PolicyAgeFilter RNDTransform RandomCropTensorDict RandomTruncationTransform RemoveEmptySpecs "
            "RenameTransform Resize RewardClipping RewardScaling RewardSum SelectTransform SignTransform "
            "SqueezeTransform Stack StepCounter SuccessReward TargetReturn TensorDictPrimer TensorDictRecorder "
            "TerminateTransform TimeMaxPool Timer ToTensorImage Tokenizer TrajCounter UnaryTransform "
            "UnsqueezeTransform VecNorm VecNormV2 VideoRecorder gSDENoise"
        ),
        "rl-llm": "MCAdvantage PythonInterpreter RewardFunctions SimpleToolTransform",
    },
    "weight_syncs": {
        "rl-collectors": "distributed none pipe ray shared_memory",
        "rl-llm": "module vllm",
    },
    "writers": {
        "rl-buffers": "immutable max_value round_robin",
    },
}
# End of what is written.


def requirement_for(group: str, name: str) -> str | None:
    """What to ``pip install`` for the name, None where no distribution of ours offers it.

    >>> requirement_for("envs", "gym")
    'rl-envs[gym]'
    """
    offers = _OFFERED.get(group, {}).items()
    return next((requirement for requirement, names in offers if name in names.split()), None)
