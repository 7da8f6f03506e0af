"""``TorchVectorEnv``: simulators that step a whole batch of torch tensors, as Isaac Lab's and ManiSkill's do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Categorical, Composite, EnvBase, TensorSpec, Unbounded, reset_rows
from rl_core.envs.columns import nest
from rl_core.errors import EnvError
from rl_core.keys import Key
from rl_envs.torch_vector.layout import action_leaves, action_reader, composite, observation_leaves, observed

__all__ = ["TorchVectorEnv"]

Tensors = dict[Key, Tensor]


class TorchVectorEnv(EnvBase):
    """A simulator of N environments on one device, with gymnasium's five results as tensors.

    It has ``num_envs``, ``reset(seed=, options=) -> (observation, info)`` and ``step(action) -> (observation, reward,
    terminated, truncated, info)``; observations are a tensor or a (nested) dict, flags are bool ``[N]``. Such
    simulators reset ended rows within the step. Whatever they return, ``("next", observation)`` of an episode's last
    step is its true last observation where ``info`` tells it, and marked as lost (NaN; -1; False) where it does not;
    it is never the first one of the next episode, which waits until the row is reset.

    Args:
        env: the simulator; it is closed with this environment.
        observation_spec: of one environment; by default from ``single_observation_space`` (gymnasium).
        action_spec: of one environment; by default from ``single_action_space``.
        native_autoreset: whether ended rows are reset by the simulator itself, within the step.
        final_keys: where ``info`` holds the last observations: tensors of all N rows, of which the ended are read.
        reset_rows: ``reset_rows(env, rows) -> observation`` begins episodes in some rows (int64 ``[K]``) and returns
            the observation of all N; "env_idx" calls ``reset(options={"env_idx": rows})``. Needed where rows are reset
            that the simulator did not end (``StepCounter``), or without ``native_autoreset``.
        categorical_action_encoding: write choices as numbers instead of one-hot vectors.
        device: where tensors are moved; by default the simulator's.

    Raises:
        EnvError: a spec is missing and cannot be had from the simulator.

    Example:
        >>> class Counters:
        ...     num_envs, count = 2, torch.zeros(2, 1)
        ...     def reset(self, seed=None, options=None):
        ...         self.count = torch.zeros(2, 1)
        ...         return self.count, {}
        ...     def step(self, action):
        ...         self.count = self.count + 1
        ...         never = torch.zeros(2, dtype=torch.bool)
        ...         return self.count, action.sum(-1), never, never, {}
        >>> number = Unbounded(shape=(1,), dtype=torch.float32)
        >>> TorchVectorEnv(Counters(), observation_spec=number, action_spec=number).rollout(3)["observation"][0, :, 0]
        tensor([0., 1., 2.])
    """

    def __init__(
        self,
        env: Any,
        *,
        observation_spec: TensorSpec | None = None,
        action_spec: TensorSpec | None = None,
        native_autoreset: bool = True,
        final_keys: Sequence[str] = ("final_obs", "final_observation"),
        reset_rows: Callable[[Any, Tensor], Any] | str | None = None,
        categorical_action_encoding: bool = False,
        device: torch.device | str | None = None,
        allow_done_after_reset: bool = False,
    ) -> None:
        inner = getattr(env, "unwrapped", env)
        simulated = torch.device(getattr(inner, "device", "cpu"))
        super().__init__(
            device=simulated if device is None else device,
            batch_size=[int(inner.num_envs)],
            allow_done_after_reset=allow_done_after_reset,
        )
        self._env = env
        self.name = type(inner).__name__
        self.native_autoreset, self.final_keys = native_autoreset, tuple(final_keys)
        self._reset_rows = _by_index if reset_rows == "env_idx" else reset_rows
        batch = self.batch_size
        self._observations = observation_leaves(inner, observation_spec)
        actions = action_leaves(inner, action_spec, categorical_action_encoding)
        self._native_action = action_reader(actions, simulated)
        self.observation_spec = composite(self._observations, batch)
        self.full_action_spec = composite(actions, batch)
        self.reward_spec = Unbounded(shape=(*batch, 1), dtype=torch.float32)
        flag = Categorical(2, shape=(*batch, 1), dtype=torch.bool)
        self.done_spec = Composite({name: flag.clone() for name in ("done", "terminated", "truncated")}, shape=batch)
        self._seed: int | None = None
        self._was_reset = False
        self._over = torch.zeros(batch, dtype=torch.bool, device=self.device)
        self._any_over = False
        self._first: Tensors = {}  # as the simulator gave them at the last step
        self._last: Tensors = {}  # what the last step wrote, flags included

    # ---------------------------------------------------------------- step
    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if not self._was_reset:
            raise EnvError(f"{self.name} was stepped before its first reset; start with td = env.reset()")
        held = self._over if self._any_over else None
        observation, reward, terminated, truncated, info = self._env.step(self._native_action(tensordict))
        now = self._take(observation)
        flags: Tensors = {"terminated": self._flag(terminated), "truncated": self._flag(truncated)}
        over = (flags["terminated"] | flags["truncated"]).squeeze(-1)
        gain = reward.to(device=self.device, dtype=torch.float32).reshape(*self.batch_size, 1)
        written: Tensors = {**now, "reward": gain.clone(), **flags}
        if bool(over.any()) and self.native_autoreset:
            self._first = now
            written.update(self._last_observations(now, over, info))
        if held is not None:
            written = self._with_held(written, held)
            over = over | held
        self._over, self._any_over, self._last = over, bool(over.any()), written
        return nest(written, self.batch_size, self.device)

    def _take(self, observation: Any) -> Tensors:
        assert self.device is not None
        return observed(self._observations, observation, self.device, self.name)

    def _flag(self, value: Tensor) -> Tensor:
        return value.to(device=self.device, dtype=torch.bool, copy=True).reshape(*self.batch_size, 1)

    def _last_observations(self, now: Tensors, over: Tensor, info: Any) -> Tensors:
        """The observations with those of ended rows replaced by their true last ones, or by marks."""
        told = next((info[key] for key in self.final_keys if isinstance(info, dict) and key in info), None)
        final = None if told is None else self._take(told)
        replaced: Tensors = {}
        for key, value in now.items():
            rows = over.reshape(-1, *(1,) * (value.ndim - 1))
            true = torch.full_like(value, _lost(value.dtype)) if final is None else final[key]
            replaced[key] = torch.where(rows, true, value)
        return replaced

    def _with_held(self, written: Tensors, held: Tensor) -> Tensors:
        """Rows that ended and were not reset keep their last values (end flags set, reward 0)."""
        kept: Tensors = {}
        for key, value in written.items():
            rows = held.reshape(-1, *(1,) * (value.ndim - 1))
            before = torch.zeros_like(value) if key == "reward" else self._last[key]
            kept[key] = torch.where(rows, before, value)
        self._first = {}  # the simulator went on in the episodes that waited: they cannot be entered any more
        return kept

    # ---------------------------------------------------------------- reset
    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        options = _checked(kwargs, self.name)
        if "seed" in kwargs and kwargs["seed"] is not None:
            self._seed = int(kwargs["seed"])
        rows = reset_rows(tensordict)
        wanted = torch.ones_like(self._over) if rows is None else rows.to(self._over.device)
        forced = options is not None or self._seed is not None or not self._was_reset
        waiting = bool(self._first) and not forced and not bool((wanted & ~self._over).any())
        if waiting:
            fresh = {key: value.clone() for key, value in self._first.items()}
        elif rows is None or bool(wanted.all()):
            fresh = self._take(self._reset_all(options))
            self._first = {}
        else:
            fresh = self._reset_some(wanted)
        self._over = self._over & ~wanted
        self._any_over = bool(self._over.any())
        return nest(fresh, self.batch_size, self.device)

    def _reset_all(self, options: dict[str, Any] | None) -> Any:
        if self._seed is None and not self._was_reset:
            self._seed = int(torch.randint(2**31 - 1, ()).item())
        seed, self._seed = self._seed, None
        self._was_reset = True
        observation, _ = self._env.reset(seed=seed, options=options)
        return observation

    def _reset_some(self, wanted: Tensor) -> Tensors:
        """Rows that wait are given their first observation, the others are reset by the simulator."""
        asked = wanted if not self._first else wanted & ~self._over
        if not callable(self._reset_rows):
            raise EnvError(
                f"{self.name} is asked to reset the rows {asked.nonzero().flatten().tolist()} alone, which it did not "
                "end itself; give TorchVectorEnv reset_rows=function(env, rows), or reset_rows='env_idx' where "
                "reset(options={'env_idx': rows}) does it, or let the simulator end these episodes (its own time limit)"
            )
        fresh = self._take(self._reset_rows(self._env, asked.nonzero().flatten()))
        for key, value in self._first.items():
            rows = asked.reshape(-1, *(1,) * (value.ndim - 1))
            fresh[key] = torch.where(rows, fresh[key], value)
        return fresh

    def _set_seed(self, seed: int) -> None:
        """The next reset, which is then one of the whole batch, seeds the simulator."""
        self._seed = seed

    # ---------------------------------------------------------------- life
    def close(self, *, raise_if_closed: bool = False) -> None:
        """Close the simulator, where it can be."""
        if not self.is_closed:
            shut = getattr(self._env, "close", None)
            if callable(shut):
                shut()
        super().close(raise_if_closed=raise_if_closed)

    def __getattr__(self, name: str) -> Any:
        """Attributes of the simulator."""
        if name.startswith("_") or "_env" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        if hasattr(type(self), name):  # a property of ours failed: show its own error
            return object.__getattribute__(self, name)
        return getattr(self.__dict__["_env"], name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}, batch_size={list(self.batch_size)}, device={self.device})"


def _by_index(env: Any, rows: Tensor) -> Any:
    observation, _ = env.reset(options={"env_idx": rows})
    return observation


def _checked(kwargs: dict[str, Any], name: str) -> dict[str, Any] | None:
    unknown = sorted(set(kwargs) - {"seed", "options"})
    if unknown:
        raise TypeError(f"reset of {name} takes seed= and options=, not {', '.join(unknown)}")
    options: dict[str, Any] | None = kwargs.get("options")
    return options


def _lost(dtype: torch.dtype) -> float | int | bool:
    if dtype.is_floating_point:
        return float("nan")
    return False if dtype == torch.bool else torch.iinfo(dtype).max if dtype == torch.uint8 else -1
