"""The same training with environments in SLURM jobs, which the learner submits; it may be a job itself.

    python examples/distributed/slurm.py                        # two jobs
    python examples/distributed/slurm.py 20000 local            # the same by processes here, to try it out

Needs ``pip install "rl-collectors[slurm]"``.
"""

from __future__ import annotations

import sys

from train import train

if __name__ == "__main__":
    total_frames = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    cluster = sys.argv[2] if len(sys.argv) > 2 else "slurm"
    job = {"cluster": cluster, "folder": sys.argv[3] if len(sys.argv) > 3 else "submitit_logs", "timeout_min": 60}
    if cluster == "slurm":
        job |= {"slurm_partition": "cpu", "cpus_per_task": 2}  # what your cluster calls them
    train("distributed", total_frames, num_collectors=2, launcher="submitit", slurm_kwargs=job)
