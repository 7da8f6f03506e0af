"""``ObservationNorm``: an affine map of observations with fixed statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Bounded, Columns, Composite, RowProgram, Transform, Unbounded
from rl_core.errors import EnvError, KeyMissingError
from rl_core.keys import Key, as_key, as_path
from rl_envs.transforms.end_groups import specs_seen
from rl_envs.transforms.number_rows import number_rows
from rl_envs.transforms.numpy_rows import entry_program, entry_rows

__all__ = ["ObservationNorm"]


class ObservationNorm(Transform):
    """``x * scale + loc``, or with ``standard_normal=True`` ``(x - loc) / scale``.

    ``loc`` and ``scale`` are buffers: they are saved with the transform. Left out, :meth:`init_stats` measures them.

    Args:
        loc: the location, broadcast to the observations.
        scale: the scale, likewise.
        in_keys: observations; default "observation" or, in an environment that has none of that name, every
            floating-point one (``Compose(ToTensorImage(), ObservationNorm(0.5, 1.0))`` maps "pixels").
        out_keys: where to write them; default: the same keys.
        in_keys_inv: entries that the environment reads (actions), on which the inverse map is done.
        out_keys_inv: what the policy writes for them; default: the same keys.
        standard_normal: divide instead of multiply.
        eps: the smallest scale that is divided by; default 1e-6.

    Example:
        >>> norm = ObservationNorm(loc=1.0, scale=2.0, standard_normal=True)
        >>> norm._apply_transform(torch.tensor([1.0, 5.0]))
        tensor([0., 2.])
    """

    invertible = True
    loc: Tensor | None
    scale: Tensor | None

    def __init__(
        self,
        loc: float | Tensor | None = None,
        scale: float | Tensor | None = None,
        in_keys: Key | Iterable[Key] | None = None,
        out_keys: Key | Iterable[Key] | None = None,
        in_keys_inv: Key | Iterable[Key] | None = None,
        out_keys_inv: Key | Iterable[Key] | None = None,
        standard_normal: bool = False,
        eps: float | None = None,
    ) -> None:
        super().__init__(["observation"] if in_keys is None else in_keys, out_keys, in_keys_inv, out_keys_inv)
        if (loc is None) != (scale is None):
            raise ValueError("ObservationNorm takes both loc and scale, or neither (then call init_stats)")
        self._find_keys, self._renamed, self._seen = in_keys is None, out_keys is not None, -1
        self.standard_normal = standard_normal
        self.eps = 1e-6 if eps is None else eps
        self.register_buffer("loc", None if loc is None else torch.as_tensor(loc, dtype=_dtype_of(loc)))
        self.register_buffer("scale", None if scale is None else torch.as_tensor(scale, dtype=_dtype_of(scale)))
        self._live: list[Any] = []  # what bound row programs read: loc and scale as arrays, and as numbers

    @property
    def initialized(self) -> bool:
        """Whether there are statistics."""
        return self.loc is not None

    def set_container(self, owner: object) -> None:
        """Take an owner; its observations are looked at at the first use."""
        super().set_container(owner)
        self._seen = -1

    def _find(self) -> None:
        """Name the observations, where they were left out."""
        seen = specs_seen(self) if self._find_keys else None
        if seen is None or seen == self._seen:
            return
        parent = self.parent
        assert parent is not None  # specs_seen says so
        leaves = {as_key(as_path(key)): leaf for key, leaf in parent.observation_spec.items(True, True)}
        floats = [key for key, leaf in leaves.items() if leaf.dtype is not None and leaf.dtype.is_floating_point]
        self.in_keys = ["observation"] if "observation" in leaves or not floats else floats
        if not self._renamed:
            self.out_keys = list(self.in_keys)
        self._seen = seen

    def _call(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._find()
        return super()._call(tensordict)

    def _statistics(self) -> tuple[Tensor, Tensor]:
        if self.loc is None or self.scale is None:
            raise EnvError(
                "ObservationNorm has no statistics; call transform.init_stats(num_iter=1000) on the transform of the "
                "environment, or construct it with loc= and scale="
            )
        return self.loc, self.scale

    def _apply_transform(self, value: Tensor) -> Tensor:
        loc, scale = (self.to_device_of(number, value) for number in self._statistics())
        value = value if value.is_floating_point() else value.to(torch.get_default_dtype())
        result = (value - loc) / scale.clamp_min(self.eps) if self.standard_normal else value * scale + loc
        return result.to(value.dtype)

    def _inv_apply_transform(self, value: Tensor) -> Tensor:
        loc, scale = (self.to_device_of(number, value) for number in self._statistics())
        result = value * scale.clamp_min(self.eps) + loc if self.standard_normal else (value - loc) / scale
        return result.to(value.dtype)

    # ---------------------------------------------------------------- statistics
    def init_stats(
        self,
        num_iter: int,
        reduce_dim: int | Sequence[int] = 0,
        cat_dim: int | None = None,
        key: Key | None = None,
        keep_dims: Sequence[int] | None = None,
    ) -> None:
        """Measure mean and standard deviation over random steps of the environment before this transform.

        The environment is stepped for it: reset it afterwards.

        Args:
            num_iter: how many frames, at least.
            reduce_dim: dimensions over which they are computed (0 is time for a single environment; a batch of them has
                its dimensions first: ``(0, 1)``).
            cat_dim: the dimension in which several rollouts are joined; default: ``reduce_dim`` where it is one number.
            key: the observation; default: the only in key.
            keep_dims: dimensions of ``reduce_dim`` that are kept with size 1.
        """
        parent = self.parent
        if parent is None:
            raise EnvError(
                "init_stats needs an environment: TransformedEnv(env, transform), then transform.init_stats(...)"
            )
        self._find()
        if self.initialized:
            raise EnvError("this ObservationNorm has statistics already; construct another one to measure them anew")
        dims = [reduce_dim] if isinstance(reduce_dim, int) else list(reduce_dim)
        if cat_dim is None and len(dims) > 1:
            raise ValueError(
                f"init_stats(reduce_dim={reduce_dim}) needs cat_dim, the dimension in which rollouts are joined"
            )
        if key is None and len(self.in_keys) != 1:
            raise KeyMissingError(f"ObservationNorm has the in_keys {self.in_keys}; say which one is measured: key=...")
        chosen, frames, collected = self.in_keys[0] if key is None else key, [], 0
        while collected < num_iter:
            data = parent.rollout(num_iter, break_when_any_done=False)
            collected += data.numel()
            frames.append(data.get(chosen))
        self._measure(torch.cat(frames, dims[0] if cat_dim is None else cat_dim), dims, keep_dims)

    def _measure(self, values: Tensor, dims: Sequence[int], keep_dims: Sequence[int] | None) -> None:
        values = values if values.is_floating_point() else values.to(torch.get_default_dtype())
        mean = values.mean(tuple(dims), keepdim=True)
        deviation = values.std(tuple(dims), keepdim=True).clamp_min(self.eps)
        kept = {dim % values.ndim for dim in keep_dims or ()}
        gone = tuple(dim % values.ndim for dim in dims if dim % values.ndim not in kept)
        mean, deviation = mean.squeeze(gone), deviation.squeeze(gone)
        if not torch.isfinite(mean).all() or not torch.isfinite(deviation).all():
            raise EnvError("init_stats measured statistics that are not finite; an observation is NaN or infinite")
        self.loc = mean if self.standard_normal else -mean / deviation
        self.scale = deviation if self.standard_normal else 1.0 / deviation
        self._refresh()

    def _refresh(self) -> None:
        """Row programs that are bound already see the statistics of now."""
        if self.loc is None or self.scale is None or self.loc.device.type != "cpu":
            return
        scale = self.scale.clamp_min(self.eps) if self.standard_normal else self.scale
        single = self.loc.numel() == scale.numel() == 1
        numbers = [number.item() if single else math.nan for number in (self.loc, scale)]
        self._live[:] = [self.loc.numpy(), scale.numpy(), *numbers]

    def _apply(self, *args: Any, **kwargs: Any) -> ObservationNorm:
        super()._apply(*args, **kwargs)
        self._refresh()
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in ("loc", "scale"):
            saved = state_dict.get(prefix + name)
            present = getattr(self, name)
            if saved is not None and (present is None or present.shape != saved.shape):
                setattr(self, name, torch.empty_like(saved))
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._refresh()

    # ---------------------------------------------------------------- specs
    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Unbounded, floating point."""
        self._find()
        return _unbound(observation_spec, self.in_keys, self.out_keys)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """Unbounded where a reward is among the in keys."""
        return _unbound(reward_spec, self.in_keys, self.out_keys)

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """What the policy may write so that the inverse is legal: bounds are mapped as observations are."""
        for key, out_key in zip(self.in_keys_inv, self.out_keys_inv, strict=True):
            leaf = action_spec.get(key, None)
            if leaf is None:
                continue
            if key != out_key:
                action_spec.pop(key)
            if isinstance(leaf, Bounded) and leaf.low.is_floating_point() and self.initialized:
                ends = [self._apply_transform(bound.expand(leaf.shape)) for bound in (leaf.low, leaf.high)]
                action_spec.set(out_key, leaf.replace(low=torch.minimum(*ends), high=torch.maximum(*ends)))
            else:
                action_spec.set(out_key, Unbounded(shape=leaf.shape, dtype=leaf.dtype, device=leaf.device))
        return action_spec

    # ---------------------------------------------------------------- rows
    @property
    def supports_rows(self) -> bool:
        """Where only observations are mapped, and the statistics are on the CPU."""
        return not self.in_keys_inv and (self.loc is None or self.loc.device.type == "cpu")

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """Two numpy calls per row."""
        self._find()
        self._statistics()
        self._refresh()
        pairs = list(zip(self.in_keys, self.out_keys, strict=True))
        if len(pairs) == 1 and not math.isnan(self._live[2]):
            key, out_key = pairs[0]
            source, target = number_rows(entry_rows(self, before, key)), number_rows(after[out_key])
            if source is not None and target is not None:
                return _number_program(source, target, self._live, self.standard_normal, key in before.carried)
        write = affine_rows(self._live, self.standard_normal)
        return entry_program(self, before, after, [(key, out, write) for key, out in pairs])


def affine_rows(live: list[Any], standard_normal: bool) -> Callable[[np.ndarray, np.ndarray], None]:
    """``function(source, target)``, in the order of operations that loses no digits where x is near loc."""
    multiply, add, subtract, divide = np.multiply, np.add, np.subtract, np.divide

    def standardise(source: np.ndarray, target: np.ndarray) -> None:
        subtract(source, live[0], target)
        divide(target, live[1], target)

    def scale(source: np.ndarray, target: np.ndarray) -> None:
        multiply(source, live[1], target)
        add(target, live[0], target)

    return standardise if standard_normal else scale


def _number_program(source: Any, target: Any, live: list[Any], standard_normal: bool, carried: bool) -> RowProgram:
    """The map of rows that hold one number each, in plain Python."""
    shift = int(carried)

    def standardise(t: int) -> None:
        target[t] = (source[t] - live[2]) / live[3]

    def scale(t: int) -> None:
        target[t] = source[t] * live[3] + live[2]

    write = standardise if standard_normal else scale

    def reset(t: int, mask: np.ndarray | None) -> None:
        if shift and (mask is None or mask.all()):
            write(t)

    return RowProgram((lambda t: write(t + 1)) if carried else write, reset)


def _dtype_of(number: Any) -> torch.dtype:
    return number.dtype if isinstance(number, Tensor) and number.is_floating_point() else torch.get_default_dtype()


def _unbound(spec: Composite, keys: Sequence[Key], out_keys: Sequence[Key]) -> Composite:
    for key, out_key in zip(keys, out_keys, strict=True):
        leaf = spec.get(key, None)
        if leaf is None:
            continue
        dtype = leaf.dtype if leaf.dtype.is_floating_point else torch.get_default_dtype()
        spec.set(out_key, Unbounded(shape=leaf.shape, dtype=dtype, device=leaf.device))
    return spec
