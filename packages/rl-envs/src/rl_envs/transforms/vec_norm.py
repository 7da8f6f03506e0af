"""``VecNorm`` and ``VecNormV2``: observations and rewards with mean 0 and deviation 1, by running statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_core import Columns, Compose, Composite, EnvBase, RowProgram, TensorSpec, Transform, Unbounded, reset_rows
from rl_core.errors import EnvError, KeyMissingError
from rl_core.keys import Key, as_keys, flat_name
from rl_envs.transforms.entry_transform import dtype_of, map_leaves
from rl_envs.transforms.numpy_rows import entry_rows
from rl_envs.transforms.observation_norm import ObservationNorm
from rl_envs.transforms.running_moments import NormState, RunningMoments

__all__ = ["VecNorm", "VecNormV2"]


class VecNormV2(Transform):
    """``(x - loc) / scale`` with the mean and deviation of what the environment has shown so far.

    An update of m rows gives them weight m and multiplies the weight of all before by ``decay``. Counted are the rows
    that an environment really took a step in, and first observations of rows that were reset; the new values count
    before they are mapped. Nothing is counted after ``eval()`` or :meth:`freeze`, nor by ``forward`` on an
    environment's own stored data; a transform that belongs to no environment counts what passes through ``forward``. In
    a buffer transforms are in evaluation: :meth:`frozen_copy` maps samples by the statistics of now.

    Statistics are float64, under one name each in ``state_dict()``: "observation.count", ".loc" and ".var" (a nested
    key's parts are joined by "/").

    Args:
        in_keys: observations and rewards.
        out_keys: where to write them; default: the same keys.
        lock: accepted for compatibility: shared statistics have a lock of their own.
        stateful: False (statistics that travel in the data) is not there.
        decay: between 0 and 1.
        eps: the smallest scale that is divided by.
        shared_data: statistics shared with other environments, of :meth:`build_td_for_shared_vecnorm`.
        reduce_batch_dims: one set of statistics for all environments of a batch; by default each has its own.

    Example:
        >>> norm = VecNormV2(["x"], reduce_batch_dims=True, decay=1.0)
        >>> norm(TensorDict(x=torch.tensor([[1.0], [3.0]]), batch_size=[2]))["x"].flatten()
        tensor([-1.,  1.])
    """

    invertible = False

    def __init__(
        self,
        in_keys: Key | Iterable[Key],
        out_keys: Key | Iterable[Key] | None = None,
        *,
        lock: Any = None,
        stateful: bool = True,
        decay: float = 0.9999,
        eps: float = 1e-4,
        shared_data: NormState | None = None,
        reduce_batch_dims: bool = False,
    ) -> None:
        super().__init__(in_keys, out_keys)
        if not stateful:
            raise ValueError(
                "stateful=False keeps statistics in the data, which a reset would have to carry over; leave it out: "
                "the statistics are in state_dict(), and environments share them through shared_data"
            )
        if not 0.0 < decay <= 1.0:
            raise ValueError(f"decay is the weight of the past in an update, above 0 and at most 1; got {decay}")
        if shared_data is not None and not isinstance(shared_data, NormState):
            raise TypeError(
                f"shared statistics are made by {type(self).__name__}.build_td_for_shared_vecnorm(env); got "
                f"{type(shared_data).__name__}"
            )
        self.decay, self.eps, self.reduce_batch_dims = decay, eps, reduce_batch_dims
        self.shapes: list[torch.Size] | None = None
        self._statistics = NormState() if shared_data is None else shared_data
        self._frozen = False

    # ---------------------------------------------------------------- freezing, sharing
    def freeze(self) -> VecNormV2:
        """Count nothing from now on."""
        self._frozen = True
        return self

    def unfreeze(self) -> VecNormV2:
        """Count again (in training)."""
        self._frozen = False
        return self

    @property
    def frozen(self) -> bool:
        """Whether :meth:`freeze` was called."""
        return self._frozen

    def frozen_copy(self) -> VecNormV2:
        """A transform that maps by these statistics as they move, and counts nothing: for evaluation and buffers."""
        view: VecNormV2 = self.clone()  # type: ignore[assignment]
        view._statistics = self._statistics
        return view.freeze()

    def share_memory(self) -> VecNormV2:
        """Let processes that this transform is sent to count into the same statistics."""
        self._statistics.share()
        return self

    @staticmethod
    def build_td_for_shared_vecnorm(env: EnvBase, keys: Sequence[Key] | None = None, memmap: bool = False) -> NormState:
        """Statistics that the environments of a batch or of several processes share: ``VecNorm(shared_td=...)``.

        Args:
            env: one of them, without this transform; nothing is run.
            keys: the entries; default: "observation" and "reward".
            memmap: accepted for compatibility; they are in a memory-mapped file anyway.
        """
        lead = len(env.batch_size)
        shapes: dict[str, tuple[int, ...]] = {}
        for key in as_keys(["observation", "reward"] if keys is None else keys):
            leaf = env.observation_spec.get(key, None)
            leaf = env.full_reward_spec.get(key, None) if leaf is None else leaf
            if leaf is None:
                raise KeyMissingError(
                    f"the environment has no observation or reward {key!r}; its entries are "
                    f"{[*env.observation_keys, *env.reward_keys]}. Name them with keys=[...]"
                )
            shapes[flat_name(key, "/")] = tuple(leaf.shape[lead:])
        return NormState(shapes).share()

    # ---------------------------------------------------------------- the statistics
    def _entry(self, place: int, shape: Sequence[int], lead: int) -> RunningMoments:
        """The statistics for values of a shape whose first ``lead`` dimensions are a batch's."""
        own = shape[lead if self.reduce_batch_dims else 0 :]
        if self.shapes is not None:
            own = self.shapes[place]
        return self._statistics.entry(flat_name(self.in_keys[place], "/"), tuple(own))

    def _numbers(self, entry: RunningMoments) -> tuple[np.ndarray, np.ndarray]:
        return entry.mean, np.maximum(np.sqrt(entry.variance()), self.eps)

    def _counts(self) -> bool:
        return self.training and not self._frozen

    @property
    def loc(self) -> TensorDict:
        """The means by key."""
        return self._by_key(0)

    @property
    def scale(self) -> TensorDict:
        """The deviations by key, at least ``eps``."""
        return self._by_key(1)

    @property
    def standard_normal(self) -> bool:
        """True: ``(x - loc) / scale``."""
        return True

    def _by_key(self, which: int) -> TensorDict:
        result = TensorDict({})
        with self._statistics.locked():
            for key in self.in_keys:
                entry = self._statistics.entries.get(flat_name(key, "/"))
                if entry is not None:
                    result.set(key, torch.from_numpy(self._numbers(entry)[which].copy()).float())
        return result

    def to_observation_norm(self) -> Compose | ObservationNorm:
        """The map of now with fixed statistics: an :class:`ObservationNorm`, or one for each key."""
        loc, scale = self.loc, self.scale
        parts: list[ObservationNorm] = []
        for key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            if loc.get(key, None) is None:
                raise EnvError(f"{type(self).__name__} has counted no {key!r} yet; take some steps first")
            parts.append(
                ObservationNorm(loc.get(key), scale.get(key), [key], [out_key], standard_normal=True, eps=self.eps)
            )
        return parts[0] if len(parts) == 1 else Compose(*parts)

    # ---------------------------------------------------------------- TensorDicts
    def _map(self, tensordict: TensorDictBase, *, count: bool, rows: Tensor | None, missing_ok: bool) -> TensorDictBase:
        for place, (key, out_key) in enumerate(zip(self.in_keys, self.out_keys, strict=True)):
            value = tensordict.get(key, None)
            if value is None:
                if missing_ok:
                    continue
                raise KeyMissingError(self._missing(key, tensordict))
            with self._statistics.locked():
                entry = self._entry(place, value.shape, tensordict.batch_dims)
                if count:
                    self._count(entry, value, rows)
                loc, scale = (torch.from_numpy(number.copy()) for number in self._numbers(entry))
            tensordict.set(out_key, _standardised(value, loc, scale))
        return tensordict

    def _count(self, entry: RunningMoments, value: Tensor, rows: Tensor | None) -> None:
        numbers = value.detach().cpu().numpy()
        if rows is None:
            entry.update(numbers.reshape(-1, *entry.shape), self.decay)
        elif self.reduce_batch_dims:
            entry.update(numbers[rows.cpu().numpy()].reshape(-1, *entry.shape), self.decay)
        else:
            raise EnvError(
                f"{type(self).__name__} with statistics for each environment of a batch counts all of them at once, "
                "and only some took a step; give reduce_batch_dims=True"
            )

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        count = self._counts()
        rows = _still_running(tensordict) if count else None
        if rows is not None and not self.reduce_batch_dims:
            rows = None
        return self._map(next_tensordict, count=count, rows=rows, missing_ok=self._missing_ok)

    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        rows, count = reset_rows(tensordict), self._counts()
        if rows is not None and not self.reduce_batch_dims and not bool(rows.all()):
            count = False
        return self._map(tensordict_reset, count=count, rows=rows, missing_ok=True)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Map stored data, at the root and under "next"; counts the root where it belongs to no environment."""
        nxt = tensordict.get("next", None)
        found = [data for data in (tensordict, nxt) if data is not None]
        if not any(data.get(key, None) is not None for data in found for key in self.in_keys):
            raise KeyMissingError(self._missing(self.in_keys[0], tensordict))
        count = self._counts() and not _is_owned(self)
        self._map(tensordict, count=count, rows=None, missing_ok=True)
        if nxt is not None:
            tensordict.set("next", self._map(nxt, count=False, rows=None, missing_ok=True))
        return tensordict

    def denorm(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Undo the map: ``x * scale + loc`` of the out keys, written to the in keys."""
        loc, scale = self.loc, self.scale
        for key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            value = tensordict.get(out_key, None)
            if value is not None and loc.get(key, None) is not None:
                tensordict.set(key, value * scale.get(key).to(value) + loc.get(key).to(value))
        return tensordict

    # ---------------------------------------------------------------- specs
    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Unbounded, floating point."""
        return map_leaves(observation_spec, self.in_keys, self.out_keys, _unbounded)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """Unbounded, floating point."""
        return map_leaves(reward_spec, self.in_keys, self.out_keys, _unbounded)

    # ---------------------------------------------------------------- rows
    @property
    def supports_rows(self) -> bool:
        """True."""
        return True

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """Counts a row and maps it in place."""
        parts = [
            (int(key in before.carried), entry_rows(self, before, key), after[out_key], self._norm_rows(place, before))
            for place, (key, out_key) in enumerate(zip(self.in_keys, self.out_keys, strict=True))
        ]

        def step(t: int) -> None:
            for shift, source, target, norm in parts:
                norm(source[t + shift], target[t + shift], None)

        def reset(t: int, mask: np.ndarray | None) -> None:
            for shift, source, target, norm in parts:
                if shift:
                    norm(source[t], target[t], mask)

        return RowProgram(step, reset)

    def _norm_rows(self, place: int, before: Columns) -> Callable[[np.ndarray, np.ndarray, np.ndarray | None], None]:
        """``norm(source, target, mask)`` for one row of columns."""
        lead, state = len(before.batch_size), self._statistics
        entry = self._entry(place, before[self.in_keys[place]].shape[1:], lead)
        known: list[np.ndarray] = []

        def norm(source: np.ndarray, target: np.ndarray, mask: np.ndarray | None) -> None:
            part = mask is not None and not mask.all()
            with state.locked():
                if self._counts() and not (part and not self.reduce_batch_dims):
                    rows = source[mask] if part else source
                    entry.update(rows.reshape(-1, *entry.shape), self.decay)
                known[:] = self._numbers(entry)
            if not part:
                np.subtract(source, known[0], out=target, casting="unsafe")
                np.divide(target, known[1], out=target, casting="unsafe")
            else:
                fresh = (source - known[0]) / known[1]
                target[mask] = fresh[mask]

        return norm

    # ---------------------------------------------------------------- state
    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, tensor in self._statistics.tensors().items():
            destination[prefix + name] = tensor

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        unexpected: list[str] = args[3]
        own = {flat_name(key, "/") for key in self.in_keys}
        found = {
            full[len(prefix) :]: value
            for full, value in state_dict.items()
            if full.startswith(prefix) and full[len(prefix) :].rsplit(".", 1)[0] in own
        }
        self._statistics.load(found)
        unexpected[:] = [name for name in unexpected if name[len(prefix) :] not in found]


class VecNorm(VecNormV2):
    """:class:`VecNormV2` with one set of statistics for all environments of a batch.

    Args:
        in_keys: observations and rewards; default ``["observation", "reward"]``.
        out_keys: where to write them; default: the same keys.
        shared_td: statistics shared with other environments, of :meth:`build_td_for_shared_vecnorm`.
        lock: accepted for compatibility: shared statistics have a lock of their own.
        decay: between 0 and 1.
        eps: the smallest scale that is divided by.
        shapes: of one value of each in key; what stands in front of it is a batch. Default: what follows the batch
            dimensions.
        new_api: accepted, without effect.

    Example:
        >>> from rl_core import TransformedEnv
        >>> from rl_core.testing import CountingEnv
        >>> env = TransformedEnv(CountingEnv(length=3), VecNorm(["observation"], decay=1.0))  # 0, 1, 2, 3
        >>> _ = env.rollout(3)
        >>> env.transform.loc["observation"], env.transform.scale["observation"] ** 2
        (tensor([1.5000]), tensor([1.2500]))
    """

    def __init__(
        self,
        in_keys: Key | Iterable[Key] | None = None,
        out_keys: Key | Iterable[Key] | None = None,
        shared_td: NormState | None = None,
        lock: Any = None,
        decay: float = 0.9999,
        eps: float = 1e-4,
        shapes: Sequence[Sequence[int]] | None = None,
        new_api: bool | None = None,
    ) -> None:
        super().__init__(
            ["observation", "reward"] if in_keys is None else in_keys,
            out_keys,
            decay=decay,
            eps=eps,
            shared_data=shared_td,
            reduce_batch_dims=True,
        )
        if shapes is not None:
            self.shapes = [torch.Size(shape) for shape in shapes]
            if len(self.shapes) != len(self.in_keys):
                raise ValueError(f"shapes has {len(self.shapes)} entries for {len(self.in_keys)} in_keys")


def _unbounded(leaf: TensorSpec) -> TensorSpec:
    dtype = dtype_of(leaf) if dtype_of(leaf).is_floating_point else torch.get_default_dtype()
    return Unbounded(shape=leaf.shape, dtype=dtype, device=leaf.device)


def _standardised(value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    value = value if value.is_floating_point() else value.to(torch.get_default_dtype())
    return ((value - loc.to(value.device)) / scale.to(value.device)).to(value.dtype)


def _is_owned(transform: Transform) -> bool:
    """Whether it belongs to an environment, be it one that is gone."""
    if transform._owner is None:
        return False
    owner = transform._owner()
    return _is_owned(owner) if isinstance(owner, Transform) else True


def _still_running(tensordict: TensorDictBase) -> Tensor | None:
    """The rows that had not ended before this step, bool ``[*B]``; None: all of them."""
    done = tensordict.get("done", None)
    if done is None or not bool(done.any()):
        return None
    return ~done.reshape(*tensordict.batch_size, -1).any(-1)
