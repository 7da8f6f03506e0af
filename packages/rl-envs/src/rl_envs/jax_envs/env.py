"""``JaxEnv``: the base of adapters to simulators in JAX, compiled for a whole batch, exchanging memory by DLPack."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from rl_core import Categorical, Composite, EnvBase, TensorSpec, Unbounded, reset_rows
from rl_core.envs.columns import nest
from rl_core.errors import EnvError
from rl_core.keys import Key, as_key
from rl_envs.jax_envs.library import jax, jnp

__all__ = ["JaxEnv", "Outcome", "by_path", "to_torch"]


@dataclass(frozen=True)
class Outcome:
    """What a reset or a step of one environment gives, as arrays of JAX.

    Attributes:
        state: whatever the next step needs.
        observation: an array, or a nested mapping of them.
        reward: a number.
        terminated: bool.
        truncated: bool.
    """

    state: Any
    observation: Any
    reward: Any
    terminated: Any
    truncated: Any


jax.tree_util.register_dataclass(Outcome, ["state", "observation", "reward", "terminated", "truncated"], meta_fields=[])


class JaxEnv(EnvBase):
    """Subclasses say how one environment begins and steps; both are compiled once, for all environments of the batch.

    Tensors and arrays are views of the same memory where their devices and dtypes agree (DLPack): treat observations
    as read only, or clone them. Rows are reset by themselves; nothing resets itself.

    Args:
        num_envs: 0 for a single environment, else N as one of batch size ``[N]``.
        jit: compile (only tests and debuggers want it off).
        device: where tensors are moved; None leaves them where JAX computes.
    """

    def __init__(self, *, num_envs: int = 0, jit: bool = True, device: torch.device | str | None = None) -> None:
        if num_envs < 0:
            raise ValueError(f"num_envs is the number of environments, 0 for a single one; got {num_envs}")
        super().__init__(device=device, batch_size=[num_envs] if num_envs else [])
        self.name = type(self).__name__
        compiled = jax.jit if jit else (lambda function: function)
        begin, step, choose = self.begin, self.advance, _choose
        if num_envs:
            begin, step = jax.vmap(begin), jax.vmap(step)
        self._begin, self._advance, self._choose = compiled(begin), compiled(step), compiled(choose)
        self._key: Any = None
        self._state: Any = None
        self._last: dict[Key, Tensor] = {}
        self._running = torch.zeros(self.batch_size, dtype=torch.bool)

    @abstractmethod
    def begin(self, key: Any) -> Outcome:
        """A first observation, from a key of JAX's generator."""

    @abstractmethod
    def advance(self, state: Any, action: Any) -> Outcome:
        """One step."""

    # ---------------------------------------------------------------- specs
    def declare(self, observations: dict[Key, TensorSpec], action: TensorSpec) -> None:
        """Set the specs, from those of one environment; called by subclasses.

        Args:
            observations: by key.
            action: of the native action; a one-hot spec is given to the simulator as its number.
        """
        batch = self.batch_size
        spec = Composite({}, shape=batch)
        for key, leaf in observations.items():
            spec.set(key, leaf.expand(*batch, *leaf.shape))
        self.observation_spec = spec
        self.action_spec = action.expand(*batch, *action.shape)
        self.reward_spec = Unbounded(shape=(*batch, 1), dtype=torch.float32)
        flag = Categorical(2, shape=(*batch, 1), dtype=torch.bool)
        self.done_spec = Composite({name: flag.clone() for name in ("done", "terminated", "truncated")}, shape=batch)

    # ---------------------------------------------------------------- environment
    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self._take_seed(kwargs)
        self._key, drawn = jax.random.split(self._key)
        keys = jax.random.split(drawn, self.batch_size[0]) if len(self.batch_size) else drawn
        fresh = self._begin(keys)
        rows = reset_rows(tensordict)
        if rows is None or self._state is None:
            self._state = fresh.state
            self._running = torch.ones(self.batch_size, dtype=torch.bool)
        else:
            self._state = self._choose(_to_jax(rows), fresh.state, self._state)
            self._running = self._running | rows.cpu()
        return nest(self._observed(fresh), self.batch_size, self.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self._state is None:
            raise EnvError(f"{self.name} was stepped before its first reset; start with td = env.reset()")
        running = self._running
        held = None if bool(running.all()) else ~running
        if held is not None and not len(self.batch_size):
            raise EnvError(f"{self.name} was stepped after its episode ended; reset first: td = env.maybe_reset(td)")
        outcome = self._advance(self._state, self._native_action(tensordict))
        self._state = outcome.state if held is None else self._choose(_to_jax(running), outcome.state, self._state)
        terminated, truncated = (
            self._torch(flag).to(torch.bool).reshape(*self.batch_size, 1)
            for flag in (outcome.terminated, outcome.truncated)
        )
        self._running = running & ~(terminated | truncated).reshape(self.batch_size).cpu()
        written = self._observed(outcome)
        written["reward"] = self._torch(outcome.reward).to(torch.float32).reshape(*self.batch_size, 1)
        written["terminated"], written["truncated"] = terminated, truncated
        if held is not None:
            written = self._with_held(written, held)
        self._last = written
        return nest(written, self.batch_size, self.device)

    def _with_held(self, written: dict[Key, Tensor], held: Tensor) -> dict[Key, Tensor]:
        """Rows that ended and were not reset keep their last values (end flags set, reward 0)."""
        kept: dict[Key, Tensor] = {}
        for key, value in written.items():
            rows = held.to(value.device).reshape(-1, *(1,) * (value.ndim - 1))
            kept[key] = torch.where(rows, torch.zeros_like(value) if key == "reward" else self._last[key], value)
        return kept

    def _native_action(self, tensordict: TensorDictBase) -> Any:
        spec, action = self.action_spec, tensordict.get(self.action_key).detach()
        to_number = getattr(spec, "to_categorical", None) if action.shape[-1:] == spec.shape[-1:] else None
        if to_number is not None and type(spec).__name__ in ("OneHot", "MultiOneHot"):
            action = to_number(action)
        return _to_jax(action.to(torch.int32) if not action.is_floating_point() else action)

    def _observed(self, outcome: Outcome) -> dict[Key, Tensor]:
        found: dict[Key, Tensor] = {}
        for path, value in by_path(outcome.observation):
            key = as_key(path or ("observation",))
            found[key] = self._torch(value).to(self.observation_spec[key].dtype)
        return found

    def _torch(self, array: Any) -> Tensor:
        tensor = to_torch(array)
        return tensor if self.device is None else tensor.to(self.device)

    # ---------------------------------------------------------------- seeds
    def _set_seed(self, seed: int) -> None:
        """The generator of all resets from then on."""
        self._key = jax.random.PRNGKey(seed % 2**32)

    def _take_seed(self, kwargs: dict[str, Any]) -> None:
        unknown = sorted(set(kwargs) - {"seed"})
        if unknown:
            raise TypeError(f"reset of {self.name} takes seed=, not {', '.join(unknown)}")
        if kwargs.get("seed") is not None:
            self._set_seed(int(kwargs["seed"]))
        if self._key is None:
            self._set_seed(int(torch.randint(2**31 - 1, ()).item()))

    @property
    def state(self) -> Any:
        """The simulator's own state, a tree of JAX's arrays with the batch first."""
        return self._state

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}, batch_size={list(self.batch_size)}, device={self.device})"


def _choose(rows: Any, fresh: Any, old: Any) -> Any:
    def choose(new: Any, before: Any) -> Any:
        return jnp.where(rows.reshape(*rows.shape, *(1,) * (new.ndim - rows.ndim)), new, before)

    return jax.tree_util.tree_map(choose, fresh, old)


def to_torch(array: Any) -> Tensor:
    """A view of an array of JAX."""
    tensor: Tensor = from_dlpack(jnp.asarray(array))
    return tensor


def _to_jax(tensor: Tensor) -> Any:
    return jnp.from_dlpack(tensor.contiguous())


def by_path(tree: Any, path: tuple[str, ...] = ()) -> Sequence[tuple[tuple[str, ...], Any]]:
    """The arrays of nested mappings and named tuples, with the names that lead to them."""
    if isinstance(tree, Mapping):
        parts: Any = tree.items()
    elif hasattr(tree, "_asdict"):  # a named tuple has no other mark
        parts = tree._asdict().items()
    else:
        return [(path, tree)]
    return [leaf for name, part in parts for leaf in by_path(part, (*path, str(name)))]
