"""The end flags that a transform finds: in the environment before it, in a done spec, or in stored steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Composite, Transform
from rl_core.errors import EnvError, KeyMissingError
from rl_core.keys import END_NAMES, Key, as_key, as_path, parent_path

__all__ = ["EndKeys", "ends_along_time", "governing_group", "groups_before", "groups_in", "specs_seen", "time_dim"]


@dataclass(frozen=True)
class EndKeys:
    """The end flags of the root or of one group.

    Attributes:
        prefix: the group's path, empty for the root.
        done: the key of its ``done``.
        shape: of its flags, batch dimensions included.
    """

    prefix: tuple[str, ...]
    done: Key
    shape: torch.Size


def specs_seen(transform: Transform) -> int | None:
    """The version of the specs around a transform: what it found in them holds until this moves.

    It moves when a transform is inserted ahead of it, too; None without an environment.
    """
    container = transform.container
    return None if container is None else container.specs_version


def groups_in(done_spec: Composite) -> list[EndKeys]:
    """The groups of a done spec, the root first."""
    found: dict[tuple[str, ...], torch.Size] = {}
    for key, leaf in done_spec.items(True, True):
        found.setdefault(parent_path(as_key(as_path(key))), leaf.shape)
    return [EndKeys(prefix, as_key((*prefix, "done")), found[prefix]) for prefix in sorted(found, key=len)]


def groups_before(transform: Transform) -> list[EndKeys]:
    """The groups of the environment as the transform sees it.

    Raises:
        EnvError: the transform belongs to no environment.
    """
    parent = transform.parent
    if parent is None:
        raise EnvError(
            f"{type(transform).__name__} needs the end flags of an environment; append it to one: "
            f"TransformedEnv(env, {type(transform).__name__}(...))"
        )
    return groups_in(parent.full_done_spec)


def governing_group(key: Key, prefixes: list[tuple[str, ...]]) -> tuple[str, ...]:
    """The innermost of the groups around an entry; the first where none is."""
    path = as_path(key)
    around = [prefix for prefix in prefixes if path[: len(prefix)] == prefix]
    return max(around, key=len) if around else prefixes[0]


def time_dim(tensordict: TensorDictBase) -> int:
    """The batch dimension named "time", else the last one.

    Raises:
        KeyMissingError: there is no batch dimension.
    """
    if not tensordict.batch_dims:
        raise KeyMissingError("stored steps have a time dimension; this TensorDict has the batch size ()")
    names = tensordict.names or []
    return names.index("time") if "time" in names else tensordict.batch_dims - 1


def ends_along_time(tensordict: TensorDictBase, who: str) -> Iterator[tuple[tuple[str, ...], Tensor, int]]:
    """``(prefix, done, time dimension)`` of every group under "next" of stored steps.

    Raises:
        KeyMissingError: there is no end flag.
    """
    dim = time_dim(tensordict)
    nxt = tensordict.get("next", None)
    keys = [] if nxt is None else [as_key(as_path(key)) for key in nxt.keys(True, True)]
    dones = [key for key in keys if as_path(key)[-1] == "done"]
    if not dones:
        raise KeyMissingError(
            f"{who} needs ('next', 'done') to know where episodes end (or one in a group); the data has "
            f"{', '.join(repr(key) for key in tensordict.keys(True, True)) or 'nothing'}. End flags: "
            f"{', '.join(END_NAMES)}"
        )
    for key in sorted(dones, key=lambda key: len(as_path(key))):
        yield parent_path(key), nxt.get(key), dim
