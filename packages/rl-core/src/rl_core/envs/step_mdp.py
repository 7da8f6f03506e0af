"""``step_mdp``: what is under "next" at time t becomes the root of time t + 1."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_core.envs.entries import is_group, put_entries
from rl_core.keys import Key, as_keys, as_path

__all__ = ["Drop", "advance", "drop_tree", "step_mdp"]

Drop: TypeAlias = "dict[str, Drop | None]"
"""What is left out, by name: None the entry itself, else what of the group of that name."""

_NEVER_CARRIED = frozenset(("next", "_reset", "_step"))


def step_mdp(
    tensordict: TensorDictBase,
    next_tensordict: TensorDictBase | None = None,
    keep_other: bool = True,
    exclude_reward: bool = True,
    exclude_done: bool = False,
    exclude_action: bool = True,
    reward_keys: Key | Iterable[Key] = "reward",
    done_keys: Key | Iterable[Key] = ("done", "terminated", "truncated"),
    action_keys: Key | Iterable[Key] = "action",
) -> TensorDictBase:
    """The root of the next step, from a stepped TensorDict.

    Args:
        tensordict: holds time t at its root and time t + 1 under "next"; left as it is.
        next_tensordict: where to write the result instead of a new TensorDict.
        keep_other: keep the root's other entries (policy extras, parameters).
        exclude_reward: leave rewards out.
        exclude_done: leave end flags out.
        exclude_action: leave actions out.
        reward_keys: the rewards' keys, tuples for nested ones.
        done_keys: the end flags' keys.
        action_keys: the actions' keys.

    Returns:
        a TensorDict of the same batch size, without "next" and "_reset"; "next" wins over the root for one key.

    Example:
        >>> import torch
        >>> td = TensorDict({"observation": torch.zeros(1), "action": torch.ones(1),
        ...                  "next": {"observation": torch.ones(1), "reward": torch.ones(1)}})
        >>> sorted(step_mdp(td).keys()), step_mdp(td)["observation"]
        (['observation'], tensor([1.]))
    """
    drop: set[tuple[str, ...]] = set()
    if exclude_reward:
        drop |= {as_path(key) for key in as_keys(reward_keys)}
    if exclude_done:
        drop |= {as_path(key) for key in as_keys(done_keys)}
    drop_root = drop | ({as_path(key) for key in as_keys(action_keys)} if exclude_action else set())
    result = advance(tensordict, drop_tree(drop), drop_tree(drop_root), keep_other)
    return result if next_tensordict is None else put_entries(next_tensordict, result)


def drop_tree(paths: Iterable[tuple[str, ...]]) -> Drop:
    """Excluded paths as nested dictionaries, so that a step looks each of its names up once.

    >>> drop_tree([("reward",), ("agents", "reward")])
    {'reward': None, 'agents': {'reward': None}}
    """
    tree: Drop = {}
    for path in sorted(paths, key=len):
        level = tree
        for name in path[:-1]:
            below = level.setdefault(name, {})
            if below is None:
                break  # all of it is excluded
            level = below
        else:
            level[path[-1]] = None
    return tree


def advance(tensordict: TensorDictBase, drop_next: Drop, drop_root: Drop, keep_other: bool = True) -> TensorDictBase:
    """:func:`step_mdp` with the excluded paths resolved: the form environments call once per step."""
    return _merge(tensordict if keep_other else None, tensordict.get("next"), drop_root, drop_next)


def _merge(root: TensorDictBase | None, nxt: TensorDictBase | None, drop_root: Drop, drop_next: Drop) -> TensorDictBase:
    like = root if root is not None else nxt
    assert like is not None
    dims = like.batch_dims
    content: dict[str, object] = {}
    groups: set[str] = set()
    for source, drop in ((root, drop_root), (nxt, drop_next)):
        if source is None:
            continue
        for name, value in source.items():
            if name in _NEVER_CARRIED or (name in drop and drop[name] is None):
                continue
            if type(value) is not Tensor and is_group(value, dims):
                groups.add(name)
            content[name] = value
    for name in groups:
        below = [None if source is None else source.get(name, None) for source in (root, nxt)]
        sides = [side if is_group(side, dims) else None for side in below]
        content[name] = _merge(sides[0], sides[1], drop_root.get(name) or {}, drop_next.get(name) or {})
    return TensorDict(content, batch_size=like.batch_size, device=like.device)
