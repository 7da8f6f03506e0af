"""``JumanjiWrapper`` and ``JumanjiEnv``: Jumanji's environments, with their action masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rl_core import Bounded, Categorical, MultiCategorical, MultiOneHot, OneHot, TensorSpec, Unbounded
from rl_core.errors import EnvError
from rl_core.keys import Key, as_key
from rl_core.registry import missing_extra, unknown_id
from rl_envs.jax_envs.env import JaxEnv, Outcome, by_path
from rl_envs.jax_envs.library import jax, jnp

__all__ = ["JumanjiEnv", "JumanjiWrapper"]


class JumanjiWrapper(JaxEnv):
    """An environment of Jumanji's interface, without wrappers that batch or reset.

    The observation's fields are keys at the root, nested where they are; "action_mask" is respected by random actions.
    An episode that ends with the discount 0 is terminated, any other end is a truncation.

    Args:
        env: the environment.
        categorical_action_encoding: write choices as numbers instead of one-hot vectors.
        num_envs: as in :class:`JaxEnv`.
        jit: as in :class:`JaxEnv`.
        device: as in :class:`JaxEnv`.

    Bonnet et al., 2024, Jumanji: a Diverse Suite of Scalable Reinforcement Learning Environments in JAX,
    arXiv:2306.09884.
    """

    def __init__(
        self,
        env: Any,
        *,
        categorical_action_encoding: bool = False,
        num_envs: int = 0,
        jit: bool = True,
        device: torch.device | str | None = None,
    ) -> None:
        self._env = env
        super().__init__(num_envs=num_envs, jit=jit, device=device)
        self.name = type(getattr(env, "unwrapped", env)).__name__
        shapes = jax.eval_shape(env.reset, jax.random.PRNGKey(0))[1]
        if shapes.reward.ndim:
            raise EnvError(f"{self.name} has rewards of shape {shapes.reward.shape}; one number is expected")
        observations: dict[Key, TensorSpec] = {}
        for path, leaf in by_path(shapes.observation):
            observations[as_key(path or ("observation",))] = _array_spec(leaf)
        self.declare(observations, _action_spec(self.name, env.action_spec, categorical_action_encoding))

    def begin(self, key: Any) -> Outcome:
        """A first observation."""
        state, now = self._env.reset(key)
        never = jnp.zeros((), bool)
        return Outcome(state, now.observation, now.reward, never, never)

    def advance(self, state: Any, action: Any) -> Outcome:
        """One step."""
        state, now = self._env.step(state, action)
        last, ended = now.last(), now.discount == 0
        return Outcome(state, now.observation, now.reward, last & ended, last & ~ended)


class JumanjiEnv(JumanjiWrapper):
    """One of Jumanji's registered environments.

    Args:
        env_name: the id, for example "Snake-v1".
        env_kwargs: for ``jumanji.make``.
        **wrapper_kwargs: as of :class:`JumanjiWrapper`.

    Raises:
        UnknownNameError: no such environment.
        PluginNotInstalledError: Jumanji is not installed.
    """

    def __init__(self, env_name: str, *, env_kwargs: dict[str, Any] | None = None, **wrapper_kwargs: Any) -> None:
        jumanji = jumanji_module()
        known = sorted(jumanji.registered_environments())
        if env_name not in known:
            raise unknown_id("jumanji", env_name, known)
        super().__init__(jumanji.make(env_name, **(env_kwargs or {})), **wrapper_kwargs)
        self.name = env_name


def jumanji_module() -> Any:
    """Jumanji.

    Raises:
        PluginNotInstalledError: it is not installed.
    """
    try:
        import jumanji
    except ModuleNotFoundError as error:
        if error.name != "jumanji":
            raise
        raise missing_extra("jumanji", "rl-envs", "jumanji") from error
    return jumanji


_DTYPES = {"f": torch.float32, "i": torch.int32, "u": torch.uint8, "b": torch.bool}


def _array_spec(leaf: Any) -> TensorSpec:
    kind = np.dtype(leaf.dtype)
    dtype = torch.from_numpy(np.empty(0, dtype=kind)).dtype if kind.kind in "iuf" else _DTYPES[kind.kind]
    if dtype == torch.bool:
        return Categorical(2, shape=leaf.shape, dtype=dtype)
    return Unbounded(shape=leaf.shape, dtype=dtype)


def _action_spec(name: str, declared: Any, categorical: bool) -> TensorSpec:
    kind = type(declared).__name__
    if kind == "DiscreteArray":
        count = int(declared.num_values)
        return Categorical(count) if categorical else OneHot(count, dtype=torch.int64)
    if kind == "MultiDiscreteArray":
        nvec = torch.as_tensor(np.array(declared.num_values), dtype=torch.int64)
        if categorical:
            return MultiCategorical(nvec, shape=nvec.shape, dtype=torch.int64)
        return MultiOneHot(nvec, dtype=torch.int64)
    if kind == "BoundedArray":
        low, high = (np.broadcast_to(np.array(bound), declared.shape) for bound in (declared.minimum, declared.maximum))
        return Bounded(low=torch.tensor(low), high=torch.tensor(high), shape=declared.shape, dtype=torch.float32)
    raise EnvError(f"{name} has an action of the kind {kind}, which is not known here; wrap it into an array")
