"""Several environments of one process on the rows of one batch: each reads and writes its own row of the columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase

from rl_core import ArrayEnv, Columns, EnvBase, RowProgram, supports_rows
from rl_core.envs.columns import nest, object_row
from rl_core.errors import EnvError
from rl_core.keys import Key
from rl_envs.vector.members import Members

__all__ = ["MemberRows"]


class MemberRows:
    """The row program of a batch that is made of single environments.

    An environment that writes rows does so in its part of the columns; any other one is called on a TensorDict of its
    row. In columns of one step, a row whose episode ended and that is stepped again keeps its last values (end flags
    set, reward 0) until it is reset.

    Args:
        members: the environments.
        columns: of their batch, where the first dimension after time counts environments; or those of each.
    """

    def __init__(self, members: Members, columns: Columns | Sequence[Columns]) -> None:
        self.members = members
        if isinstance(columns, Columns):
            parts = [_part(columns, index, env.batch_size) for index, env in enumerate(members.envs)]
        else:
            parts = list(columns)
        self.programs = [
            self._program(index, env, part) for index, (env, part) in enumerate(zip(members.envs, parts, strict=True))
        ]
        self._steps = [_whole_step(program) for program in self.programs]
        self._rewards = [[part[key] for key in env.reward_keys] for env, part in zip(members.envs, parts, strict=True)]
        self._ends = [_end_arrays(env, part) for env, part in zip(members.envs, parts, strict=True)]
        self._done = [[part[key] for key in env.done_keys] for env, part in zip(members.envs, parts, strict=True)]
        self.program = RowProgram(
            self._step_one_row if parts[0].n_steps == 1 else self._step,
            self.reset,
            ahead=self._ahead if self.has_ahead else None,
        )

    @property
    def has_ahead(self) -> bool:
        """Whether a policy's state is carried inside of an environment."""
        return any(program.ahead is not None for program in self.programs)

    def _program(self, index: int, env: EnvBase, part: Columns) -> RowProgram:
        if supports_rows(env):
            return env.row_program(part)
        return _ContainerRows(self.members, index, env, part).program

    # ---------------------------------------------------------------- steps
    def _step(self, t: int) -> None:
        members = self.members
        plain, run = members.plain, members.run
        for index, step in enumerate(self._steps):
            if plain[index]:
                members.at = index
                step(t)
            else:
                run(index, "step", step, t)

    def _step_one_row(self, t: int) -> None:
        members, held = self.members, self.members.held
        plain, run, ends = members.plain, members.run, self._ends
        for index, step in enumerate(self._steps):
            if held[index]:
                for reward in self._rewards[index]:
                    reward[t] = 0
                continue
            if plain[index]:
                members.at = index
                step(t)
            else:
                run(index, "step", step, t)
            held[index] = ends[index](t + 1)

    def _ahead(self, t: int) -> None:
        for program in self.programs:
            if program.ahead is not None:
                program.ahead(t)

    # ---------------------------------------------------------------- resets
    def reset(self, t: int, mask: np.ndarray | None) -> None:
        """Begin episodes in the rows of the mask, or in all of them; end flags are cleared there."""
        members = self.members
        for index, (env, program) in enumerate(zip(members.envs, self.programs, strict=True)):
            own = None if mask is None else mask[index]
            if own is not None:
                if not own.any():
                    continue
                own = None if own.all() else own
            members.at = index
            if members.kwargs(index) and supports_rows(env):
                _give_options(env, members.kwargs(index))
            members.run(index, "reset", program.reset, t, own)
            members.held[index] = False
            for flags in self._done[index]:
                flags[t][... if own is None else own] = False


def _part(columns: Columns, index: int, batch_size: torch.Size) -> Columns:
    """One environment's rows of the batch's columns."""
    part = Columns(columns.n_steps, batch_size)
    part.arrays = {key: array[:, index] for key, array in columns.arrays.items()}
    part.tensors = {key: tensor[:, index] for key, tensor in columns.tensors.items()}
    part.carried = list(columns.carried)
    return part


def _whole_step(program: RowProgram) -> Callable[[int], None]:
    """A step with what runs on the actions before it."""
    before, step = program.before, program.step
    if before is None:
        return step

    def both(t: int) -> None:
        before(t)
        step(t)

    return both


def _end_arrays(env: EnvBase, part: Columns) -> Callable[[int], bool]:
    """``over(t)``: whether the whole environment has ended at row t; one of a batch goes on while one of it does."""
    group = env.end_groups[0]
    if group.prefix or len(env.batch_size):
        return lambda t: False  # it holds its own rows, or its agents end one by one
    terminated = part[group.terminated]
    truncated = terminated if group.truncated is None else part[group.truncated]
    if terminated.shape[1:] == (1,):
        over, cut = _item_rows(terminated), _item_rows(truncated)
        return lambda t: over[t] or cut[t]
    return lambda t: bool((terminated[t] | truncated[t]).any())


def _item_rows(array: np.ndarray) -> Any:
    """Rows ``[T, 1]`` of flags as a memoryview ``[T]``, which is read in half of numpy's time."""
    return memoryview(array[:, 0])  # type: ignore[arg-type]


def _give_options(env: EnvBase, kwargs: Mapping[str, Any]) -> None:
    base = env.base_env
    assert isinstance(base, ArrayEnv)
    base._reset_options(**kwargs)


class _ContainerRows:
    """An environment that speaks TensorDict, on its rows."""

    def __init__(self, members: Members, index: int, env: EnvBase, part: Columns) -> None:
        self.members, self.index, self.env, self.part = members, index, env, part
        known = set(part.arrays)
        self.inputs = [key for key in (*part.carried, *env.action_keys) if key in known]
        self.outputs = list(part.carried)
        self.states = [key for key in env.state_keys if key in known]
        written = {*env.observation_keys, *env.done_keys}
        self.kept = [key for key in self.states if key not in written]
        self.program = RowProgram(self.step, self.reset)

    def _row(self, keys: Sequence[Key], t: int) -> TensorDictBase:
        part, env = self.part, self.env
        leaves: dict[Key, Any] = {}
        for key in keys:
            if key in part.tensors:
                value = part.tensors[key][t].clone()
                leaves[key] = value if env.device is None else value.to(env.device)
            else:
                leaves[key] = object_row(part[key][t], env.batch_size)
        return nest(leaves, env.batch_size, env.device)

    def step(self, t: int) -> None:
        """One call of the environment's step."""
        given = self._row(self.inputs, t)
        if self.states:  # what the policy wrote under "next", such as its own state
            given.set("next", self._row(self.states, t + 1))
        result = self.env._step_complete(given)
        for key in self.outputs:
            value = result.get(key, None)
            if value is not None:
                self._put(key, t + 1, value)
            elif key in self.kept:
                self.part[key][t + 1] = self.part[key][t]
        for key in self.env.reward_keys:
            self._put(key, t, result.get(key))

    def _put(self, key: Key, t: int, value: Any, mask: torch.Tensor | None = None) -> None:
        target = self.part.tensors.get(key)
        if target is None:
            self._put_objects(key, t, value, mask)
        elif value.shape != target.shape[1:]:
            raise EnvError(
                f"{type(self.env.base_env).__name__} wrote {key!r} of shape {tuple(value.shape)}; its spec says "
                f"{tuple(target.shape[1:])}"
            )
        elif mask is None:
            target[t].copy_(value.detach())
        else:
            target[t][mask] = value.detach().to("cpu", target.dtype)[mask]

    def _put_objects(self, key: Key, t: int, value: Any, mask: torch.Tensor | None) -> None:
        column = self.part[key]
        if column.ndim == 1:
            column[t] = value.data if isinstance(value, NonTensorData) else value
            return
        fresh = np.empty(column.shape[1:], dtype=object)
        fresh[...] = np.array(value.tolist(), dtype=object).reshape(column.shape[1:])
        rows = ... if mask is None else mask.numpy()
        column[t][rows] = fresh[rows]

    def reset(self, t: int, mask: np.ndarray | None) -> None:
        """One call of the environment's reset, for all of it or some of its rows."""
        env, members = self.env, self.members
        rows = None if mask is None else torch.from_numpy(mask)
        request: TensorDictBase | None = self._row(self.states, t) if members.given else None
        if rows is not None:
            request = TensorDict({}, batch_size=env.batch_size, device=env.device) if request is None else request
            request.set("_reset", rows.unsqueeze(-1).to(env.device or "cpu"))
        fresh = env._reset_raw(request, **members.kwargs(self.index))
        for key in self.outputs:
            value = fresh.get(key, None)
            if value is not None:
                self._put(key, t, value, rows)
