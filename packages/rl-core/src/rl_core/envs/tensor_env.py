"""``TensorEnv``: an environment whose step is a function of tensors, with its whole state among them.

It defines one method, :meth:`TensorEnv._step_entries`; ``_step`` on TensorDicts follows from it. Rollouts call it on
plain dictionaries and need no container per step; gradients flow through both.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from tensordict import TensorDict, TensorDictBase

from rl_core.checking import checks_enabled
from rl_core.envs.base import EnvBase
from rl_core.envs.ends import complete_ends, no_ends
from rl_core.keys import END_NAMES
from rl_core.policy import row_policy

__all__ = ["TensorEnv"]

# A subclass that changes one of these is stepped through it, on TensorDicts.
_STEPPING = ("step", "_step", "_step_complete", "step_mdp", "maybe_reset", "rand_action", "any_done")


class TensorEnv(EnvBase):
    """Base of stateless environments over tensors; subclasses define :meth:`_step_entries`."""

    batch_locked = False

    def _step_entries(self, entries: dict[str, Any]) -> dict[str, Any]:
        """``_step`` without containers.

        Args:
            entries: the root's entries at time t: state, action and whatever else; groups are TensorDicts. Read only.

        Returns:
            new observations and rewards of time t + 1, and end flags where episodes end, by name.
        """
        raise NotImplementedError(f"{type(self).__name__} must define _step_entries(self, entries) -> dict")

    @property
    def stack_key(self) -> Hashable | None:
        """What environments of one class must share to be stepped as one; None: each is stepped by itself.

        A batch whose environments have one class, one batch size and equal keys may call :meth:`_step_entries` of one
        of them on the stacked entries of all. A class gives a key where each row then has, to the last bit, the numbers
        that it has alone: arithmetic element by element (no products of matrices), nothing drawn, no attribute read
        that is not in the key. It counts for the class that defines it; a subclass says for itself.
        """
        return None

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        written = self._step_entries(dict(tensordict.items()))
        return TensorDict(written, batch_size=tensordict.batch_size, device=tensordict.device)

    def _step_complete(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The end flags of a step that ends nothing go into its TensorDict as that is made."""
        if not self._validated or not self._steps_plainly():
            return super()._step_complete(tensordict)
        size, device = tensordict.batch_size, tensordict.device
        written = self._step_entries(dict(tensordict.items()))
        if written.keys().isdisjoint(END_NAMES):
            ends = no_ends(self.end_groups, size, device)
            return TensorDict({**written, **ends}, batch_size=size, device=device)
        return complete_ends(TensorDict(written, batch_size=size, device=device), self.end_groups, batch_locked=False)

    def _steps_plainly(self) -> bool:
        """Whether nothing but :meth:`_step_entries` and the end flags makes a step."""
        if self.run_type_checks or checks_enabled() or self.batch_locked or self.auto_reset:
            return False
        return self._derive("plain", self._is_plain)

    def _is_plain(self) -> bool:
        flat = all(isinstance(key, str) for key in (*self.observation_keys, *self.done_keys, *self.reward_keys))
        return flat and all(getattr(type(self), name) is getattr(TensorEnv, name) for name in _STEPPING)

    def steps_without_container(self, policy: Any, start: TensorDictBase) -> bool:
        """Whether a rollout may leave TensorDicts out of its steps.

        Args:
            policy: as :func:`~rl_core.policy.wrap_policy` returns it, or None for random actions.
            start: the root of its first step.
        """
        if not self._steps_plainly() or "next" in start:
            return False
        if policy is None:
            return all(isinstance(key, str) and mask_key is None for key, _, mask_key in self._action_leaves())
        plan = row_policy(policy)
        if plan is None or not all(key in start for key in plan.in_keys):
            return False
        return all(isinstance(key, str) for key in (*self.action_keys, *plan.in_keys, *plan.out_keys))
