"""Rollouts of a :class:`TensorEnv` on dictionaries of tensors, one TensorDict for the whole of it.

Entries, their values for a seed, and gradients are those of the loop on TensorDicts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from rl_core.envs.ends import any_done, complete_ends, no_ends
from rl_core.envs.stack_steps import stack_entries, stack_steps
from rl_core.envs.tensor_env import TensorEnv
from rl_core.envs.validation import check_actions, validate_output
from rl_core.keys import END_NAMES
from rl_core.policy import row_policy

__all__ = ["tensor_rollout"]

Entries = dict[Any, Any]  # keys are names: see steps_without_container


def tensor_rollout(
    env: TensorEnv,
    policy: Any,
    start: TensorDictBase,
    max_steps: int,
    *,
    stop_any: bool = True,
    contiguous: bool | None = None,
) -> TensorDictBase:
    """Take steps where :meth:`TensorEnv.steps_without_container` says so.

    Args:
        env: the environment.
        policy: as :func:`~rl_core.policy.wrap_policy` returns it, or None for random actions.
        start: the root of the first step, without "next".
        max_steps: the most steps to take.
        stop_any: stop after the first step that ends an episode.
        contiguous: as of :meth:`~rl_core.EnvBase.rollout`.

    Returns:
        TensorDict ``[*B, T]``.
    """
    size, device = start.batch_size, start.device

    def container(entries: Entries) -> TensorDict:
        return TensorDict(entries, batch_size=size, device=device)

    act = _random_actions(env, size) if policy is None else _planned_actions(policy)
    rewards = [key for key in env.reward_keys if key not in env.state_keys]
    never: Entries = dict(no_ends(env.end_groups, size, device))
    roots: list[Entries] = []
    nexts: list[Entries] = []
    root: Entries = dict(start.items())
    for t in range(max_steps):
        root.update(act(root))
        if t == 0:
            check_actions(env, container(root))
        written, ended = env._step_entries(root), None
        if written.keys().isdisjoint(END_NAMES):
            written.update(never)
        else:
            completed = complete_ends(container(written), env.end_groups, batch_locked=False)
            written, ended = dict(completed.items()), any_done(completed, env.end_groups, len(size))
        if not env._validated:
            validate_output(env, container(written), values=False)
            env._validated = True
        roots.append(root)
        nexts.append(written)
        if ended is not None and stop_any:
            break
        root = {**root, **written}
        for key in rewards:
            root.pop(key, None)
        if ended is not None and t + 1 < max_steps:
            root = dict(env.maybe_reset(container(root)).items())
    return _stack(roots, nexts, start, contiguous)


def _random_actions(env: TensorEnv, size: torch.Size) -> Callable[[Entries], Entries]:
    specs, shape = [(key, spec) for key, spec, _ in env._action_leaves()], size[len(env.batch_size) :]
    return lambda root: {key: spec.rand(shape) for key, spec in specs}


def _planned_actions(policy: Any) -> Callable[[Entries], Entries]:
    plan = row_policy(policy)
    assert plan is not None
    in_keys, out_keys, call = plan.in_keys, plan.out_keys, plan.call

    def act(root: Entries) -> Entries:
        written = dict(zip(out_keys, call(*[root[key] for key in in_keys]), strict=True))
        written.pop("_", None)  # where a module's outputs go that nobody wants
        return written

    return act


def _stack(roots: list[Entries], nexts: list[Entries], like: TensorDictBase, contiguous: bool | None) -> TensorDictBase:
    size, device, dim = like.batch_size, like.device, like.batch_dims
    stacked, nxt = (stack_entries(rows, dim, size, device) for rows in (roots, nexts))
    if stacked is not None and nxt is not None:
        stacked.set("next", nxt)
        stacked.names = [*([None] * dim), "time"]
        return stacked
    pairs = zip(roots, nexts, strict=True)
    steps: list[TensorDictBase] = [
        TensorDict(
            {**root, "next": TensorDict(written, batch_size=size, device=device)}, batch_size=size, device=device
        )
        for root, written in pairs
    ]
    return stack_steps(steps, dim, contiguous)
