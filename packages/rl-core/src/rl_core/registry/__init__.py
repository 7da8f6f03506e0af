"""Plugins by name: what is installed, found through entry points and imported only when it is asked for.

``from rl_core import registry`` gives this module: the groups (``registry.envs``, ``registry.losses`` ...), and what is
said of all of them. It imports neither torch nor any plugin.

Example:
    >>> from rl_core import registry
    >>> with registry.isolated(entry_points=[]):
    ...     registry.losses.get("ppo")
    Traceback (most recent call last):
    rl_core.errors.PluginNotInstalledError: the loss 'ppo' is known but not installed: pip install 'rl-objectives'
"""

from __future__ import annotations

import sys
from typing import cast

from rl_core.registry.catalogue import Registry as Registry
from rl_core.registry.entry import Entry as Entry
from rl_core.registry.env_ref import EnvRef as EnvRef
from rl_core.registry.errors_text import missing_extra as missing_extra
from rl_core.registry.errors_text import unknown_id as unknown_id
from rl_core.registry.providers import EnvProvider as EnvProvider

__all__ = ["Entry", "EnvProvider", "EnvRef", "Registry", "missing_extra", "registry", "unknown_id"]

_default = Registry()

envs = _default.envs
transforms = _default.transforms
modules = _default.modules
losses = _default.losses
estimators = _default.estimators
collectors = _default.collectors
storages = _default.storages
samplers = _default.samplers
writers = _default.writers
buffers = _default.buffers
target_updates = _default.target_updates
datasets = _default.datasets
recipes = _default.recipes
loggers = _default.loggers
weight_syncs = _default.weight_syncs
hooks = _default.hooks
commands = _default.commands

groups = _default.groups
group = _default.group
entries = _default.entries
problems = _default.problems
refresh = _default.refresh
memory = _default.memory
isolated = _default.isolated

# ``rl_core.registry`` is this module whichever way it was imported; type checkers see the registry that it speaks for.
registry: Registry = cast("Registry", sys.modules[__name__])
