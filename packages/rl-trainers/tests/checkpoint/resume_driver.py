"""A small training run in a process of its own: Adam, a schedule, dropout, counters, saved and loaded by Checkpoint."""

import argparse

import numpy as np
import torch

from rl_core import seed_everything
from rl_trainers import Checkpoint, GlobalRNGState


class Counter:
    """The number of updates done."""

    updates = 0

    def state_dict(self):
        """The count."""
        return {"updates": self.updates}

    def load_state_dict(self, state_dict):
        """Take the count over."""
        self.updates = state_dict["updates"]


def main():
    """Train up to ``--updates``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int)
    parser.add_argument("--load")
    parser.add_argument("--save")
    args = parser.parse_args()
    seed_everything(0)
    torch.set_num_threads(1)
    net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.2), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 1 - update / 40)
    counter = Counter()
    checkpoint = Checkpoint(net=net, optimizer=optimizer, schedule=schedule, counter=counter, rng=GlobalRNGState())
    if args.load:
        checkpoint.load(args.load)
    while counter.updates < args.updates:
        x = torch.randn(32, 4) + torch.from_numpy(np.random.randn(32, 4)).float()
        loss = (net(x) - x.sum(-1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        counter.updates += 1
    checkpoint.save(args.save)


if __name__ == "__main__":
    main()
