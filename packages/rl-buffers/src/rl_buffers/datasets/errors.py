"""The error of offline datasets."""

from __future__ import annotations

from rl_core.errors import ReplayBufferError

__all__ = ["DatasetError"]


class DatasetError(ReplayBufferError):
    """A dataset's files are absent, damaged, or do not hold what their format promises."""
