"""``load_dataset`` and ``register_dataset``: datasets by "prefix:name", over the registry's group of datasets."""

from __future__ import annotations

import importlib
from typing import Any

from rl_buffers.datasets.errors import DatasetError
from rl_core import registry
from rl_core.registry.errors_text import close_match

__all__ = ["load_dataset", "register_dataset"]


def load_dataset(name: str, **kwargs: Any) -> Any:
    """The dataset that a name means, such as "d4rl:hopper-medium-v2" or "minari:mujoco/hopper/medium-v0".

    Args:
        name: the prefix of a kind of dataset (``registry.datasets.names()``), a colon, and the name that it knows.
        **kwargs: arguments of that kind of dataset.

    Raises:
        UnknownNameError: there is no such kind; the text has a close one and all that are installed.

    Example:
        >>> load_dataset("d5rl:hopper-medium-v2")
        Traceback (most recent call last):
            ...
        rl_core.errors.UnknownNameError: no dataset is named 'd5rl' (did you mean 'd4rl'?); installed: ...
    """
    prefix, colon, rest = name.partition(":")
    if not colon or not prefix or not rest:
        have = registry.datasets.names()
        raise DatasetError(
            f"a dataset is named 'prefix:name', such as 'd4rl:hopper-medium-v2'; got {name!r}"
            f"{close_match(name.strip(':'), have)}. Prefixes: {', '.join(have) or 'none'}"
        )
    return registry.datasets.get(prefix)(rest, **kwargs)


def register_dataset(prefix: str, target: str, *, override: bool = False) -> None:
    """Offer a kind of dataset under a prefix, in this process; a distribution does it with an entry point.

    Args:
        prefix: what stands before the colon.
        target: "module:Class", imported when the first one is loaded.
        override: whether a prefix that exists may be hidden.

    Raises:
        AmbiguousNameError: the prefix exists.
    """
    module, colon, attribute = target.partition(":")
    if not module or not colon or not attribute.isidentifier():
        raise DatasetError(f"the target of {prefix!r} is 'module:Class', got {target!r}")
    there = registry.datasets.registered().get(prefix)
    known = there if isinstance(there, _LateImport) and there.target == target else _LateImport(prefix, target)
    registry.datasets.register(prefix, known, override=override)


class _LateImport:
    """Calls what a target names."""

    def __init__(self, prefix: str, target: str) -> None:
        self.prefix, self.target = prefix, target

    def __repr__(self) -> str:
        return f"<dataset {self.prefix}: {self.target}>"

    def __call__(self, name: str, **kwargs: Any) -> Any:
        module, _, attribute = self.target.partition(":")
        try:
            kind = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise DatasetError(
                f"the dataset {self.prefix!r} is {self.target}, which cannot be imported: {error}"
            ) from error
        return kind(name, **kwargs)
