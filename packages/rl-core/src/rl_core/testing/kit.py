"""What all conformance kits share: a check may be newer than a plugin, and is not overridden without a reason.

A kit grows with the core. A check that came with core 1.3 says so::

    class StorageKit(Kit):
        @since("1.3")
        def test_rows_can_be_cleared(self): ...

and a plugin that asks for ``rl-core>=1.2`` sees its failure as an expected one (xfail) until it raises its floor.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import sys
from collections.abc import Callable
from typing import Any, ClassVar, ParamSpec, TypeVar

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from rl_core.errors import RLError

__all__ = ["Kit", "core_floor", "overrides_check", "since"]

P = ParamSpec("P")
R = TypeVar("R")

_REASON = "__overrides_check__"


def core_floor(distribution: str) -> Version | None:
    """The oldest rl-core that an installed distribution asks for; None where it has no floor or is not installed.

    Args:
        distribution: its name, e.g. "rl-envs".

    Example:
        >>> core_floor("no-such-distribution") is None
        True
    """
    try:
        lines = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    floors = [
        Version(clause.version.removesuffix(".*"))
        for requirement in map(Requirement, lines)
        if canonicalize_name(requirement.name) == "rl-core"
        for clause in requirement.specifier
        if clause.operator in (">=", ">", "~=", "==")
    ]
    return max(floors, default=None)


def since(version: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark a kit's check as new in a version of rl-core.

    For a plugin with an older floor its failure is reported as an expected one; for all others it is a plain check.

    Args:
        version: the core's version that brought the check, e.g. "1.3".
    """
    introduced = Version(Version(version).base_version)

    def mark(check: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(check)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            kit = args[0]
            assert isinstance(kit, Kit), f"@since is for the checks of a Kit, not for {check.__qualname__}"
            floor = kit.floor()
            if floor is None or Version(floor.base_version) >= introduced:
                return check(*args, **kwargs)
            return _expecting_failure(
                lambda: check(*args, **kwargs),
                f"{check.__name__} is new in rl-core {version}; {kit.owning_distribution()} asks for rl-core>={floor}",
            )

        return run

    return mark


def overrides_check(*, reason: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Say why a subclass replaces a kit's check; without it the replacement is an error.

    Args:
        reason: in words, e.g. "rows of a list have no fixed structure".
    """
    if not isinstance(reason, str) or not reason.strip():
        raise RLError(f"overrides_check(reason={reason!r}): say in words why the check does not hold for the subject")

    def mark(check: Callable[P, R]) -> Callable[P, R]:
        setattr(check, _REASON, reason)
        return check

    return mark


class Kit:
    """The base of every conformance kit.

    Attributes:
        distribution: the distribution that owns the subject, e.g. "rl-envs"; checks that are newer than its floor of
            rl-core are then expected to fail. None takes the environment variable ``RL_KIT_DISTRIBUTION`` (set by
            ``nox -s compat``), and where that is not set every check counts.

    Raises:
        RLError: when a subclass is made that replaces a check without ``@overrides_check(reason=...)``.
    """

    distribution: ClassVar[str | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, value in vars(cls).items():
            owner = next((base for base in cls.__mro__[1:] if name in vars(base)), None)
            if name.startswith("test_") and owner is not None and not getattr(value, _REASON, ""):
                raise RLError(
                    f"{cls.__name__}.{name} replaces a check of {owner.__name__} without a reason: give it another"
                    f' name, or say why the check does not hold with @overrides_check(reason="...")'
                )

    def owning_distribution(self) -> str | None:
        """The distribution that owns the subject, where it is known."""
        return self.distribution or os.environ.get("RL_KIT_DISTRIBUTION") or None

    def floor(self) -> Version | None:
        """The oldest rl-core that the tested distribution asks for, where that is known."""
        distribution = self.owning_distribution()
        return None if distribution is None else core_floor(distribution)


def _expecting_failure(check: Callable[[], R], reason: str) -> R:
    pytest = sys.modules.get("pytest")  # the core does not depend on it; where it does not run, there is no xfail
    if pytest is None:
        return check()
    try:
        return check()
    except (Exception, pytest.fail.Exception) as error:
        pytest.xfail(f"{reason}: {type(error).__name__}: {error}")
        raise
