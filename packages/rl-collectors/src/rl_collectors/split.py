"""``split_trajectories``: a batch of steps as one padded row per trajectory, with a mask."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from rl_core.errors import KeyMissingError
from rl_core.keys import Key, join

__all__ = ["split_trajectories"]


def split_trajectories(
    rollout_tensordict: TensorDictBase,
    *,
    prefix: Key | None = None,
    trajectory_key: Key | None = None,
    done_key: Key | None = None,
) -> TensorDictBase:
    """One row per trajectory (or piece of one that the batch's edge cut), padded with zeros to the longest.

    Args:
        rollout_tensordict: ``[*B, T]``, time last.
        prefix: where the mask and the trajectory ids are written; default "collector" where the data have it, else the
            root.
        trajectory_key: the ids of the trajectories; default ``(prefix, "traj_ids")``; where absent they follow from
            ends.
        done_key: the end flag that trajectories follow from; default ``("next", "done")``.

    Returns:
        TensorDict ``[N, T_max]`` with the bool entry ``(prefix, "mask")``, rows in the order of batch rows, then time.

    Example:
        >>> from rl_core.testing import CountingEnv
        >>> data = CountingEnv(length=2).rollout(5, break_when_any_done=False)
        >>> split_trajectories(data)["mask"].tolist()
        [[True, True], [True, True], [True, False]]
    """
    data = rollout_tensordict
    if prefix is None:
        prefix = "collector" if "collector" in data else ()
    at = (lambda name: join(prefix, name)) if prefix else (lambda name: name)
    trajectory_key = at("traj_ids") if trajectory_key is None else trajectory_key
    steps = data.shape[-1]
    flat = data.reshape(-1, steps)
    ids = flat.get(trajectory_key, None)
    if ids is None:
        done = flat.get(("next", "done") if done_key is None else done_key, None)
        if done is None:
            raise KeyMissingError(
                f"split_trajectories needs {trajectory_key!r} or an end flag; the data has neither. Name one with "
                "trajectory_key=... or done_key=..."
            )
        done = done.reshape(flat.shape[0], steps)
        ids = torch.cat([torch.zeros_like(done[:, :1]), done[:, :-1]], 1).cumsum(1)
    change = torch.ones(ids.shape, dtype=torch.bool, device=ids.device)
    change[:, 1:] = ids[:, 1:] != ids[:, :-1]
    starts = change.reshape(-1).nonzero().squeeze(-1)  # [N], as positions in the flat batch
    lengths = torch.diff(starts, append=starts.new_tensor([change.numel()]))
    time = torch.arange(int(lengths.max()), device=ids.device)
    mask = time < lengths.unsqueeze(-1)  # [N, T_max]
    pieces = data.reshape(-1)[torch.where(mask, starts.unsqueeze(-1) + time, 0)]
    padded = pieces.apply(lambda value: value.masked_fill(~mask.reshape(*mask.shape, *(1,) * (value.ndim - 2)), 0))
    assert padded is not None
    padded.set(at("mask"), mask)
    if flat.get(trajectory_key, None) is None:
        padded.set(
            trajectory_key, torch.arange(len(starts), device=ids.device).unsqueeze(-1).expand(mask.shape).clone()
        )
    padded.names = [None, "time"]
    return padded
