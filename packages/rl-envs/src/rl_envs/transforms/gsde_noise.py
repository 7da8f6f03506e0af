"""``gSDENoise``: the noise matrix of generalised state-dependent exploration, drawn at every reset."""

from __future__ import annotations

from typing import Any

from rl_core import Unbounded
from rl_envs.transforms.primer import TensorDictPrimer

__all__ = ["gSDENoise"]


class gSDENoise(TensorDictPrimer):  # noqa: N801 (the published name)
    """Writes ``_eps_gSDE``, standard normal ``[*B, A, S]``, at resets; it stays the same for an episode.

    (Raffin, Kober, Stulp 2022, "Smooth Exploration for Robotic Reinforcement Learning", arXiv 2005.05719, section 3.1.)
    ``gSDEModule`` of rl-modules reads it.

    Args:
        state_dim: S, the features that the noise is linear in.
        action_dim: A.
        shape: of one environment's noise, instead of ``(action_dim, state_dim)``.
        **kwargs: of :class:`TensorDictPrimer`.

    Example:
        >>> from rl_core import TransformedEnv
        >>> from rl_core.testing import CountingEnv
        >>> TransformedEnv(CountingEnv(), gSDENoise(state_dim=4, action_dim=1)).reset()["_eps_gSDE"].shape
        torch.Size([1, 4])
    """

    def __init__(
        self,
        state_dim: int | None = None,
        action_dim: int | None = None,
        shape: tuple[int, ...] | None = None,
        **kwargs: Any,
    ) -> None:
        if shape is None:
            if state_dim is None or action_dim is None:
                raise ValueError(
                    f"gSDENoise got state_dim={state_dim} and action_dim={action_dim}; it needs both, or shape=(A, S)"
                )
            shape = (action_dim, state_dim)
        super().__init__({"_eps_gSDE": Unbounded(shape=shape)}, random=True, **kwargs)
        self.state_dim, self.action_dim = state_dim, action_dim
