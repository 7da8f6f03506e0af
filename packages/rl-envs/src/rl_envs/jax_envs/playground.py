"""``MujocoPlaygroundEnv``: MuJoCo Playground's environments, which MJX steps."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from rl_core.registry import missing_extra, unknown_id
from rl_envs.jax_envs.brax import BraxWrapper

__all__ = ["MujocoPlaygroundEnv", "playground_registry"]


class MujocoPlaygroundEnv(BraxWrapper):
    """One of MuJoCo Playground's environments by its name.

    Their interface is Brax's, so an environment that was made elsewhere is wrapped by
    :class:`rl_envs.jax_envs.brax.BraxWrapper`. Robots (locomotion, manipulation) are downloaded by Playground itself
    when the first of them is made; the environments of the DeepMind Control Suite need no download.

    Args:
        env_name: the name, for example "CartpoleBalance".
        config: its configuration, ``ml_collections.ConfigDict``; by default Playground's.
        config_overrides: fields of the configuration to change, for example ``{"impl": "jax"}`` for MJX's own physics
            where the default is Warp's.
        episode_length: frames after which an episode is cut (truncated); by default the configuration's.
        frame_skip: frames per step; by default the configuration's ``action_repeat``.
        num_envs: as in :class:`rl_envs.jax_envs.env.JaxEnv`.
        jit: as in :class:`rl_envs.jax_envs.env.JaxEnv`.
        device: as in :class:`rl_envs.jax_envs.env.JaxEnv`.

    Raises:
        UnknownNameError: no such environment.
        PluginNotInstalledError: MuJoCo Playground is not installed.

    Zakka et al., 2025, MuJoCo Playground, arXiv:2502.08844.
    """

    def __init__(
        self,
        env_name: str,
        *,
        config: Any = None,
        config_overrides: dict[str, Any] | None = None,
        episode_length: int | None = None,
        frame_skip: int | None = None,
        num_envs: int = 0,
        jit: bool = True,
        device: torch.device | str | None = None,
    ) -> None:
        registry = playground_registry()
        if env_name not in registry.ALL_ENVS:
            raise unknown_id("mujoco_playground", env_name, sorted(registry.ALL_ENVS))
        chosen = registry.get_default_config(env_name) if config is None else config
        env = registry.load(env_name, config=chosen, config_overrides=config_overrides)
        overridden = {**chosen.to_dict(), **(config_overrides or {})}
        super().__init__(
            env,
            episode_length=overridden["episode_length"] if episode_length is None else episode_length,
            frame_skip=overridden["action_repeat"] if frame_skip is None else frame_skip,
            num_envs=num_envs,
            jit=jit,
            device=device,
        )
        self.name = env_name


def playground_registry() -> Any:
    """Playground's registry of environments.

    Raises:
        PluginNotInstalledError: MuJoCo Playground is not installed.
    """
    try:
        return importlib.import_module("mujoco_playground").registry
    except ModuleNotFoundError as error:
        if error.name != "mujoco_playground":
            raise
        raise missing_extra("mujoco_playground", "rl-envs", "mujoco_playground") from error
