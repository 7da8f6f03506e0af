"""A transform with its two directions swapped: forward where rows are written, inverse where they are sampled."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase

from rl_core.errors import ReplayBufferError
from rl_core.transforms import Transform

__all__ = ["Inverted"]


class Inverted(Transform):
    """Runs the inverse of a transform at sampling and its forward at writing (``append_transform(t, invert=True)``)."""

    def __init__(self, transform: Any) -> None:
        super().__init__()
        if not isinstance(transform, Transform):
            raise TypeError(f"invert=True needs a Transform, which has two directions, got {type(transform).__name__}")
        transform.set_container(self)
        self.transform = transform

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Sampled data through the inverse."""
        rows = self.transform.inv(tensordict)
        if rows is None:
            raise ReplayBufferError(
                f"{type(self.transform).__name__} holds rows back on their way in; appended with invert=True it has to "
                "return each sampled batch"
            )
        return rows

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Data to be written, through the forward; the TensorDict given is left as it is."""
        return self.transform(tensordict.copy())
