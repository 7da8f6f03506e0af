"""Train sac, let its policy act with the actions that it samples, and keep those steps: data for offline experiments.

    python benchmarks/learning/behaviour.py FOLDER ENV --frames N --steps M

FOLDER then holds a replay buffer as ``buffer.dumps`` writes it, which ``rl train iql --data FOLDER`` and its kin read;
the run itself lies in ``FOLDER-run``.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from rl_core import registry
from rl_core.training.seeding import seed_everything
from rl_trainers.recipes.sac import SAC
from rl_trainers.recipes.unit_actions import rows_in_env_actions


@dataclass(frozen=True, kw_only=True)
class Behaviour(SAC):
    """Soft actor-critic that keeps what its trained policy does."""

    steps: int = 10_000
    """How many steps are kept."""
    into: str = ""
    """The folder for them."""

    def finish(self, folder: Path, run: Any, policy: nn.Module, result: Any, **labels: Any) -> None:
        """Collect the steps, dump them, and draw the curve of the run."""
        seed_everything(self.seed)
        with ExitStack() as stack:
            env, _, observation_keys = self.make_envs(stack)
            collector = registry.collectors.get("serial")(
                env, policy, frames_per_batch=self.steps, total_frames=self.steps
            )
            stack.callback(collector.shutdown)
            (batch,) = collector
            rows = rows_in_env_actions(batch.reshape(-1), env.base_env.action_spec_unbatched)
        kept = [*observation_keys, "action", *(("next", key) for key in observation_keys)]
        kept += [("next", name) for name in ("reward", "done", "terminated", "truncated")]
        storage = registry.storages.get("lazy_tensor")(len(rows))
        buffer = registry.buffers.get("tensordict_replay")(storage=storage, batch_size=1)
        buffer.extend(rows.select(*kept))
        buffer.dumps(self.into)
        ended = rows["next", "episode_reward"][rows["next", "done"]]
        print(f"kept {len(rows)} steps; {len(ended)} episodes, mean return {ended.mean():.1f}")
        super().finish(folder, run, policy, result, **labels)


def main() -> None:
    """Read the command line and do it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("env", help="a registry id, such as gym:Pendulum-v1")
    parser.add_argument("--frames", type=int, default=6_000, help="of the training")
    parser.add_argument("--steps", type=int, default=10_000, help="that are kept")
    parser.add_argument("--seed", type=int, default=101)
    options = parser.parse_args()
    where = {"run_dir": options.folder.parent, "name": f"{options.folder.name}-run", "into": str(options.folder)}
    Behaviour.preset(
        options.env, frames=options.frames, steps=options.steps, seed=options.seed, video=False, progress=False, **where
    ).run()


if __name__ == "__main__":
    main()
