"""Plain functions as transforms."""

from __future__ import annotations

from collections.abc import Callable

from tensordict import TensorDictBase

from rl_core.transforms.base import Transform

__all__ = ["CallableTransform", "as_transform"]


class CallableTransform(Transform):
    """A function of a TensorDict, run on what resets and steps write (and, in a buffer, at sampling)."""

    def __init__(self, function: Callable[[TensorDictBase], TensorDictBase]) -> None:
        super().__init__()
        self.function = function

    def _call(self, tensordict: TensorDictBase) -> TensorDictBase:
        result = self.function(tensordict)
        if not isinstance(result, TensorDictBase):
            raise TypeError(
                f"{self.function!r} was used as a transform and returned {type(result).__name__}, not a TensorDict"
            )
        return result

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The function on stored data; it decides itself what to do with "next"."""
        return self._call(tensordict)


def as_transform(transform: Transform | Callable[[TensorDictBase], TensorDictBase]) -> Transform:
    """The transform itself, or a function wrapped as one."""
    if isinstance(transform, Transform):
        return transform
    if callable(transform):
        return CallableTransform(transform)
    raise TypeError(f"expected a Transform or a function of a TensorDict, got {type(transform).__name__}")
