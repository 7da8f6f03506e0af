"""Making environments by id, with errors that name the cure."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rl_core import NonTensor
from rl_core.errors import EnvError, PluginNotInstalledError, UnknownNameError
from rl_core.registry.errors_text import close_match
from rl_envs.gym.library import gymnasium
from rl_envs.gym.spaces import observation_leaves

__all__ = ["all_ids", "make_single", "make_vector"]

_FAMILIES = {"ALE": "ale_py", "mo": "mo_gymnasium", "MiniGrid": "minigrid", "BabyAI": "minigrid"}
"""What an id begins with -> the module whose import registers it."""


def all_ids() -> list[str]:
    """Every id that gymnasium knows now."""
    return sorted(gymnasium.registry)


def make_single(name: str, disable_env_checker: bool, kwargs: dict[str, Any]) -> Any:
    """``gymnasium.make``."""
    _refuse_workers(kwargs)
    with _explained(name):
        _register(name)
        return gymnasium.make(name, disable_env_checker=disable_env_checker, **kwargs)


def make_vector(
    name: str,
    num_envs: int,
    mode: str,
    wrappers: Sequence[Callable[[Any], Any]],
    vector_kwargs: dict[str, Any] | None,
    disable_env_checker: bool,
    kwargs: dict[str, Any],
) -> Any:
    """``gymnasium.make_vec`` without autoreset; rows are copied by us, so gymnasium need not."""
    if num_envs < 0:
        raise ValueError(f"num_envs is the number of environments, 0 for a single one; got {num_envs}")
    _refuse_workers(kwargs)
    _register(name)
    given: dict[str, Any] = dict(vector_kwargs or {})
    if mode != "vector_entry_point":
        given = {"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED, "copy": False, **given}
        kwargs = {"disable_env_checker": disable_env_checker, **kwargs}
    with _explained(name):
        if mode == "async" and "shared_memory" not in given:
            given["shared_memory"] = _has_arrays_only(name, disable_env_checker, kwargs)
        return gymnasium.make_vec(
            name,
            num_envs=num_envs,
            vectorization_mode=mode,
            vector_kwargs=given or None,
            wrappers=list(wrappers) or None,
            **kwargs,
        )


def _register(name: str) -> None:
    """Import the package that registers a family of ids, if it is installed: a worker process has imported nothing."""
    module = _FAMILIES.get(name.partition("/")[0]) or _FAMILIES.get(name.partition("-")[0])
    if module is None or name in gymnasium.registry:
        return
    try:
        gymnasium.register_envs(importlib.import_module(module))
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        cure = "pip install 'rl-envs[atari]'" if module == "ale_py" else f"pip install {module.replace('_', '-')}"
        raise PluginNotInstalledError(f"{name} needs {module}, which is not installed: {cure}") from error


def _refuse_workers(kwargs: dict[str, Any]) -> None:
    if "num_workers" in kwargs:
        raise EnvError(
            f"GymEnv makes no worker processes of ours (num_workers={kwargs['num_workers']}); write "
            "ParallelEnv(n, lambda: GymEnv(id)), or GymEnv(id, num_envs=n, vectorization_mode='async')"
        )


def _has_arrays_only(name: str, disable_env_checker: bool, kwargs: dict[str, Any]) -> bool:
    """Whether gymnasium can share the observations' memory; it reads a Text there once and never again."""
    env = gymnasium.make(name, **{"disable_env_checker": disable_env_checker, **kwargs})
    try:
        leaves = observation_leaves(env.observation_space, categorical=False)
        return not any(isinstance(leaf.spec, NonTensor) for leaf in leaves)
    finally:
        env.close()


@contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        yield
    except gymnasium.error.UnregisteredEnv as error:
        ids = all_ids()
        raise UnknownNameError(
            f"gymnasium has no environment {name!r}{close_match(name, ids)}. It knows {len(ids)} ids: "
            "rl_envs.gym.provider.GymProvider().ids(). Those of another package appear when it is imported (import "
            "ale_py; gymnasium.register_envs(ale_py)) or are named 'module:Env-v0'. It said: "
            f"{type(error).__name__}: {error}"
        ) from error
    except gymnasium.error.DependencyNotInstalled as error:
        raise PluginNotInstalledError(f"{name} needs a package that is not installed: {error}") from error
    except ModuleNotFoundError as error:
        if ":" not in name:
            raise
        raise UnknownNameError(
            f"the module {name.partition(':')[0]!r} in the id {name!r} cannot be imported: {error}. Install it, or "
            "leave the module out if the environment is registered"
        ) from error
