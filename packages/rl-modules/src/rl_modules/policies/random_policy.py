"""Uniformly random actions."""

from __future__ import annotations

from typing import Any

from rl_core.errors import PolicyError
from rl_core.keys import Key
from rl_core.specs import Composite, TensorSpec
from rl_modules.policies.base import PolicyModule

__all__ = ["RandomPolicy"]


class RandomPolicy(PolicyModule):
    """Writes a random member of the action spec, whatever the observation.

    Args:
        action_spec: the environment's action spec, whose shape includes the environment's batch dims; a leaf, or a
            Composite whose keys are then the action keys.
        action_key: where a leaf's action is written.

    Raises:
        PolicyError: when called, if the batch size of the data is not that of the spec.
    """

    def __init__(self, action_spec: TensorSpec, action_key: Key = "action") -> None:
        super().__init__()
        self.action_spec = action_spec
        keys = list(action_spec.keys(True, True)) if isinstance(action_spec, Composite) else [action_key]
        self._set_keys([], keys)

    def _compute(self, *inputs: Any) -> tuple[Any, ...]:
        action = self.action_spec.rand()
        if isinstance(self.action_spec, Composite):
            return tuple(action.get(key) for key in self.out_keys_source)
        return (action,)

    def _run(self, tensordict: Any, target: Any) -> Any:
        actions = self._compute()
        batch = target.batch_size
        for action in actions:
            if action.shape[: len(batch)] != batch:
                raise PolicyError(
                    f"RandomPolicy drew an action of shape {list(action.shape)} for data of batch size {list(batch)}. "
                    f"Use the environment's own action_spec, or expand the spec: spec.expand(*batch, *spec.shape)."
                )
        self._write(target, actions)
        return target
