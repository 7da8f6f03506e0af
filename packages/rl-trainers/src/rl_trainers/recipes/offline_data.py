"""Where offline recipes take their rows from: a run's replay, a saved buffer, a dataset, or a run made for them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import torch
from tensordict import TensorDictBase

from rl_core import registry
from rl_core.errors import RLError
from rl_trainers.checkpoint.checkpoint import Checkpoint
from rl_trainers.recipes.replay import ReplayRecipe
from rl_trainers.recipes.sac import SAC
from rl_trainers.recipes.single_agent import env_options
from rl_trainers.recipes.single_precision import rows_in_single_precision
from rl_trainers.recipes.unit_actions import rows_in_env_actions
from rl_trainers.run_folder import read_config

__all__ = ["behaviour_run", "load_rows", "with_step_count"]


def behaviour_run(env: str, frames: int, seed: int, folder: Path) -> str:
    """The folder of a sac run that has collected rows; it is trained now unless it was before."""
    if not Checkpoint.is_checkpoint(folder / "checkpoint"):
        SAC.preset(
            env, frames=frames, seed=seed, run_dir=str(folder.parent), name=folder.name, video=False, progress=False
        ).run()
    return str(folder)


def load_rows(source: str) -> TensorDictBase:
    """All rows of a source, in the order of time, in single precision, with actions as the environment takes them.

    Args:
        source: the folder of a run of a recipe with a replay buffer; a folder that a uniform replay buffer over a lazy
            tensor storage wrote (``buffer.dumps``); or a dataset, "kind:id".

    Returns:
        TensorDict ``[rows]``.

    Raises:
        RLError: it is none of these.
    """
    return rows_in_single_precision(_rows_as_they_are(source))


def _rows_as_they_are(source: str) -> TensorDictBase:
    folder = Path(source)
    if Checkpoint.is_checkpoint(folder / "checkpoint"):
        return _rows_of_run(folder)
    if (folder / "state.json").is_file():
        return _rows_of_buffer(folder)
    kind, colon, name = source.partition(":")
    if colon and not folder.exists():
        rows: TensorDictBase = registry.datasets.get(kind)(name)[:]
        return rows
    raise RLError(
        f"--data {source!r} is neither the folder of a run with a checkpoint, nor that of a saved replay buffer, nor a "
        "dataset, kind:id (such as minari:D4RL/door/human-v2)"
    )


def _rows_of_run(folder: Path) -> TensorDictBase:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of what else the run's configuration and checkpoint hold
        recipe = ReplayRecipe(**read_config(folder, ReplayRecipe))
        buffer = recipe.make_buffer()
        Checkpoint(buffer=buffer).load(folder / "checkpoint")
    rows: TensorDictBase = buffer[:]
    with registry.envs.make(recipe.env, **env_options(recipe.env)) as env:  # its policy acts in [-1, 1]
        return rows_in_env_actions(rows.reshape(-1), env.action_spec_unbatched)


def _rows_of_buffer(folder: Path) -> TensorDictBase:
    storage = json.loads((folder / "state.json").read_text(encoding="utf-8"))["tree"]["storage"]
    lanes = [1, *storage["lane_shape"]]
    capacity = storage["max_steps"] * int(torch.tensor(lanes).prod())
    make = registry.storages.get("lazy_tensor")
    buffer = registry.buffers.get("tensordict_replay")(storage=make(capacity, ndim=storage["ndim"]), batch_size=1)
    buffer.loads(folder)
    rows: TensorDictBase = buffer[:]
    return rows.reshape(-1)


def with_step_count(rows: TensorDictBase) -> TensorDictBase:
    """The rows with "step_count", int64 ``[rows, 1]``: the steps of the episode before each of them."""
    done = rows["next", "done"].reshape(len(rows), -1).any(-1)
    index = torch.arange(len(rows))
    begins = torch.cat([torch.ones(1, dtype=torch.bool), done[:-1]])
    start = torch.where(begins, index, 0).cummax(0).values
    return rows.set("step_count", (index - start).unsqueeze(-1))
