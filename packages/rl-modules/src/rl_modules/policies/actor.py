"""Deterministic policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rl_core.specs import TensorSpec
from rl_modules.policies.safe_module import Keys, SafeModule

__all__ = ["Actor"]


class Actor(SafeModule):
    """A network that writes an action.

    Args:
        module: the network.
        in_keys: its inputs, "observation" unless given.
        out_keys: its outputs, "action" unless given.
        spec: spec of the action, a leaf or a Composite.
        safe: project actions outside the spec onto it.
    """

    def __init__(
        self,
        module: Callable[..., Any],
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        *,
        spec: TensorSpec | None = None,
        safe: bool = False,
    ) -> None:
        super().__init__(
            module,
            ["observation"] if in_keys is None else in_keys,
            ["action"] if out_keys is None else out_keys,
            spec,
            safe=safe,
        )
