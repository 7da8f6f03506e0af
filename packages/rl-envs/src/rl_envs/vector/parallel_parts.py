"""``WorkerParts``: the shared columns of environments of different shapes, as the parent process uses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase

from rl_core import Columns, EnvBase
from rl_core.envs.array_env import stage_leaves
from rl_core.envs.columns import nest
from rl_core.envs.ends import complete_ends
from rl_core.envs.env_specs import leaf_specs
from rl_core.keys import Key, join
from rl_core.specs import NonTensor, TensorSpec
from rl_envs.vector.pool import WorkerPool
from rl_envs.vector.shared_columns import Place, lay_out

__all__ = ["WorkerParts", "can_share_parts"]


def can_share_parts(shells: Sequence[EnvBase]) -> bool:
    """Whether every entry of every environment has a shape and dtype that are known in advance, and that numpy has."""
    specs = [spec for shell in shells for _, spec, _ in _leaves(shell)]
    return not any(isinstance(spec, NonTensor) or -1 in spec.shape or spec.dtype == torch.bfloat16 for spec in specs)


def _leaves(shell: EnvBase) -> list[tuple[Key, TensorSpec, bool]]:
    """Key, spec and whether it is carried, of every entry that a step reads or writes."""
    leaves = [(key, spec, carried) for key, (spec, carried) in stage_leaves(shell).items()]
    known = {key for key, _, _ in leaves}
    return leaves + [(key, spec, True) for key, spec in leaf_specs(shell.state_spec).items() if key not in known]


class WorkerParts:
    """Writes the rows of actions, has the workers act, and reads the rows of results, each of its own shapes.

    It knows nothing of the ParallelEnv it belongs to, so that the workers end as soon as that one is forgotten.

    Args:
        pool: the workers.
        shells: for each environment one that has its specs.
    """

    def __init__(self, pool: WorkerPool, shells: Sequence[EnvBase]) -> None:
        self.pool, self.shells = pool, list(shells)
        layouts: list[list[Place]] = []
        start = 0
        for shell in shells:
            layouts.append(lay_out(_leaves(shell), start))
            start = max((place.end for place in layouts[-1]), default=start)
        self.shared = pool.share_parts(layouts, (len(shells), *shells[0].batch_size))
        known = [{*shell.observation_keys, *shell.done_keys} for shell in shells]
        pairs = zip(shells, known, strict=True)
        self.kept = [[key for key in shell.state_keys if key not in seen] for shell, seen in pairs]

    def reset_rows(
        self, requests: Sequence[TensorDictBase | None], kwargs: Sequence[Mapping[str, Any]] | None
    ) -> list[TensorDictBase | None]:
        """Reset the environments that have a request; as :meth:`RowByRowEnv._reset_rows`."""
        mask, given = self.shared.mask, False
        for index, request in enumerate(requests):
            mask[index] = request is not None
            if request is None:
                continue
            asked = request.get("_reset", None)
            if asked is not None:
                mask[index] = asked.reshape(mask.shape[1:]).cpu().numpy()
            for key in self.kept[index]:
                value = request.get(key, None)
                self._write(index, key, 1, value)  # after a step, a worker goes on from this row
                given = self._write(index, key, 0, value) or given
        lanes = [lane for lane in self.pool.lanes if mask[lane.envs.start : lane.envs.stop].any()]
        if kwargs is None and not given:
            self.pool.reset(lanes)
        else:
            own = [None if kwargs is None else kwargs[lane.envs.start : lane.envs.stop] for lane in lanes]
            self.pool.call("reset", [(each, given) for each in own], lanes)
        return [None if request is None else self._fresh(index) for index, request in enumerate(requests)]

    def step_rows(self, rows: Sequence[TensorDictBase]) -> list[TensorDictBase]:
        """Step every environment; what each writes, end flags completed."""
        for index, (shell, row) in enumerate(zip(self.shells, rows, strict=True)):
            for key in shell.action_keys:
                self._write(index, key, 0, row.get(key))
            for key in shell.state_keys:
                value = row.get(key, None)
                following = row.get(join("next", key), None)
                self._write(index, key, 0, value)
                self._write(index, key, 1, value if following is None else following)
        self.pool.step()
        return [self._stepped(index) for index in range(len(self.shells))]

    def _write(self, index: int, key: Key, row: int, value: Any) -> bool:
        """One entry of an environment, where there is one; whether there is."""
        if value is None:
            return False
        target = self._part(index).tensors[key][row]
        target.copy_(value.detach().reshape(target.shape))
        return True

    def _part(self, index: int) -> Columns:
        return self.shared.parts[index]

    def _fresh(self, index: int) -> TensorDictBase:
        keys = [*self.shells[index].observation_keys, *self.kept[index]]
        return self._completed(index, dict.fromkeys(keys, 0))

    def _stepped(self, index: int) -> TensorDictBase:
        shell = self.shells[index]
        flags = [flag for group in shell.end_groups for flag in (group.terminated, group.truncated) if flag is not None]
        read = dict.fromkeys((*shell.observation_keys, *flags), 1)
        return self._completed(index, {**read, **dict.fromkeys(shell.reward_keys, 0)})

    def _completed(self, index: int, read: Mapping[Key, int]) -> TensorDictBase:
        shell, tensors = self.shells[index], self._part(index).tensors
        leaves = {key: tensors[key][row].clone() for key, row in read.items()}
        return complete_ends(nest(leaves, shell.batch_size), shell.end_groups)
