"""Policies of bare tensors: their keys are found in an environment that is made for it, and closed."""

from __future__ import annotations

from functools import cached_property
from typing import Any, cast

from rl_collectors.making import made_env
from rl_core.envs.base import EnvBase
from rl_core.keys import Key
from rl_core.policy import wrap_policy

__all__ = ["bound_to"]


def bound_to(create_env_fn: Any, policy: Any) -> Any:
    """The policy as a function of a TensorDict; see :func:`rl_core.policy.wrap_policy`.

    Args:
        create_env_fn: makes the environment, which is made only where the policy does not say its keys itself.
        policy: any policy.
    """
    return wrap_policy(policy, cast("EnvBase", _EnvKeys(create_env_fn)))


class _BaseKeys:
    def __init__(self, observation_keys: list[Key]) -> None:
        self.observation_keys = observation_keys


class _EnvKeys:
    """What ``wrap_policy`` asks an environment for."""

    def __init__(self, create_env_fn: Any) -> None:
        self.create_env_fn = create_env_fn

    @cached_property
    def _found(self) -> tuple[list[Key], list[Key], list[Key]]:
        env, owned = made_env(self.create_env_fn, {})
        try:
            return list(env.observation_keys), list(env.base_env.observation_keys), list(env.action_keys)
        finally:
            if owned:
                env.close()

    @property
    def observation_keys(self) -> list[Key]:
        return self._found[0]

    @property
    def base_env(self) -> _BaseKeys:
        return _BaseKeys(self._found[1])

    @property
    def action_keys(self) -> list[Key]:
        return self._found[2]
