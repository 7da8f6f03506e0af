"""The provider ``gym`` of the registry: ``registry.envs.make("gym:CartPole-v1")``."""

from __future__ import annotations

from typing import Any

__all__ = ["GymProvider"]


class GymProvider:
    """Makes :class:`rl_envs.GymEnv` by id.

    Example:
        >>> GymProvider().make("CartPole-v1", num_envs=2).batch_size
        torch.Size([2])
    """

    def make(self, id: str, **kwargs: Any) -> Any:
        """``GymEnv(id, **kwargs)``: ``num_envs``, ``frame_skip``, ``from_pixels`` ...; the rest goes to gymnasium."""
        from rl_envs.gym.env import GymEnv

        return GymEnv(id, **kwargs)

    def publish(self, id: str, make: Any, **kwargs: Any) -> None:
        """Register an environment of ours with gymnasium; see :func:`rl_envs.register_gym`."""
        from rl_envs.gym.publish import register_gym

        register_gym(id, make, **kwargs)

    def ids(self) -> list[str]:
        """Every id that is registered with gymnasium."""
        from rl_envs.gym.making import all_ids

        return all_ids()

    def describe(self, id: str) -> dict[str, Any]:
        """The spaces, the specs, the time limit and the reward threshold; the environment is made and closed for it."""
        from rl_envs.gym.env import GymEnv

        env = GymEnv(id)
        try:
            spec = env._env.spec
            return {
                "id": spec.id,
                "observation space": str(env._env.observation_space),
                "action space": str(env._env.action_space),
                "observation spec": str(env.observation_spec),
                "action spec": str(env.action_spec),
                "max episode steps": spec.max_episode_steps,
                "reward threshold": spec.reward_threshold,
                "render modes": list(env._env.metadata.get("render_modes", [])),
            }
        finally:
            env.close()
