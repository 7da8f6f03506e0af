"""Every error the library raises on purpose, in one tree.

::

    RLError
    ├── SpecError (ValueError)          a value or a shape that a spec does not admit
    │   └── LossError                   two entries of a loss or an estimator whose shapes do not fit
    ├── KeyMissingError (KeyError)      a TensorDict lacks a key that a component needs
    ├── EnvError (RuntimeError)         an environment breaks its contract
    ├── PolicyError (RuntimeError)      a policy does not write what is needed
    ├── CollectorError (RuntimeError)   budgets, workers, weight syncs
    ├── ReplayBufferError (RuntimeError) storages, samplers, writers
    ├── CheckpointError (RuntimeError)  files that do not hold what is asked of them
    ├── NativeError (RuntimeError)      the compiled kernels
    └── PluginError (RuntimeError)
        ├── UnknownNameError            no such name
        ├── PluginNotInstalledError     known, but its distribution is absent
        ├── PluginImportError           the plugin's own import failed
        ├── PluginVersionError          core and plugin do not fit
        ├── AmbiguousNameError          two distributions offer one name
        └── WrongKindError              the object behind a name is of another kind
"""

from __future__ import annotations

__all__ = [
    "AmbiguousNameError",
    "CheckpointError",
    "CollectorError",
    "EnvError",
    "KeyMissingError",
    "LossError",
    "NativeError",
    "PluginError",
    "PluginImportError",
    "PluginNotInstalledError",
    "PluginVersionError",
    "PolicyError",
    "RLError",
    "ReplayBufferError",
    "SpecError",
    "UnknownNameError",
    "WrongKindError",
]


class RLError(Exception):
    """Root of the tree."""


class SpecError(RLError, ValueError):
    """A value or a shape that a spec does not admit."""


class LossError(SpecError):
    """Entries of a loss or an estimator whose shapes do not fit: they would be broadcast against each other's rows."""


class KeyMissingError(RLError, KeyError):
    """A TensorDict lacks a key that a component needs."""

    def __str__(self) -> str:
        # KeyError shows repr(message), which would hide line breaks and double the quotes.
        return str(self.args[0]) if self.args else ""


class EnvError(RLError, RuntimeError):
    """An environment breaks its contract."""


class PolicyError(RLError, RuntimeError):
    """A policy does not read or write what the environment needs."""


class CollectorError(RLError, RuntimeError):
    """A collector's budgets, workers or weight syncs."""


class ReplayBufferError(RLError, RuntimeError):
    """A replay buffer's storage, sampler or writer."""


class CheckpointError(RLError, RuntimeError):
    """A checkpoint that does not hold what is asked of it."""


class NativeError(RLError, RuntimeError):
    """A compiled kernel that cannot be used."""


class PluginError(RLError, RuntimeError):
    """A plugin that cannot be used."""


class UnknownNameError(PluginError):
    """No installed plugin offers the name."""


class PluginNotInstalledError(PluginError):
    """The name is known, but the distribution that offers it is not installed."""


class PluginImportError(PluginError):
    """A plugin's own import failed."""


class PluginVersionError(PluginError):
    """The installed core and plugin do not fit together."""


class AmbiguousNameError(PluginError):
    """Two distributions offer one name."""


class WrongKindError(PluginError):
    """The object behind a name is not of the group's kind."""
