"""``UnaryTransform``: a function of one entry."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDictBase
from tensordict.utils import is_non_tensor
from torch import Tensor

from rl_core import Composite, NonTensor, TensorSpec, Transform, Unbounded
from rl_core.errors import KeyMissingError
from rl_core.keys import Key

__all__ = ["UnaryTransform"]


class UnaryTransform(Transform):
    """``out = fn(in)`` for each in key, and ``in = inv_fn(out)`` for each inverse key.

    Args:
        in_keys: entries that are read.
        out_keys: entries that are written.
        in_keys_inv: entries that the environment reads.
        out_keys_inv: entries that the policy writes for them.
        fn: of a tensor ``[*B, ...]`` to a tensor with the same batch dimensions; of a non-tensor entry's payload to a
            tensor or to another payload.
        inv_fn: the same on the way in; needed with ``in_keys_inv``.
        use_raw_nontensor: hand the payload of a non-tensor entry to ``fn`` whole (nested lists in a batch). By default
            ``fn`` gets one payload at a time, and its tensors are stacked.

    Its spec is found by calling ``fn`` on zeros (or on the example of a non-tensor spec).

    Example:
        >>> from rl_core import TransformedEnv
        >>> from rl_core.testing import CountingEnv
        >>> env = TransformedEnv(CountingEnv(), UnaryTransform(["observation"], ["odd"], fn=lambda x: x % 2 == 1))
        >>> env.rollout(3)["odd"].flatten()
        tensor([False,  True, False])
    """

    def __init__(
        self,
        in_keys: Key | Iterable[Key] | None,
        out_keys: Key | Iterable[Key] | None,
        in_keys_inv: Key | Iterable[Key] | None = None,
        out_keys_inv: Key | Iterable[Key] | None = None,
        *,
        fn: Callable[[Any], Any],
        inv_fn: Callable[[Any], Any] | None = None,
        use_raw_nontensor: bool = False,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        if self.in_keys_inv and inv_fn is None:
            raise ValueError(f"{type(self).__name__} has in_keys_inv={self.in_keys_inv} and no inv_fn for them")
        self.fn, self.inv_fn, self.use_raw_nontensor = fn, inv_fn, use_raw_nontensor

    # ---------------------------------------------------------------- values
    def _apply_transform(self, value: Any) -> Any:
        return self._mapped(self.fn, value)

    def _inv_apply_transform(self, value: Any) -> Any:
        assert self.inv_fn is not None  # the constructor says so
        return self._mapped(self.inv_fn, value)

    def _mapped(self, function: Callable[[Any], Any], value: Any) -> Any:
        if is_non_tensor(value):
            return self._of_payloads(function, value.tolist(), len(value.batch_size))
        if not isinstance(value, (Tensor, TensorDictBase)):
            return self._of_payloads(function, value, _depth(value))
        return function(value)

    def _of_payloads(self, function: Callable[[Any], Any], payload: Any, dims: int) -> Any:
        if self.use_raw_nontensor or not dims:
            return function(payload)
        results = [self._of_payloads(function, one, dims - 1) for one in payload]
        if isinstance(results[0], Tensor):
            return torch.stack(results)
        return NonTensorStack(*[one if isinstance(one, TensorDictBase) else NonTensorData(one) for one in results])

    def _call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._written(tensordict, self.in_keys, self.out_keys, self._apply_transform, self._missing_ok)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._written(tensordict, self.out_keys_inv, self.in_keys_inv, self._inv_apply_transform, False)

    def _written(
        self,
        tensordict: TensorDictBase,
        keys: list[Key],
        out_keys: list[Key],
        function: Callable[[Any], Any],
        missing_ok: bool,
    ) -> TensorDictBase:
        for key, out_key in zip(keys, out_keys, strict=True):
            value = tensordict.get(key, None)
            if value is None:
                if missing_ok:
                    continue
                raise KeyMissingError(self._missing(key, tensordict))
            result = function(value)
            if isinstance(result, (Tensor, TensorDictBase)):
                tensordict.set(out_key, result)
            else:
                tensordict.set_non_tensor(out_key, result)
        return tensordict

    # ---------------------------------------------------------------- specs
    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """With what ``fn`` gives."""
        return self._declared(observation_spec)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """With what ``fn`` gives, where a reward is among the in keys."""
        return self._declared(reward_spec)

    def _declared(self, spec: Composite) -> Composite:
        found = {}
        for key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            leaf = spec.get(key, None)
            if leaf is not None:
                found[out_key] = self._spec_of(self._apply_transform(leaf.zero()), leaf, spec.shape)
        for out_key, leaf in found.items():
            spec.set(out_key, leaf)
        return spec

    def _spec_of(self, result: Any, leaf: TensorSpec, batch: torch.Size) -> TensorSpec:
        if isinstance(result, Tensor):
            return Unbounded(shape=result.shape, dtype=result.dtype, device=leaf.device)
        if isinstance(result, TensorDictBase) and not is_non_tensor(result):
            inner = {key: self._spec_of(value, leaf, batch) for key, value in result.items()}
            return Composite(inner, shape=result.batch_size)
        payload = result.tolist() if isinstance(result, TensorDictBase) else result
        return NonTensor(shape=batch, device=leaf.device, example_data=_first(payload, len(batch)))

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """Under the names that the policy writes; a function that changes shape or range needs its own subclass."""
        for key, out_key in zip(self.in_keys_inv, self.out_keys_inv, strict=True):
            if key in action_spec and key != out_key:
                action_spec.set(out_key, action_spec.pop(key))
        return action_spec

    @property
    def supports_rows(self) -> bool:
        """Where every entry is a tensor, and in a batch or not ``fn`` is of one row alike."""
        if not self._maps_alone():
            return False
        parent = self.parent
        if parent is None:
            return True
        specs = [parent.observation_spec, parent.full_reward_spec, parent.full_action_spec]
        leaves = [spec.get(key, None) for spec in specs for key in (*self.in_keys, *self.in_keys_inv)]
        return not any(isinstance(leaf, (NonTensor, Composite)) for leaf in leaves) and self._gives_tensors()

    def _maps_alone(self) -> bool:
        return type(self)._step is Transform._step and type(self)._reset is Transform._reset

    def _gives_tensors(self) -> bool:
        container = self.container
        if container is None:
            return True
        leaves = [container.observation_spec.get(key, None) for key in self.out_keys]
        return not any(isinstance(leaf, (NonTensor, Composite)) for leaf in leaves)


def _depth(value: Any) -> int:
    return 1 + _depth(value[0]) if isinstance(value, list) and value else 0


def _first(payload: Any, dims: int) -> Any:
    return _first(payload[0], dims - 1) if dims and isinstance(payload, list) and payload else payload
