"""The names that our own distributions offer, so that an absent one is answered with the command that installs it."""

from __future__ import annotations

__all__ = ["requirement_for"]

_KNOWN: dict[str, dict[str, str]] = {
    "envs": {
        "gym": "rl-envs[gym]",
        "native": "rl-envs",
        "pettingzoo": "rl-marl[pettingzoo]",
        "vmas": "rl-marl[vmas]",
        "chat": "rl-llm[transformers]",
    },
    "transforms": dict.fromkeys(
        (
            "StepCounter",
            "RewardSum",
            "InitTracker",
            "TensorDictPrimer",
            "DoubleToFloat",
            "ObservationNorm",
            "FiniteTensorDictCheck",
        ),
        "rl-envs",
    ),
    "modules": dict.fromkeys(
        (
            "mlp",
            "build_actor",
            "probabilistic_actor",
            "value_operator",
            "actor_value_operator",
            "egreedy",
            "lstm",
            "gru",
            "additive_gaussian",
            "ornstein_uhlenbeck",
            "gsde",
            "actor_critic_operator",
            "multi_step_actor",
            "cem_planner",
            "mppi_planner",
            "mcts",
        ),
        "rl-modules",
    )
    | dict.fromkeys(
        (
            "multi_agent_mlp",
            "build_group_actor",
            "build_group_critic",
            "build_group_q_actor",
            "qmixer",
            "vdn_mixer",
            "pop_art_value_norm",
            "running_value_norm",
        ),
        "rl-marl",
    ),
    "losses": {"ppo": "rl-objectives"}
    | dict.fromkeys(("mappo", "ippo", "qmix"), "rl-marl")
    | dict.fromkeys(("grpo", "sft"), "rl-llm"),
    "estimators": dict.fromkeys(("gae", "td0", "td1", "td_lambda"), "rl-objectives") | {"multi_agent_gae": "rl-marl"},
    "collectors": {"serial": "rl-collectors"},
    "storages": dict.fromkeys(("lazy_tensor", "list"), "rl-buffers"),
    "samplers": dict.fromkeys(("random", "without_replacement", "prioritized"), "rl-buffers"),
    "writers": {"round_robin": "rl-buffers"},
    "buffers": dict.fromkeys(
        ("replay", "tensordict_replay", "prioritized_replay", "tensordict_prioritized_replay"), "rl-buffers"
    ),
    "target_updates": {"soft": "rl-objectives", "hard": "rl-objectives"},
    "recipes": {"ppo": "rl-trainers[recipes]"} | dict.fromkeys(("mappo", "ippo", "qmix"), "rl-trainers[marl]"),
    "loggers": {"csv": "rl-trainers", "tensorboard": "rl-trainers[tensorboard]"},
}


def requirement_for(group: str, name: str) -> str | None:
    """What to ``pip install`` for the name, None where no distribution of ours offers it.

    >>> requirement_for("envs", "gym")
    'rl-envs[gym]'
    """
    return _KNOWN.get(group, {}).get(name)
