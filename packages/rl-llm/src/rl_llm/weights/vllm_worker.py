"""``WeightsExtension``: what a vLLM worker needs to take new weights while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

__all__ = ["WeightsExtension"]


class WeightsExtension:
    """Mixed into vLLM's worker through ``worker_extension_cls``; called through ``collective_rpc``."""

    reload_weights: Any
    _rl_llm_version: int = 0

    def rl_llm_update(self, version: int, weights: Sequence[tuple[str, Tensor]]) -> int:
        """Take weights named as in the checkpoint; returns the version that is now in use."""
        self.reload_weights(weights_iterator=iter(weights))
        self._rl_llm_version = version
        return version

    def rl_llm_version(self) -> int:
        """The version in use, 0 before any update."""
        return self._rl_llm_version
