"""The handshake before a plugin's code runs: does the installed core fit what the plugin's metadata asks for?"""

from __future__ import annotations

from typing import Literal

from rl_core.registry.entry import Entry

__all__ = ["core_version", "lagging_side"]


def core_version() -> str:
    """The version of the rl-core that is running."""
    from rl_core.__about__ import __version__

    return __version__


def lagging_side(entry: Entry, core: str | None = None) -> Literal["core", "plugin"] | None:
    """Which side must be upgraded, None where both fit.

    The comparison is on the core's *base* version, so that 0.9.0.dev0 satisfies ``>=0.9``.

    Args:
        entry: the plugin.
        core: the core's version; the running one by default.

    Example:
        >>> plugin = Entry("losses", "ppo", "a:b", dist="d", requires_core=">=1.2,<2")
        >>> lagging_side(plugin, "1.1"), lagging_side(plugin, "2.0"), lagging_side(plugin, "1.2.0.dev0")
        ('core', 'plugin', None)
    """
    if not entry.requires_core:
        return None
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    found = Version(Version(core or core_version()).base_version)
    for specifier in SpecifierSet(entry.requires_core):
        if not specifier.contains(found, prereleases=True):
            return "core" if found < Version(specifier.version.removesuffix(".*")) else "plugin"
    return None
