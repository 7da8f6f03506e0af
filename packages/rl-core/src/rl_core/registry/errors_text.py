"""The words of every plugin error, one function each: what was asked, what was found, and the command that mends it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rl_core.errors import (
    AmbiguousNameError,
    PluginError,
    PluginImportError,
    PluginNotInstalledError,
    PluginVersionError,
    UnknownNameError,
    WrongKindError,
)
from rl_core.registry.entry import Entry
from rl_core.registry.groups import GROUPS

__all__ = [
    "ambiguous",
    "broken_import",
    "close_match",
    "core_too_old",
    "disabled",
    "known_but_absent",
    "malformed_env_id",
    "missing_extra",
    "missing_module",
    "name_taken",
    "not_registered",
    "plugin_too_old",
    "unknown_group",
    "unknown_id",
    "unknown_name",
    "unreadable",
    "wrong_kind",
]


def unknown_name(
    group: str, name: str, installed: Sequence[str], failures: Mapping[str, PluginError] | None = None
) -> UnknownNameError:
    """No installed distribution offers the name."""
    have = f"installed: {_listing(installed)}" if installed else f"no {_noun(group)} is installed"
    text = f"no {_noun(group)} is named {name!r}{close_match(name, installed)}; {have}"
    if failures:
        text += ". Not usable: " + "; ".join(f"{key} ({_first_line(error)})" for key, error in failures.items())
    return UnknownNameError(text + ". All names: rl plugins")


def known_but_absent(group: str, name: str, requirement: str, upgrade: bool = False) -> PluginNotInstalledError:
    """One of our own distributions offers the name, but it is not installed, or too old to offer it."""
    state, option = ("not in the installed version", "-U ") if upgrade else ("not installed", "")
    return PluginNotInstalledError(
        f"the {_noun(group)} {name!r} is known but {state}: pip install {option}'{requirement}'"
    )


def missing_extra(library: str, dist: str, extra: str | None = None) -> PluginNotInstalledError:
    """For adapters: the third-party library behind a plugin is not installed.

    Example:
        >>> print(missing_extra("gymnasium", "rl-envs", "gym"))
        gymnasium is needed but not installed: pip install 'rl-envs[gym]'
    """
    requirement = f"{dist}[{extra}]" if extra else dist
    return PluginNotInstalledError(f"{library} is needed but not installed: pip install '{requirement}'")


def missing_module(what: str, module: str | None) -> PluginImportError:
    """A plugin ran, and found that a module it needs is not there."""
    needs, cure = (f"the module {module!r}", f"pip install {module.partition('.')[0]}") if module else ("a module", "")
    tail = f": {cure} (the package may have another name)" if cure else ""
    return PluginImportError(f"{what} needs {needs}, which is not installed{tail}; more: rl doctor")


def broken_import(entry: Entry, cause: BaseException, core: str) -> PluginImportError:
    """The plugin's own import failed; raise it ``from`` the cause."""
    return PluginImportError(
        f"the {_noun(entry.group)} {entry.name!r} of {entry.owner} ({entry.value}) cannot be imported "
        f"under rl-core {core}: {type(cause).__name__}: {_first_line(cause)}. "
        f"Try: pip install -U {entry.dist}; more: rl doctor {entry.dist}"
    )


def core_too_old(entry: Entry, core: str) -> PluginVersionError:
    """The plugin asks for a newer core."""
    return PluginVersionError(
        f"{entry.owner} needs rl-core{entry.requires_core}, but rl-core {core} is older; its code was not run. "
        f"Upgrade the core: pip install -U 'rl-core{entry.requires_core}'"
    )


def plugin_too_old(entry: Entry, core: str) -> PluginVersionError:
    """The plugin was made for an older core."""
    return PluginVersionError(
        f"{entry.owner} was made for rl-core{entry.requires_core}, but rl-core {core} is newer; its code was not run. "
        f"Upgrade the plugin: pip install -U {entry.dist}"
    )


def ambiguous(group: str, name: str, entries: Sequence[Entry]) -> AmbiguousNameError:
    """Two distributions offer one name."""
    owners = " and ".join(entry.owner for entry in entries)
    tail = ":ID" if group == "envs" else ""
    forms = " or ".join(repr(entry.qualified + tail) for entry in entries)
    return AmbiguousNameError(
        f"the {_noun(group)} {name!r} is offered by {owners}: say {forms}, "
        f"or turn one off with RL_DISABLE_PLUGINS={entries[-1].dist}"
    )


def name_taken(group: str, name: str, owner: str) -> AmbiguousNameError:
    """A registration in process would hide a name that exists."""
    return AmbiguousNameError(
        f"the {_noun(group)} {name!r} exists already ({owner}); register another name, or say override=True to hide it"
    )


def not_registered(group: str, name: str, registered: Sequence[str]) -> UnknownNameError:
    """A name to unregister was not registered in process."""
    return UnknownNameError(
        f"the {_noun(group)} {name!r} was not registered in this process{close_match(name, registered)}; "
        f"registered: {_listing(registered)}. An installed plugin is turned off with RL_DISABLE_PLUGINS"
    )


def wrong_kind(group: str, name: str, owner: str, found: Any) -> WrongKindError:
    """The object behind a name is of another kind than its group."""
    what = f"the class {found.__qualname__}" if isinstance(found, type) else f"a {type(found).__name__}"
    methods = [method for method in GROUPS[group].methods if not hasattr(found, method)]
    lacks = f" without {', '.join(methods)}" if methods else ""
    return WrongKindError(
        f"the {_noun(group)} {name!r} of {owner} is {what}{lacks}; the group rl_core.{group} holds "
        f"{GROUPS[group].expected}"
    )


def unknown_id(provider: str, id: str, ids: Sequence[str], said: BaseException | None = None) -> UnknownNameError:
    """The provider exists, but has no environment of this id; providers may raise it themselves."""
    text = f"{provider} has no environment {id!r}{close_match(id, ids, prefix=provider + ':')}; it has {_listing(ids)}"
    if said is not None:
        text += f". It said: {type(said).__name__}: {_first_line(said)}"
    return UnknownNameError(text)


def malformed_env_id(text: str) -> UnknownNameError:
    """An environment's name lacks its provider or its id."""
    return UnknownNameError(
        f"an environment is named 'provider:id', for example 'gym:CartPole-v1'; got {text!r}. "
        "Providers: rl plugins; ids of one: registry.envs.ids('gym')"
    )


def unknown_group(group: str) -> UnknownNameError:
    """No such group of names."""
    return UnknownNameError(
        f"no group is named {group!r}{close_match(group, list(GROUPS))}; groups: {', '.join(GROUPS)}"
    )


def disabled(entry: Entry, switch: str) -> PluginError:
    """The name is turned off by the environment variable."""
    return PluginError(
        f"the {_noun(entry.group)} {entry.name!r} of {entry.owner} is turned off by RL_DISABLE_PLUGINS={switch}; "
        "take it out of that variable to use it"
    )


def unreadable(dist: str, problem: str, location: str = "") -> PluginError:
    """The distribution's metadata cannot be read, so nothing can be said about its fit."""
    where = f" in {location}" if location else ""
    return PluginError(
        f"the metadata of {dist}{where} cannot be read ({problem}); its code was not run. "
        f"Reinstall it: pip install --force-reinstall --no-deps {dist}"
    )


def close_match(name: str, names: Iterable[str], prefix: str = "") -> str:
    """The question after an unknown name, empty where nothing is close.

    >>> close_match("pppo", ["ppo", "sac"])
    " (did you mean 'ppo'?)"
    """
    folded = {candidate.lower(): candidate for candidate in names}
    matches = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.6)
    return f" (did you mean {prefix + folded[matches[0]]!r}?)" if matches else ""


def _noun(group: str) -> str:
    return GROUPS[group].noun if group in GROUPS else f"name of rl_core.{group}"


def _listing(names: Sequence[str], most: int = 12) -> str:
    if not names:
        return "none"
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "(no message)")
