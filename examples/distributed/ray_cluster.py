"""The same training with environments in Ray actors, on this machine or on a cluster.

    python examples/distributed/ray_cluster.py                  # a Ray of its own, here
    python examples/distributed/ray_cluster.py 20000 auto       # the cluster that this machine is part of

Needs ``pip install "rl-collectors[ray]"``.
"""

from __future__ import annotations

import sys

from train import train

if __name__ == "__main__":
    total_frames = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    cluster = {"address": sys.argv[2]} if len(sys.argv) > 2 else {"num_cpus": 2, "include_dashboard": False}
    train("ray", total_frames, num_collectors=2, ray_init_config=cluster, remote_configs={"num_cpus": 1})
