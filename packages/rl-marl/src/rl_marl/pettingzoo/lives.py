"""Who is alive, who has ended and how, and what that means for the whole episode.

The flags of each agent are the truth. An agent is alive while the game lists it and has not flagged it; what it was
flagged with stays as it is until the reset, whatever the game says of it afterwards (a game that lists it anew, after
it was away, starts another life of it). The root's flags follow:

- ``done`` (all): nobody is left; (any, ``done_on_any``): somebody has ended, or nobody is left;
- ``terminated = done & some agent terminated``; ``truncated = done & some agent was truncated``. A mixed ending sets
  both, so that it never passes for a truncation alone, and ``done = terminated | truncated`` holds. Where all agents
  left without a flag, the root is truncated;
- when the root is done, agents that have not ended are cut: their own flags say truncated, so that no trace runs from
  one episode into the next. That happens after the root's own flags are found.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl_core.errors import EnvError
from rl_marl.pettingzoo.games import Happened

__all__ = ["Lives"]


class Lives:
    """The state of every agent in the present episode, arrays over all agents.

    Args:
        names: every agent that may appear.
        done_on_any: end the episode with the first agent that ends.
    """

    def __init__(self, names: Sequence[str], done_on_any: bool) -> None:
        self.names, self.done_on_any = list(names), done_on_any
        self.index = {name: i for i, name in enumerate(self.names)}
        self.alive, self.was_alive, self.acting, self.terminated, self.truncated, self._left = (
            np.zeros(len(self.names), dtype=bool) for _ in range(6)
        )

    def begin(self, happened: Happened) -> None:
        """A reset: whoever is listed lives."""
        self._check_known(happened)
        for flags in (self.was_alive, self.terminated, self.truncated, self._left):
            flags[:] = False
        self.alive[:] = [name in happened.present for name in self.names]
        self._find_actors(happened)

    def advance(self, happened: Happened) -> tuple[bool, bool]:
        """A step.

        Returns:
            ``(terminated, truncated)`` of the root; done where one of them is.
        """
        self._check_known(happened)
        self.was_alive[:] = self.alive
        for i, name in enumerate(self.names):
            self._advance_one(i, name, happened)
        ended = self.terminated | self.truncated
        if self.alive.any() and not (self.done_on_any and ended.any()):
            self._find_actors(happened)
            return False, False
        terminated, truncated = bool(self.terminated.any()), bool(self.truncated.any())
        self.truncated |= ~ended
        self.acting[:] = self.alive[:] = False
        return terminated, truncated or not terminated

    def _advance_one(self, i: int, name: str, happened: Happened) -> None:
        listed = name in happened.present
        terminated, truncated = (bool(flags.get(name, False)) for flags in (happened.terminated, happened.truncated))
        returns = listed and (self._left[i] or not (self.terminated[i] or self.truncated[i]))
        if self.alive[i]:
            self.terminated[i], self.truncated[i] = terminated, truncated
            self.alive[i] = listed and not (terminated or truncated)
        elif returns and not (terminated or truncated):
            self.alive[i], self.terminated[i], self.truncated[i] = True, False, False
        self._left[i] = not listed

    def _find_actors(self, happened: Happened) -> None:
        self.acting[:] = self.alive & np.array([name in happened.actors for name in self.names])

    def _check_known(self, happened: Happened) -> None:
        for name in happened.present:
            if name not in self.index:
                raise EnvError(
                    f"the agent {name!r} appears, which is not among the possible_agents {self.names}; rows of a group "
                    "are made for those"
                )
