"""``PolicyVersions``: which weights a policy acts with, and whether those sent last have arrived."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensordict import TensorDictBase
from torch import nn

from rl_core.collectors.weight_sync import WeightSync
from rl_core.errors import CollectorError
from rl_llm.policies.base import LLMWrapperBase
from rl_llm.weights.module_sync import ModuleWeightSync

__all__ = ["PolicyVersions"]


class PolicyVersions:
    """Counts the updates of a policy's weights, and carries them.

    Args:
        policy: what acts.
        sync: brings weights to it; None: the policy is trained itself, or weights are copied into it.

    Raises:
        CollectorError: the policy is an engine that only a sync can reach.
    """

    def __init__(self, policy: Any, sync: WeightSync | None) -> None:
        self.policy, self.sync = policy, sync
        self._first = 0 if sync is None else sync.version
        self._own = 0  # updates of a policy that has no version of its own
        self._before = 0  # in the run that is resumed

    @property
    def current(self) -> int:
        """The version of the weights that act now."""
        return self._before + (self.policy.policy_version if isinstance(self.policy, LLMWrapperBase) else self._own)

    def call(self, policy: Callable[[TensorDictBase], Any], td: TensorDictBase) -> tuple[Any, int]:
        """What the policy makes of a batch, and the version that it did so with: no update comes between the two."""
        if not isinstance(self.policy, LLMWrapperBase):
            return policy(td), self.current
        with self.policy.engine_state.lock:
            return policy(td), self.current

    def restore(self, version: int) -> None:
        """Go on counting at a version."""
        self._before += version - self.current

    def check(self) -> None:
        """Raise where the weights sent last have not arrived.

        Raises:
            CollectorError: the policy has another version than the one sent last.
        """
        if self.sync is None or self.sync.version == self._first or not isinstance(self.policy, LLMWrapperBase):
            return
        has, sent = self.policy.policy_version, self.sync.version
        if has != sent:
            raise CollectorError(
                f"the policy missed a weight sync: it acts with version {has}, version {sent} was sent last. Is this "
                "policy among those of the weight_sync? Send again to all: collector.update_policy_weights_(model)"
            )

    def update(self, source: Any) -> None:
        """Bring weights to the policy.

        Args:
            source: see :meth:`~rl_llm.collectors.llm_collector.LLMCollector.update_policy_weights_`.

        Raises:
            CollectorError: they did not arrive.
        """
        if self.sync is not None:
            if source is None:
                raise CollectorError(
                    "with a weight_sync, say whose weights are sent: update_policy_weights_(model), the one in training"
                )
            version = self.sync.send(source)
            if version != self.sync.version:
                raise CollectorError(f"the weight_sync sent version {version} and says {self.sync.version}")
            self._own += 1
            self.check()
        elif source is None or source is self.policy or source is _model(self.policy):
            self._count()
        else:
            self._copy(source)

    def _count(self) -> None:
        self._own += 1
        if isinstance(self.policy, LLMWrapperBase):
            with self.policy.engine_state.lock:
                self.policy.engine_state.version += 1

    def _copy(self, source: Any) -> None:
        if not isinstance(_model(self.policy), nn.Module):
            raise CollectorError(
                f"the weights of a {type(self.policy).__name__} cannot be copied from here: give the collector a "
                "weight_sync, e.g. VLLMWeightSync(policy)"
            )
        has = self.policy.policy_version if isinstance(self.policy, LLMWrapperBase) else 0
        ModuleWeightSync([self.policy]).send(source)
        self._own += 1
        if isinstance(self.policy, LLMWrapperBase):
            with self.policy.engine_state.lock:
                self.policy.engine_state.version = has + 1


def _model(policy: Any) -> Any:
    return policy.model if isinstance(policy, LLMWrapperBase) else policy
