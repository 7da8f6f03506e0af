"""``PoolVector``: a pool of EnvPool as a gymnasium vector environment whose rows are reset by mask.

EnvPool spends a step of its own on the reset of a row that ended. It also resets rows that it is told to, at once;
since an ended row is always reset that way before its next step, no step is lost.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_core.errors import EnvError
from rl_envs.envpool.library import envpool_module
from rl_envs.gym.library import gymnasium

__all__ = ["PoolVector"]


class PoolVector(gymnasium.vector.VectorEnv):
    """The pool is made at its first reset, and again at a reset with a seed, for EnvPool takes seeds when it is made.

    Args:
        name: the task, as ``envpool.list_all_envs()`` has it; or a pool that was made elsewhere.
        num_envs: how many environments; of a pool its own.
        kwargs: for ``envpool.make_gymnasium``.

    Raises:
        EnvError: the pool is asynchronous, or not of gymnasium's interface.
    """

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}

    def __init__(self, name: Any, num_envs: int = 1, kwargs: dict[str, Any] | None = None) -> None:
        self.name, self.kwargs = name, dict(kwargs or {})
        self.pool: Any = None
        if not isinstance(name, str):
            self.pool, self.name = name, type(name).__name__.removesuffix("GymnasiumEnvPool")
            num_envs = _checked(name)
            observed, self.single_action_space = name.observation_space, name.action_space
        else:
            spec = envpool_module().make_spec(name, **{"num_envs": num_envs, **self.kwargs})
            observed, self.single_action_space = spec.gymnasium_observation_space, spec.gymnasium_action_space
        self.single_observation_space = _unbounded(observed)
        self.num_envs = num_envs
        self.given = self.pool is not None
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin episodes in all rows, or in those of ``options["reset_mask"]``; the others hold nothing then."""
        mask = None if options is None else options.get("reset_mask")
        if mask is None:
            self._begin(seed)
            result: tuple[Any, dict[str, Any]] = self.pool.reset()
            return result
        if seed is not None:
            raise EnvError(
                f"EnvPool seeds all environments of {self.name} or none; reset all of them after set_seed: env.reset()"
            )
        rows = np.flatnonzero(mask).astype(np.int32)
        observation, info = self.pool.reset(rows)
        return _spread(observation, rows, self.num_envs), _spread(info, rows, self.num_envs)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One step of all environments."""
        result: tuple[Any, Any, Any, Any, dict[str, Any]] = self.pool.step(actions)
        return result

    def _begin(self, seed: int | None) -> None:
        if self.given:
            return  # its seed was chosen where it was made; the adapter says so where one is asked for
        if self.pool is None or seed is not None:
            self._shut()
            number = {} if seed is None else {"seed": int(seed)}
            options = {"num_envs": self.num_envs, **self.kwargs, **number}
            self.pool = envpool_module().make_gymnasium(self.name, **options)

    def _shut(self) -> None:
        if self.pool is not None:
            self.pool.close()
            self.pool = None

    def close_extras(self, **kwargs: Any) -> None:
        """End the threads."""
        self._shut()

    def __getstate__(self) -> dict[str, Any]:
        """Without the pool, which begins anew in another process."""
        if self.given:
            raise EnvError(
                f"a pool that was made elsewhere cannot be sent to another process; make it there: EnvPoolEnv("
                f"{self.name!r}, num_envs={self.num_envs})"
            )
        return {**self.__dict__, "pool": None}


def _checked(pool: Any) -> int:
    config = getattr(pool, "config", None)
    if not isinstance(config, dict) or "num_envs" not in config:
        raise EnvError(f"{type(pool).__name__} is no pool of EnvPool; make one with envpool.make_gymnasium(name, ...)")
    if not isinstance(pool.observation_space, gymnasium.Space):
        raise EnvError(f"{type(pool).__name__} is not of gymnasium's interface; make it with envpool.make_gymnasium")
    if config["batch_size"] != config["num_envs"]:
        raise EnvError(
            f"the pool answers {config['batch_size']} of its {config['num_envs']} environments at a time; a batch "
            "needs all of them: leave batch_size out"
        )
    if config.get("max_num_players", 1) != 1:
        raise EnvError(f"the pool has up to {config['max_num_players']} players in an environment; one is expected")
    return int(config["num_envs"])


def _unbounded(space: Any) -> Any:
    """A space without the bounds that C++ gives to numbers without any: the smallest positive one, and the largest."""
    spaces = gymnasium.spaces
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: _unbounded(part) for name, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_unbounded(part) for part in space.spaces])
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        return space
    limits = [np.finfo(space.dtype), np.finfo(np.float64)]
    low = np.where(np.isin(space.low, [limit.tiny for limit in limits]), -np.inf, space.low)
    high = np.where(np.isin(space.high, [limit.max for limit in limits]), np.inf, space.high)
    return spaces.Box(low.astype(space.dtype), high.astype(space.dtype), dtype=space.dtype.type)


def _spread(value: Any, rows: np.ndarray, count: int) -> Any:
    """Values of some rows at their places among all of them."""
    if isinstance(value, dict):
        return {name: _spread(part, rows, count) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_spread(part, rows, count) for part in value)
    array = np.asarray(value)
    if len(array) != len(rows):
        return value
    full = np.zeros((count, *array.shape[1:]), dtype=array.dtype)
    full[rows] = array
    return full
