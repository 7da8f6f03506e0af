"""``RowRunner``: steps an environment on columns, with no TensorDict per step.

The policy reads tensor rows, the simulator writes numpy rows of the same memory, and one TensorDict is built per batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_core.checking import checks_enabled
from rl_core.envs.action_masks import ActionLeaf, action_leaves, legal_action_specs
from rl_core.envs.array_env import allocate
from rl_core.envs.base import EnvBase
from rl_core.envs.columns import Endings, nest, object_row
from rl_core.envs.env_specs import leaf_specs
from rl_core.envs.validation import check_action_shape, check_member, edited_text
from rl_core.errors import EnvError, PolicyError
from rl_core.keys import Key, as_path, flat_name, join
from rl_core.policy import RowPolicy, row_policy
from rl_core.specs import TensorSpec

__all__ = ["RowRunner"]


class RowRunner:
    """Runs a policy in an environment whose :attr:`~rl_core.EnvBase.supports_rows` is True.

    Args:
        env: the environment.
        policy: as :func:`~rl_core.policy.wrap_policy` returns it, or None for random actions.
        n_steps: the most steps that one :meth:`run` takes.
    """

    def __init__(self, env: EnvBase, policy: Any, n_steps: int) -> None:
        self.env, self.n_steps = env, n_steps
        self.batch_size = env.batch_size
        self.policy = policy
        self._bind()

    def _bind(self) -> None:
        """Columns and programs for the environment as it is now."""
        env = self.env
        self.columns = allocate(env, self.n_steps)
        self.program = env.row_program(self.columns)
        self.endings = Endings(list(self.columns.carried))
        self.action_specs: dict[Key, TensorSpec] = leaf_specs(env.full_action_spec)
        self.extras: dict[Key, list[Tensor]] = {}
        self._end = self._bind_ends()
        self._started = False
        self._version = env.specs_version
        self.use(self.policy)

    def use(self, policy: Any) -> None:
        """Act with another policy from the next step on."""
        self.policy = policy
        self.extras.clear()
        self._act = self._bind_policy()

    # ---------------------------------------------------------------- the loop
    def reset(self) -> None:
        """Start new episodes in every row; the environment may have other transforms than before."""
        self.env._check_open()
        if self._version != self.env.specs_version:
            self._bind()
        self._reset(0, None)
        self._started = True

    def run(self, n_steps: int | None = None, *, stop_at_end: bool = False, reset_last: bool = True) -> TensorDictBase:
        """Take steps, going on where the last run ended.

        Args:
            n_steps: how many, at most those of the constructor.
            stop_at_end: stop after the first step that ends an episode.
            reset_last: reset rows that end at the last step, so that the next run goes on.

        Returns:
            TensorDict ``[*B, T]`` that shares no memory with this runner.
        """
        if not self._started:
            self.reset()
        elif self._version != self.env.specs_version:
            raise EnvError(edited_text(self.env))
        total = self.n_steps if n_steps is None else n_steps
        self.endings.clear()
        for values in self.extras.values():
            values.clear()
        act, before, step, end, ahead = self._act, self.program.before, self.program.step, self._end, self.program.ahead
        batched = len(self.batch_size) > 0
        taken = total
        for t in range(total):
            if ahead is not None:
                ahead(t)
            act(t)
            if before is not None:
                before(t)
            step(t)
            ended = end(t + 1)
            if ended is None:
                continue
            if stop_at_end:
                taken = t + 1
                break
            if reset_last or t + 1 < total:
                mask = ended if batched else None
                self.endings.save(self.columns, t, mask)
                self._reset(t + 1, mask)
        if checks_enabled() or self.env.run_type_checks:
            self._check(taken)
        batch = self._read(taken)
        if taken == self.n_steps:
            self.columns.carry_over()
        else:
            for key in self.columns.carried:
                self.columns[key][0] = self.columns[key][taken]
        return batch

    def keep(self) -> None:
        """Nothing: outputs of a policy are copied at once (:meth:`ContainerRunner.keep` is the twin)."""

    def _reset(self, t: int, mask: np.ndarray | None) -> None:
        self.program.reset(t, mask)
        for key in self.env.done_keys:
            if mask is None:
                self.columns[key][t] = False
            else:
                self.columns[key][t][mask] = False

    def state_dict(self) -> dict[str, Any]:
        """Where the next run goes on: the carried row."""
        if not self._started:
            return {}
        columns = self.columns
        return {
            "carry": {
                flat_name(key, "/"): columns.tensors[key][0].clone()
                for key in columns.carried
                if key in columns.tensors
            }
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a :meth:`state_dict` back; the environment restores its own state."""
        carry = state_dict.get("carry", {})
        for key in self.columns.carried:
            if flat_name(key, "/") in carry:
                self.columns.tensors[key][0] = carry[flat_name(key, "/")]
                self._started = True

    # ---------------------------------------------------------------- binding
    def _bind_ends(self) -> Callable[[int], np.ndarray | None]:
        """``end(t)`` completes the end flags of carried row t and gives the rows that ended, or None."""
        groups = [
            (
                self.columns[g.done],
                self.columns[g.terminated],
                None if g.truncated is None else self.columns[g.truncated],
            )
            for g in self.env.end_groups
        ]
        if self.env.end_groups[0].prefix:
            raise EnvError(f"{type(self.env).__name__} has no end flags at the root; environments on columns need them")
        if len(groups) == 1 and groups[0][0].shape[1:] == (1,):
            return _single_end(*groups[0])
        root = groups[0][0]
        logical_or, copyto, count, batch = np.logical_or, np.copyto, np.count_nonzero, tuple(self.batch_size)

        def end(t: int) -> np.ndarray | None:
            for done, terminated, truncated in groups:
                if truncated is None:
                    copyto(done[t], terminated[t])
                else:
                    logical_or(terminated[t], truncated[t], out=done[t])
            row = root[t]
            return row.reshape(batch).copy() if count(row) else None  # the row itself is cleared by the reset

        return end

    def _bind_policy(self) -> Callable[[int], None]:
        if self.policy is None:
            return self._bind_random()
        plan = row_policy(self.policy)
        known = self.columns.tensors
        if plan is None or not all(key in known for key in plan.in_keys):
            return self._bind_container()
        self._require_actions(plan.out_keys)
        return self._bind_plan(plan)

    def _bind_random(self) -> Callable[[int], None]:
        """Random actions are drawn for the whole batch of steps at once; step by step where masks say what is legal."""
        columns, n_steps = self.columns, self.n_steps
        leaves = action_leaves(self.env)
        if any(mask is not None for _, _, mask in leaves):
            return self._bind_random_legal(leaves)

        def act(t: int) -> None:
            if t == 0:
                for key, spec in self.action_specs.items():
                    drawn = spec.rand((n_steps,))
                    if isinstance(drawn, Tensor):
                        columns.tensors[key].copy_(drawn)
                    else:
                        columns[key][:] = np.array(drawn.tolist(), dtype=object)

        return act

    def _bind_random_legal(self, leaves: list[ActionLeaf]) -> Callable[[int], None]:
        """One step's masks, one draw."""
        columns, batch = self.columns, self.batch_size
        masks = [mask for _, _, mask in leaves if mask is not None]

        def act(t: int) -> None:
            given = nest({mask: columns.tensors[mask][t] for mask in masks}, batch)
            for key, spec in legal_action_specs(leaves, given):
                columns.tensors[key][t] = spec.rand()

        return act

    def _bind_plan(self, plan: RowPolicy) -> Callable[[int], None]:
        """The policy on bare tensors: its rows and its outputs' places are found once."""
        tensors = [self.columns.tensors[key] for key in plan.in_keys]
        inputs = list(zip(*(list(torch.unbind(tensor, 0)) for tensor in tensors), strict=True)) if tensors else None
        call = plan.call
        store = self._bind_outputs(plan.out_keys)

        def act(t: int) -> None:
            store(t, call(*inputs[t]) if inputs is not None else call())

        return act

    def _bind_outputs(self, out_keys: Sequence[Key]) -> Callable[[int, Sequence[Tensor]], None]:
        """Where a policy's outputs go: actions to columns, recurrent states to the next row, all else to lists."""
        actions: list[tuple[int, np.ndarray]] = []
        carried: list[tuple[int, Tensor]] = []
        extras: list[tuple[int, list[Tensor]]] = []
        for place, key in enumerate(out_keys):
            path = as_path(key)
            if key in self.action_specs:
                actions.append((place, self.columns[key]))
            elif path[0] == "next" and join(*path[1:]) in self.columns.tensors:
                carried.append((place, self.columns.tensors[join(*path[1:])]))
            elif path[-1] != "_" and key not in self.columns:
                extras.append((place, self.extras.setdefault(key, [])))

        checked = False

        def store(t: int, outputs: Sequence[Tensor]) -> None:
            nonlocal checked
            if not checked:
                for place, array in actions:
                    check_action_shape(out_keys[place], outputs[place], array.shape[1:], type(self.policy).__name__)
                checked = True
            for place, array in actions:
                value = outputs[place]
                array[t] = (value.detach() if value.requires_grad else value).numpy()
            for place, tensor in carried:
                tensor[t + 1] = outputs[place].detach()
            for place, values in extras:
                values.append(outputs[place])

        return store

    def _bind_container(self) -> Callable[[int], None]:
        """A policy that can only be called on a TensorDict: one is built per step."""
        columns, policy, batch = self.columns, self.policy, self.batch_size
        store: list[Any] = []

        def act(t: int) -> None:
            row = {key: columns.tensors[key][t].clone() for key in columns.carried if key in columns.tensors}
            given = nest(row, batch)
            for key in columns.carried:
                if key not in row:
                    given.set(key, object_row(columns[key][t], batch))
            result = policy(given)
            if not isinstance(result, TensorDictBase):
                raise PolicyError(
                    f"the policy returned {type(result).__name__}; it must return a TensorDict with the action"
                )
            if not store:
                written = [key for key in result.keys(True, True) if key not in columns.carried]
                self._require_actions(written)
                store.append((written, self._bind_outputs(written)))
            written, put = store[0]
            put(t, [result.get(key) for key in written])

        return act

    def _require_actions(self, written: Sequence[Key]) -> None:
        for key in self.action_specs:
            if key not in written:
                raise PolicyError(
                    f"the policy {type(self.policy).__name__} writes {', '.join(map(repr, written)) or 'nothing'}, not "
                    f"the action {key!r} that {type(self.env.base_env).__name__} needs; set out_keys=[{key!r}]"
                )

    # ---------------------------------------------------------------- reading a batch
    def _check(self, taken: int) -> None:
        """Checked mode: every value of the batch against its spec."""
        env = self.env
        for what, full, offset in (
            ("action", env.full_action_spec, 0),
            ("reward", env.full_reward_spec, 0),
            ("observation", env.observation_spec, 1),
        ):
            for key, spec in leaf_specs(full).items():
                if key in self.columns.tensors:
                    for t in range(taken):
                        check_member(what, key, spec, self.columns.tensors[key][t + offset])

    def _read(self, taken: int) -> TensorDictBase:
        columns, batch = self.columns, self.batch_size
        root: dict[Key, Any] = {}
        nxt: dict[Key, Any] = {}
        for key in columns.carried:
            root[key] = columns.batch_major(key, 0, taken)
            nxt[key] = self.endings.restore(key, columns.batch_major(key, 1, taken + 1), batch)
        for key in self.action_specs:
            root[key] = columns.batch_major(key, 0, taken)
        for key in self.env.reward_keys:
            nxt[key] = columns.batch_major(key, 0, taken)
        for key, values in self.extras.items():
            if len(values) == taken:
                path = as_path(key)
                stacked = _stack(values, len(batch))
                if path[0] == "next":
                    nxt[join(*path[1:])] = stacked
                else:
                    root[key] = stacked
        size = torch.Size([*batch, taken])
        result = nest(root, size, self.env.device)
        result.set("next", nest(nxt, size, self.env.device))
        result.names = [*([None] * len(batch)), "time"]
        return result


def _stack(values: list[Any], dim: int) -> Any:
    if isinstance(values[0], Tensor):
        return torch.stack(values, dim)
    from tensordict import LazyStackedTensorDict, NonTensorStack

    if isinstance(values[0], TensorDict):
        return LazyStackedTensorDict.maybe_dense_stack(values, dim)
    return NonTensorStack(*values, stack_dim=dim)


def _single_end(
    done: np.ndarray, terminated: np.ndarray, truncated: np.ndarray | None
) -> Callable[[int], np.ndarray | None]:
    """``end(t)`` of one environment: its flags as plain booleans, which cost a third of numpy's."""
    yes = np.ones((), dtype=bool)
    columns: list[Any] = [flag[:, 0] for flag in (done, terminated, terminated if truncated is None else truncated)]
    over, over_by_itself, cut = (memoryview(column) for column in columns)

    def end(t: int) -> np.ndarray | None:
        over[t] = ended = over_by_itself[t] or cut[t]
        return yes if ended else None

    return end
