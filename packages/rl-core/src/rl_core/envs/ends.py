"""End flags: which leaves there are, how missing ones follow from the others, and which rows ended.

``terminated``: the task itself ended, so nothing is bootstrapped. ``truncated``: the episode was cut, so the value of
the last observation counts. ``done = terminated | truncated``, at the root and in every group, always.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core.errors import EnvError, KeyMissingError
from rl_core.keys import END_NAMES, Key, as_key, join, leaf_name, parent_path

__all__ = ["EndGroup", "any_done", "complete_ends", "end_groups", "no_ends"]


@dataclass(frozen=True)
class EndGroup:
    """The end flags of the root or of one group of agents."""

    prefix: tuple[str, ...]
    done: Key
    terminated: Key
    truncated: Key | None
    shape: torch.Size

    @property
    def reset(self) -> Key:
        """The key that asks for a reset of this group's rows."""
        return join(self.prefix, "_reset")


def end_groups(leaves: dict[Key, torch.Size]) -> list[EndGroup]:
    """The groups of end flags among the leaves of a done spec, the root first.

    Args:
        leaves: key -> shape (with the batch dims) of every leaf of the done spec.

    Raises:
        EnvError: a leaf is not named done, terminated or truncated.
    """
    names: dict[tuple[str, ...], dict[str, torch.Size]] = {}
    for key, shape in leaves.items():
        if leaf_name(key) not in END_NAMES:
            raise EnvError(f"the done spec holds {key!r}; its leaves may only be named {', '.join(END_NAMES)}")
        names.setdefault(parent_path(key), {})[leaf_name(key)] = shape
    return [
        EndGroup(
            prefix=prefix,
            done=as_key((*prefix, "done")),
            terminated=as_key((*prefix, "terminated")),
            truncated=as_key((*prefix, "truncated")) if "truncated" in found else None,
            shape=next(iter(found.values())),
        )
        for prefix, found in sorted(names.items(), key=lambda item: len(item[0]))
    ]


def _shaped(value: Tensor, group: EndGroup, data: TensorDictBase, batched: bool) -> Tensor:
    """A flag that an environment wrote, as bool ``[*B, 1]``."""
    if value.dtype is not torch.bool:
        raise EnvError(
            f"an end flag beside {group.done!r} has dtype {value.dtype}; done, terminated and truncated are torch.bool"
        )
    if batched:
        return value if value.shape == group.shape else value.reshape(group.shape)
    unsized = value.ndim == data.batch_dims or value.shape[-1] != group.shape[-1]
    return value.unsqueeze(-1) if unsized else value


def complete_ends(
    data: TensorDictBase,
    groups: list[EndGroup],
    *,
    batch_locked: bool = True,
    entries: dict[str, Any] | None = None,
) -> TensorDictBase:
    """Write every end flag that follows from those an environment gave.

    - nothing given: all False;
    - ``terminated`` is ``done`` where only ``done`` is given;
    - ``done`` is ``terminated | truncated``; a ``done`` that is neither counts as truncated where that flag exists.

    Args:
        data: what the environment's ``_step`` or ``_reset`` returned; written in place.
        groups: from :func:`end_groups`.
        batch_locked: whether the flags' shape is the spec's (else it follows the data's batch size).
        entries: the data's root entries, where the caller has them already.

    Raises:
        EnvError: ``done`` and ``truncated`` are given without ``terminated``, which cannot be inferred.
    """
    entries = dict(data.items()) if entries is None else entries
    for group in groups:
        get: Callable[..., Any] = data.get if group.prefix else entries.get
        given_done, given_terminated = get(group.done, None), get(group.terminated, None)
        truncated = None if group.truncated is None else get(group.truncated, None)
        done = None if given_done is None else _shaped(given_done, group, data, batch_locked)
        terminated = None if given_terminated is None else _shaped(given_terminated, group, data, batch_locked)
        truncated = None if truncated is None else _shaped(truncated, group, data, batch_locked)
        if terminated is None:
            terminated = _implied_termination(data, group, done, truncated, batch_locked)
        if group.truncated is not None:
            if truncated is None:
                truncated = torch.zeros_like(terminated) if done is None else done & ~terminated
            elif done is not None:
                truncated = truncated | (done & ~terminated)
            done = terminated | truncated
            data.set(group.truncated, truncated)
        elif done is None:
            done = terminated.clone()
        elif given_terminated is not None:
            done = done | terminated
        if terminated is not given_terminated:
            data.set(group.terminated, terminated)
        if done is not given_done:
            data.set(group.done, done)
    return data


def no_ends(groups: list[EndGroup], size: torch.Size, device: torch.device | None) -> dict[Key, Tensor]:
    """Every end flag of a step of this batch size that ends nothing."""
    flags: dict[Key, Tensor] = {}
    for group in groups:
        flags[group.terminated] = terminated = torch.zeros(*size, *group.shape[-1:], dtype=torch.bool, device=device)
        flags[group.done] = terminated.clone()
        if group.truncated is not None:
            flags[group.truncated] = terminated.clone()
    return flags


def _implied_termination(
    data: TensorDictBase, group: EndGroup, done: Tensor | None, truncated: Tensor | None, batched: bool
) -> Tensor:
    if done is None:
        shape = group.shape if batched else (*data.batch_size, *group.shape[-1:])
        return torch.zeros(shape, dtype=torch.bool, device=data.device)
    if truncated is not None:
        raise EnvError(
            f"the environment wrote {group.done!r} and {group.truncated!r} but not {group.terminated!r}, which "
            f"cannot be inferred from them; write {group.terminated!r} as well"
        )
    return done.clone()


def any_done(data: TensorDictBase, groups: list[EndGroup], batch_dims: int) -> Tensor | None:
    """The rows that ended, bool ``[*B]``, or None where none did.

    The root's ``done`` decides where the root has one; else a row ended as soon as one member of one group did.

    Raises:
        KeyMissingError: the data lacks an end flag.
    """
    if not groups:
        return None
    rows: Tensor | None = None
    for group in groups[:1] if not groups[0].prefix else groups:
        done = data.get(group.done)
        if done is None:
            raise KeyMissingError(_no_flag(group.done, data))
        if not (bool(done) if done.numel() == 1 else bool(done.any())):
            continue
        ended = done.reshape(*done.shape[:batch_dims], -1).any(-1) if done.ndim > batch_dims else done
        rows = ended if rows is None else rows | ended
    return rows


def _no_flag(key: Key, data: TensorDictBase) -> str:
    present = ", ".join(repr(name) for name in data.keys(True, True)) or "nothing"
    return (
        f"the data lacks the end flag {key!r}, it has {present}: whether an episode ended there cannot be said. Start "
        "from env.reset(), or write the flag (all False where nothing has ended)"
    )
