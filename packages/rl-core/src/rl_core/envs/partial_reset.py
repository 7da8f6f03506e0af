"""Partial resets: which rows a ``_reset`` entry asks for, and how fresh rows are merged into the old ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_core.envs.ends import EndGroup
from rl_core.envs.entries import choose_rows, is_group
from rl_core.errors import EnvError
from rl_core.keys import as_path

__all__ = ["ResetRequest", "merge_reset", "pop_reset_keys", "reset_request", "reset_rows"]


@dataclass(frozen=True)
class ResetRequest:
    """The ``_reset`` masks of a TensorDict, by group; a parent's mask wins over its children's."""

    masks: dict[tuple[str, ...], Tensor]

    def mask_for(self, path: tuple[str, ...]) -> Tensor | None:
        """The mask that decides for an entry: that of the outermost group around it that has one."""
        for length in range(len(path)):
            if path[:length] in self.masks:
                return self.masks[path[:length]]
        return None

    def rows(self, batch_dims: int) -> Tensor | None:
        """The batch rows in which anything is asked to reset, bool ``[*B]``."""
        rows: Tensor | None = None
        for mask in self.masks.values():
            flat = mask.reshape(*mask.shape[:batch_dims], -1).any(-1) if mask.ndim > batch_dims else mask
            rows = flat if rows is None else rows | flat
        return rows


def reset_request(tensordict: TensorDictBase | None, groups: list[EndGroup]) -> ResetRequest | None:
    """The partial reset that a TensorDict asks for; None stands for a full reset (nothing asked, or every row)."""
    if tensordict is None:
        return None
    masks: dict[tuple[str, ...], Tensor] = {}
    for prefix in dict.fromkeys([(), *(group.prefix for group in groups)]):
        mask = tensordict.get((*prefix, "_reset"), None)
        if mask is None:
            continue
        if mask.dtype is not torch.bool:
            raise EnvError(f"the entry {(*prefix, '_reset')!r} has dtype {mask.dtype}; it must be torch.bool")
        masks[prefix] = mask
    if not masks or (() in masks and bool(masks[()].all())):
        return None
    return ResetRequest(masks)


def reset_rows(tensordict: TensorDictBase | None) -> Tensor | None:
    """The rows that ``_reset`` at the root asks for, bool ``[*B]``; None means all of them.

    What a transform's ``_reset(tensordict, tensordict_reset)`` reads to leave the other rows alone.
    """
    if tensordict is None:
        return None
    mask = tensordict.get("_reset", None)
    if mask is None:
        return None
    return mask.reshape(*tensordict.batch_size, -1).any(-1) if mask.ndim > tensordict.batch_dims else mask


def pop_reset_keys(tensordict: TensorDictBase, groups: list[EndGroup]) -> None:
    """Remove the ``_reset`` entries."""
    for prefix in dict.fromkeys([(), *(group.prefix for group in groups)]):
        if tensordict.get((*prefix, "_reset"), None) is not None:
            tensordict.pop((*prefix, "_reset") if prefix else "_reset")


def merge_reset(old: TensorDictBase, fresh: TensorDictBase, request: ResetRequest) -> TensorDictBase:
    """Fresh rows where the request's masks are True, old rows elsewhere; an entry without an old value is all fresh."""
    return _merge(old, fresh, request, ())


def _merge(
    old: TensorDictBase, fresh: TensorDictBase, request: ResetRequest, prefix: tuple[str, ...]
) -> TensorDictBase:
    merged: dict[str, object] = {}
    for name, value in fresh.items():
        path = (*prefix, *as_path(name))
        before = old.get(name, None)
        mask = request.mask_for(path)
        if before is None:
            merged[name] = value
        elif is_group(before, old.batch_dims) and is_group(value, fresh.batch_dims):
            merged[name] = _merge(before, value, request, path)
        elif mask is None:
            merged[name] = before
        elif isinstance(value, Tensor) and isinstance(before, Tensor):
            merged[name] = torch.where(_fit(mask, value), value, before)
        else:
            merged[name] = choose_rows(before, value, mask)
    return TensorDict(merged, batch_size=fresh.batch_size, device=fresh.device)


def _fit(mask: Tensor, value: Tensor) -> Tensor:
    """The mask with as many dimensions as the value, so that it broadcasts over the features."""
    while mask.ndim > value.ndim:
        mask = mask.squeeze(-1)
    while mask.ndim > 1 and mask.shape[-1] == 1 and mask.shape != value.shape[: mask.ndim]:
        mask = mask.squeeze(-1)
    return mask.reshape(*mask.shape, *(1,) * (value.ndim - mask.ndim))
