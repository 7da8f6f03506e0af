"""``ChatRows``: what chat environments do with rows that are ragged."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase

from rl_core import EnvBase
from rl_core.envs.entries import put_entries

__all__ = ["ChatRows", "put_entries"]


class ChatRows(EnvBase):
    """Mixin of chat environments: rollouts are lazy stacks of steps."""

    def rollout(self, *args: Any, return_contiguous: bool | None = None, **kwargs: Any) -> TensorDictBase:
        """See :meth:`rl_core.EnvBase.rollout`; steps stay a lazy stack unless ``return_contiguous=True``."""
        return super().rollout(*args, return_contiguous=bool(return_contiguous), **kwargs)
