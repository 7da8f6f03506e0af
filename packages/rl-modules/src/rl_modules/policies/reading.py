"""Reads a module's inputs from a TensorDict, and says what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rl_core import carried_state
from rl_core.errors import KeyMissingError
from rl_core.keys import Key

__all__ = ["missing_key", "read_inputs"]


def read_inputs(tensordict: Any, keys: Sequence[Key], reader: object) -> list[Any]:
    """The values of some keys, in order.

    Args:
        tensordict: the TensorDict.
        keys: what to read.
        reader: the module that needs them, for the message.

    Raises:
        KeyMissingError: if a key is absent.
    """
    values = []
    for key in keys:
        value = tensordict.get(key, None)
        if value is None:
            raise missing_key(key, reader, tensordict.keys(True, True))
        values.append(value)
    return values


def missing_key(key: Key, reader: object, present: Iterable[Key]) -> KeyMissingError:
    """The error for an input that nobody wrote."""
    found = ", ".join(repr(name) for name in sorted(present, key=str)) or "nothing"
    state = carried_state(reader)
    if key in state.specs or key in state.init_keys:
        cure = (
            "It belongs to the state that the policy carries from step to step: append "
            "get_env_transforms_from_module(policy) to the environment, as collectors and rollouts do by themselves, "
            "and go on with env.step_mdp(td)."
        )
    else:
        cure = f"Let the environment or an earlier module write {key!r}, or change in_keys."
    return KeyMissingError(
        f"{type(reader).__name__} needs {key!r} (in_keys {getattr(reader, 'in_keys', None)}); the data holds {found}. "
        f"{cure}"
    )
