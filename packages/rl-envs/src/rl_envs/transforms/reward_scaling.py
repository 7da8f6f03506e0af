"""``RewardScaling``: an affine map of rewards."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from rl_core.keys import Key
from rl_envs.transforms.observation_norm import ObservationNorm

__all__ = ["RewardScaling"]


class RewardScaling(ObservationNorm):
    """``reward * scale + loc``, or with ``standard_normal=True`` ``(reward - loc) / scale``.

    Args:
        loc: the location.
        scale: the scale.
        in_keys: rewards; default ``["reward"]``.
        out_keys: where to write them; default: the same keys.
        standard_normal: divide instead of multiply.

    Example:
        >>> from rl_core import TransformedEnv
        >>> from rl_core.testing import CountingEnv
        >>> env = TransformedEnv(CountingEnv(length=3), RewardScaling(loc=1.0, scale=0.5))  # rewards 1, 2, 3
        >>> env.rollout(5)["next", "reward"].flatten()
        tensor([1.5000, 2.0000, 2.5000])
    """

    def __init__(
        self,
        loc: float | Tensor,
        scale: float | Tensor,
        in_keys: Key | Iterable[Key] | None = None,
        out_keys: Key | Iterable[Key] | None = None,
        standard_normal: bool = False,
    ) -> None:
        super().__init__(
            loc, scale, ["reward"] if in_keys is None else in_keys, out_keys, standard_normal=standard_normal
        )
