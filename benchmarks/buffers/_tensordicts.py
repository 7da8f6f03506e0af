"""The rows as a TensorDict, for the contenders that store those."""

from __future__ import annotations

import torch
from _rows import rows
from tensordict import TensorDict


def tensordict(kind: str, n: int) -> TensorDict:
    """``n`` rows as a transition: what follows the action is under "next"."""
    leaf = {name: torch.from_numpy(value) for name, value in rows(kind, n).items()}
    following = {"observation": leaf["next_obs"], **{name: leaf[name] for name in ("reward", "done", "terminated")}}
    return TensorDict(
        {"observation": leaf["obs"], "action": leaf["act"], "next": TensorDict(following, [n])}, batch_size=[n]
    )
