"""What a worker is started with, as bytes: environment functions and policies, whatever they are.

Tensors go by value: the worker's policy never shares memory with the one that is trained.
"""

from __future__ import annotations

import pickle
from dataclasses import fields
from importlib.util import find_spec
from typing import Any

from rl_core.errors import CollectorError

__all__ = ["packed", "packed_settings"]


def packed(value: Any, what: str) -> bytes:
    """A value as bytes that ``pickle.loads`` takes back in another process.

    With cloudpickle, functions that cannot be imported (lambdas, closures, those of a notebook) travel too.

    Args:
        value: the value.
        what: its name in the error.

    Raises:
        CollectorError: it cannot be sent.
    """
    by_value = find_spec("cloudpickle") is not None
    try:
        if not by_value:
            return pickle.dumps(value)
        from rl_collectors.process.by_value import dumps

        return dumps(value)
    except Exception as error:  # pickling raises whatever the objects raise
        cure = "make what it holds inside of the function instead" if by_value else "pip install cloudpickle"
        raise CollectorError(
            f"{what} cannot be sent to a worker ({type(error).__name__}: {error}). {cure[0].upper()}{cure[1:]}, define "
            "it at the top of a module, pass an EnvRef or a name such as 'gym:CartPole-v1', or mp_start_method='fork'"
        ) from error


def packed_settings(settings: Any, what: str) -> bytes:
    """The settings of a worker, a dataclass, as bytes; the error names the field that cannot be sent."""
    try:
        return packed(settings, what)
    except CollectorError:
        for field in fields(settings):
            packed(getattr(settings, field.name), field.name)
        raise
