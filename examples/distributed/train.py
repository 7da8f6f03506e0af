"""PPO on CartPole, wherever the environments run: one argument says where.

    python examples/distributed/train.py process        # in this process
    python examples/distributed/train.py workers        # in two processes of this machine

`ray_cluster.py` and `slurm.py` beside this file call the same function with other words.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core import registry
from rl_modules import OneHotCategorical, ProbabilisticActor, ValueOperator
from rl_objectives import GAE, ClipPPOLoss

WHERE: dict[str, tuple[str, dict[str, Any]]] = {
    "process": ("serial", {}),
    "workers": ("multi_sync", {"num_workers": 2}),
}


def train(kind: str, total_frames: int = 20_000, frames_per_batch: int = 1000, **where: Any) -> list[float]:
    """Train, and return the mean length of an episode in each batch.

    Args:
        kind: name of a collector.
        total_frames: environment steps in all.
        frames_per_batch: environment steps in a batch.
        **where: arguments of that collector.
    """
    actor = ProbabilisticActor(
        TensorDictModule(
            nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2)), in_keys=["observation"], out_keys=["logits"]
        ),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1)), in_keys=["observation"])
    loss_fn, gae = ClipPPOLoss(actor, critic), GAE(value_network=critic, gamma=0.99, lmbda=0.95, average_gae=True)
    optim = torch.optim.Adam(loss_fn.parameters(), lr=1e-3)
    lengths = []
    with registry.collectors.get(kind)(
        "gym:CartPole-v1", actor, frames_per_batch=frames_per_batch, total_frames=total_frames, **where
    ) as collector:
        for data in collector:  # [T], or [N, T] of N workers
            for _epoch in range(4):
                gae(data)
                for rows in torch.randperm(data.numel()).split(100):
                    losses = loss_fn(data.reshape(-1)[rows])
                    sum(value for key, value in losses.items() if key.startswith("loss")).backward()
                    optim.step()
                    optim.zero_grad()
            collector.update_policy_weights_()  # returns when every worker acts with the new weights
            lengths.append(data.numel() / max(1, int(data["next", "done"].sum())))
            print(f"episode length: {lengths[-1]:.1f}", flush=True)
    return lengths


if __name__ == "__main__":  # workers import this file anew
    name, arguments = WHERE[sys.argv[1]]
    train(name, int(sys.argv[2]) if len(sys.argv) > 2 else 20_000, **arguments)
