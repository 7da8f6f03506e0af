"""A policy whose every call shows that its worker lives, and looks whether something is waiting for it.

New weights are taken up here, so they never land in the middle of a call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from rl_collectors.process.control import Control
from rl_core.keys import Key
from rl_core.policy import row_policy

__all__ = ["Watch", "watched"]


class Watch:
    """Counts calls, and attends to the owner when it is called.

    Args:
        control: the worker's numbers.
        attend: called between two policy calls when the owner has something.
    """

    def __init__(self, control: Control, attend: Callable[[], None]) -> None:
        self.control, self.attend = control, attend
        self.calls = 0
        self.seen = control.attention

    def tick(self) -> None:
        """Before each policy call."""
        control = self.control
        control.advance()
        if control.attention != self.seen:
            self.look()
        self.calls += 1

    def look(self) -> None:
        """Attend to the owner."""
        self.seen = self.control.attention
        self.attend()


class _WatchedPolicy:
    """A function of a TensorDict."""

    def __init__(self, policy: Callable[[TensorDictBase], TensorDictBase], watch: Watch) -> None:
        self.policy, self.watch = policy, watch

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.watch.tick()
        return self.policy(tensordict)


class _WatchedTensorPolicy(_WatchedPolicy):
    """A policy that can also be called on bare tensors."""

    def __init__(
        self, policy: Any, watch: Watch, in_keys: list[Key], out_keys: list[Key], call: Callable[..., Any]
    ) -> None:
        super().__init__(policy, watch)
        self.in_keys, self.out_keys, self.call = in_keys, out_keys, call

    def forward_tensors(self, *inputs: Tensor) -> Any:
        self.watch.tick()
        return self.call(*inputs)


def watched(
    policy: Callable[[TensorDictBase], TensorDictBase], watch: Watch
) -> Callable[[TensorDictBase], TensorDictBase]:
    """A policy, as ``wrap_policy`` returns it, that is watched."""
    plan = row_policy(policy)
    if plan is None:
        return _WatchedPolicy(policy, watch)
    return _WatchedTensorPolicy(policy, watch, plan.in_keys, plan.out_keys, plan.call)
