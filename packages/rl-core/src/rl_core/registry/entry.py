"""One offered name: which group, which distribution, which object, and what its metadata asks of the core."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Entry", "Problem", "normalized"]


def normalized(distribution: str) -> str:
    """A distribution's name as PEP 503 compares it.

    >>> normalized("My_Dist.Envs")
    'my-dist-envs'
    """
    return re.sub(r"[-_.]+", "-", distribution).lower()


@dataclass(frozen=True)
class Entry:
    """A name that a distribution offers, known from metadata alone.

    Args:
        group: the group, without the prefix ``rl_core.``.
        name: the name.
        value: the object's place, ``"module:attribute"``.
        dist: the distribution.
        version: the distribution's version, None where it cannot be read.
        requires_core: the versions of rl-core that the distribution asks for (``">=1.2,<2"``), None for none.
        problem: why the metadata cannot be trusted, None where it can.
        location: where the metadata lies.
        copies: other places on ``sys.path`` that hold the same distribution; the first on the path counts.
    """

    group: str
    name: str
    value: str
    dist: str
    version: str | None = None
    requires_core: str | None = None
    problem: str | None = None
    location: str = ""
    copies: tuple[str, ...] = ()

    @property
    def qualified(self) -> str:
        """The name that is unambiguous where two distributions offer it.

        >>> Entry("losses", "ppo", "a:b", dist="my-dist").qualified
        'my-dist/ppo'
        """
        return f"{self.dist}/{self.name}"

    @property
    def owner(self) -> str:
        """Distribution and version, as texts name them.

        >>> Entry("losses", "ppo", "a:b", dist="my-dist", version="1.2").owner
        'my-dist 1.2'
        """
        return f"{self.dist} {self.version}" if self.version else self.dist

    def is_named(self, name: str) -> bool:
        """Whether ``name`` means this entry, plain or qualified by its distribution."""
        if name == self.name:
            return True
        dist, slash, rest = name.partition("/")
        return bool(slash) and rest == self.name and normalized(dist) == normalized(self.dist)


@dataclass(frozen=True)
class Problem:
    """A distribution that seems to offer plugins but whose list of them cannot be read."""

    dist: str
    text: str
    location: str = ""
