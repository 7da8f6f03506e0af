"""Functions, lambdas and local classes as bytes, by cloudpickle."""

from __future__ import annotations

from typing import Any

import cloudpickle  # type: ignore[import-untyped]

__all__ = ["dumps"]


def dumps(value: Any) -> bytes:
    """The value, with the code of what cannot be imported elsewhere."""
    return bytes(cloudpickle.dumps(value))
