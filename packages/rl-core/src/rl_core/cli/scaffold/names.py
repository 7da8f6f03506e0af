"""The names of a new plugin, all from the distribution's: package, registry name, beginning of class names."""

from __future__ import annotations

import keyword
import re
import sys
from dataclasses import dataclass

from rl_core.errors import RLError

__all__ = ["PluginNames"]

_TAKEN = {"numpy", "packaging", "pluggy", "pytest", "rl_core", "tensordict", "torch"}


@dataclass(frozen=True)
class PluginNames:
    """What a plugin and its parts are called.

    Args:
        distribution: what is installed, ``rl-grid-world``.
        package: what is imported, ``rl_grid_world``.
        name: what the registry knows its objects by, ``grid_world``.
        prefix: what its classes' names begin with, ``GridWorld``.
    """

    distribution: str
    package: str
    name: str
    prefix: str

    @classmethod
    def of(cls, distribution: str) -> PluginNames:
        """The names that follow from a distribution's name.

        Raises:
            RLError: it is no distribution's name, or no Python package can be named after it.

        Example:
            >>> PluginNames.of("rl-grid-world")
            PluginNames(distribution='rl-grid-world', package='rl_grid_world', name='grid_world', prefix='GridWorld')
            >>> PluginNames.of("demo").prefix
            'Demo'
        """
        if not re.fullmatch(r"[A-Z0-9]|[A-Z0-9][A-Z0-9._-]*[A-Z0-9]", distribution, re.IGNORECASE | re.ASCII):
            raise RLError(
                f"{distribution!r} is no distribution's name: letters, digits, '-', '_' and '.', with a letter or a "
                "digit first and last, for example rl-gridworld"
            )
        package = re.sub(r"[-_.]+", "_", distribution).lower()
        if not package.isidentifier() or keyword.iskeyword(package):
            raise RLError(f"{distribution!r} would be imported as {package!r}, which is no name in Python")
        if package in sys.stdlib_module_names or package in _TAKEN:
            raise RLError(
                f"{distribution!r} would be imported as {package!r} and hide the module of that name; "
                f"take another name, for example rl-{distribution}"
            )
        name = package.removeprefix("rl_")
        name = name if name.isidentifier() and not keyword.iskeyword(name) else package
        prefix = "".join(word[:1].upper() + word[1:] for word in name.split("_"))
        return cls(distribution, package, name, prefix)
