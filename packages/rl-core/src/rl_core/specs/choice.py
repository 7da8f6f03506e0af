"""Choice: one of several specs or fixed values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from typing_extensions import Self

from rl_core.errors import SpecError
from rl_core.specs.base import Shape, TensorSpec
from rl_core.specs.shape_ops import ShapeOp, as_size

__all__ = ["Choice"]


class Choice(TensorSpec):
    """A value of any of several specs (drawn with equal odds), or one of several fixed values.

    Args:
        choices: specs of one shape, dtype and device, or tensors of one shape, dtype and device.

    Example:
        >>> spec = Choice([torch.tensor(1.0), torch.tensor(4.0)])
        >>> spec.is_in(torch.tensor(4.0)), spec.is_in(torch.tensor(2.0))
        (True, False)
    """

    def __init__(self, choices: Sequence[Any]) -> None:
        if not choices or len({isinstance(choice, TensorSpec) for choice in choices}) != 1:
            raise SpecError(f"Choice needs one or more specs, or one or more tensors; found {choices!r}.")
        first = choices[0]
        if any((c.shape, c.dtype, c.device) != (first.shape, first.dtype, first.device) for c in choices):
            found = [(list(c.shape), str(c.dtype), str(c.device)) for c in choices]
            raise SpecError(f"Choice: all choices must have one shape, dtype and device, found {found}.")
        super().__init__(first.shape, first.dtype, first.device)
        self.device = first.device
        self.choices = list(choices)

    def _config(self) -> dict[str, Any]:
        return {"choices": self.choices}

    @classmethod
    def _made(cls, config: dict[str, Any]) -> Self:
        return cls(config["choices"])

    def replace(self, **changes: Any) -> Self:
        """The Choice with the changes made to every choice."""
        choices = changes.pop("choices", self.choices)
        batch_ndim = changes.get("batch_ndim", self.batch_ndim)
        if isinstance(choices[0], TensorSpec) and changes:
            choices = [choice.replace(**changes) for choice in choices]
        return super().replace(choices=choices, batch_ndim=batch_ndim)

    def _apply(self, op: ShapeOp, n: int | None = None) -> Self:
        n = self.ndim if n is None else n
        if isinstance(self.choices[0], TensorSpec):
            moved = [choice._apply(op, n) for choice in self.choices]
        else:
            moved = [op.act(choice, n) for choice in self.choices]
        return super().replace(choices=moved, batch_ndim=op.batch(self.batch_ndim, self.shape))

    def to(self, dest: torch.device | torch.dtype | str | int) -> Self:
        """Every choice on another device or of another dtype."""
        return super().replace(choices=[choice.to(dest) for choice in self.choices])

    def _value(self, choice: Any, method: str, shape: Shape | None) -> Any:
        if isinstance(choice, TensorSpec):
            return getattr(choice, method)(shape)
        return choice.expand(*as_size(shape), *choice.shape).clone()

    def rand(self, shape: Shape | None = None) -> Any:
        """A value of one of the choices, the same choice for all of ``shape``."""
        return self._value(self.choices[int(torch.randint(len(self.choices), ()))], "rand", shape)

    def _constant(self, number: int, shape: Shape | None) -> Any:
        return self._value(self.choices[0], "zero" if number == 0 else "one", shape)

    def is_in(self, val: Any) -> bool:
        """Whether any choice admits the value."""
        return any(self._admits(choice, val) for choice in self.choices)

    def _admits(self, choice: Any, val: Any) -> bool:
        if isinstance(choice, TensorSpec):
            return choice.is_in(val)
        if isinstance(choice, TensorDictBase):
            return isinstance(val, TensorDictBase) and bool((choice == val).all())
        if not isinstance(val, Tensor) or val.dtype != choice.dtype:
            return False
        return any(True for _ in self._places(val.shape)) and bool((val == choice).all())

    def project(self, val: Any) -> Any:
        """The value itself where legal, else the first choice's nearest value."""
        if self.is_in(val):
            return val
        first = self.choices[0]
        return first.project(val) if isinstance(first, TensorSpec) else first.expand(val.shape).clone()

    def explain(self, val: Any) -> str | None:
        """Why a value is not legal, in a sentence; None when it is."""
        if self.is_in(val):
            return None
        if isinstance(self.choices[0], TensorSpec):
            reason = self.choices[0].explain(val)
            return f"None of the {len(self.choices)} choices admits the value; the first says: {reason}"
        return f"Choice expected one of {len(self.choices)} fixed values, found {val!r}."

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """The value as the first choice encodes it."""
        first = self.choices[0]
        if isinstance(first, TensorSpec):
            return first.encode(val, ignore_device=ignore_device)
        return super().encode(val, ignore_device=ignore_device)

    def cardinality(self) -> float | int:
        """The sum over the choices; values of several choices count several times."""
        return sum(c.cardinality() if isinstance(c, TensorSpec) else 1 for c in self.choices)

    def _identity(self) -> dict[str, Any]:
        return {str(i): choice for i, choice in enumerate(self.choices)}

    def __hash__(self) -> int:
        """Equal specs have equal hashes."""
        return hash((type(self).__name__, self.shape, self.dtype, len(self.choices)))
