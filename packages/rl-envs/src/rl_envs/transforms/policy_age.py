"""``PolicyAgeFilter``: leaves out steps that a policy of long ago took."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tensordict import TensorDictBase

from rl_core import Transform
from rl_core.errors import KeyMissingError, SpecError
from rl_core.keys import Key, as_key, as_path

__all__ = ["PolicyAgeFilter"]

_log = logging.getLogger(__name__)


class PolicyAgeFilter(Transform):
    """Keeps the rows with ``policy_version >= current_version - max_policy_lag``, on the way in and out of a buffer.

    A collector writes the version with ``track_policy_version=True``.

    Args:
        current_version: the learner's version, or a function that gives it.
        max_policy_lag: how many versions a row may be behind.
        policy_version_key: the versions, int ``[*B]`` or ``[*B, 1]``. Of sequences (several batch dimensions) a row
            counts by its oldest step.
        strict: data without versions are an error; by default they pass, with a warning in the log.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> PolicyAgeFilter(5, 2)(TensorDict(policy_version=torch.arange(7), batch_size=[7]))["policy_version"]
        tensor([3, 4, 5, 6])
    """

    def __init__(
        self,
        current_version: int | Callable[[], int],
        max_policy_lag: int,
        *,
        policy_version_key: Key = "policy_version",
        strict: bool = False,
    ) -> None:
        super().__init__()
        if max_policy_lag < 0:
            raise ValueError(f"max_policy_lag is {max_policy_lag}; it is a number of versions, 0 or more")
        self.current_version, self.max_policy_lag, self.strict = current_version, max_policy_lag, strict
        self.in_keys = [as_key(as_path(policy_version_key))]

    def _kept(self, tensordict: TensorDictBase) -> TensorDictBase:
        version = tensordict.get(self.in_keys[0], None)
        if version is None:
            if self.strict:
                raise KeyMissingError(
                    f"PolicyAgeFilter needs {self.in_keys[0]!r}; the data has {list(tensordict.keys(True, True))}. "
                    "Collect with track_policy_version=True, name it with policy_version_key=..., or pass strict=False"
                )
            _log.warning(
                "PolicyAgeFilter lets data without %r pass; collect with track_policy_version=True", self.in_keys[0]
            )
            return tensordict
        if not tensordict.batch_dims:
            raise SpecError("PolicyAgeFilter leaves out rows; this TensorDict has the batch size ()")
        current = self.current_version() if callable(self.current_version) else self.current_version
        young = (version >= current - self.max_policy_lag).reshape(len(tensordict), -1).all(-1)
        return tensordict if bool(young.all()) else tensordict[young]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Sampled rows that are young enough, possibly none."""
        return self._kept(tensordict)

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase | None:
        """Rows to store; None where there are none."""
        kept = self._kept(tensordict)
        return kept if len(kept) else None

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return tensordict_reset
