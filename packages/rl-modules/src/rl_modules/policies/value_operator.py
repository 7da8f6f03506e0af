"""State values and state-action values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rl_core.keys import as_keys
from rl_modules.policies.safe_module import Keys, SafeModule

__all__ = ["ValueOperator"]


class ValueOperator(SafeModule):
    """A network that writes a value ``[*B, 1]``.

    Args:
        module: the network; it is called with one tensor for each input.
        in_keys: its inputs, "observation" unless given.
        out_keys: its output; unless given, "state_action_value" where "action" is among the inputs, else "state_value".

    >>> from torch import nn
    >>> ValueOperator(nn.Linear(3, 1)).out_keys
    ['state_value']
    """

    def __init__(self, module: Callable[..., Any], in_keys: Keys | None = None, out_keys: Keys | None = None) -> None:
        inputs = as_keys("observation" if in_keys is None else in_keys)
        if out_keys is None:
            out_keys = ["state_action_value" if "action" in inputs else "state_value"]
        super().__init__(module, inputs, out_keys)
