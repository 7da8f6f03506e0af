"""Rollouts: an environment and a policy, step after step, as one TensorDict ``[*B, T]``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.envs.base import EnvBase
from rl_core.envs.ends import any_done, complete_ends
from rl_core.envs.entries import put_entries
from rl_core.envs.partial_reset import ResetRequest, merge_reset
from rl_core.envs.row_runner import RowRunner
from rl_core.envs.stack_steps import stack_steps
from rl_core.envs.tensor_env import TensorEnv
from rl_core.envs.tensor_rollout import tensor_rollout
from rl_core.errors import EnvError, PolicyError
from rl_core.policy import wrap_policy
from rl_core.policy_state import with_carried_state

__all__ = ["mark_truncated", "rollout", "stack_steps", "take_steps"]


def rollout(
    env: EnvBase,
    max_steps: int,
    policy: Any = None,
    callback: Callable[[EnvBase, TensorDictBase], Any] | None = None,
    *,
    auto_reset: bool = True,
    auto_cast_to_device: bool = False,
    break_when_any_done: bool | None = None,
    break_when_all_done: bool | None = None,
    return_contiguous: bool | None = None,
    tensordict: TensorDictBase | None = None,
    set_truncated: bool = False,
    trust_policy: bool = False,
    storing_device: torch.device | str | None = None,
) -> TensorDictBase:
    """See :meth:`rl_core.EnvBase.rollout`."""
    stop_any, stop_all = _stopping(break_when_any_done, break_when_all_done)
    if max_steps < 1:
        raise ValueError(f"max_steps is {max_steps}; a rollout takes at least one step")
    if not auto_reset and tensordict is None:
        raise EnvError("auto_reset=False needs the TensorDict to start from: rollout(..., tensordict=env.reset())")
    env = with_carried_state(env, policy)
    actor = None if policy is None else wrap_policy(policy, env, trust=trust_policy)
    from rl_core.transforms.transformed_env import supports_rows

    plain = callback is None and not stop_all and not auto_cast_to_device and return_contiguous is not False
    if plain and tensordict is None and supports_rows(env) and not _on_accelerator(policy):
        runner = RowRunner(env, actor, max_steps)
        runner.reset()
        data = runner.run(stop_at_end=stop_any, reset_last=False)
    else:
        start = _start(env, tensordict, auto_reset)
        if plain and isinstance(env, TensorEnv) and env.steps_without_container(actor, start):
            data = tensor_rollout(env, actor, start, max_steps, stop_any=stop_any, contiguous=return_contiguous)
        else:
            steps = take_steps(
                env,
                actor,
                start,
                max_steps,
                callback=callback,
                stop_any=stop_any,
                stop_all=stop_all,
                cast=auto_cast_to_device,
            )
            data = stack_steps(steps, len(start.batch_size), return_contiguous)
    if set_truncated:
        mark_truncated(data, env)
    return data if storing_device is None else data.to(storing_device)


def _stopping(any_done_: bool | None, all_done: bool | None) -> tuple[bool, bool]:
    if any_done_ and all_done:
        raise TypeError("break_when_any_done and break_when_all_done exclude each other; pass one of them")
    if all_done:
        return False, True
    return True if any_done_ is None else any_done_, False


def _start(env: EnvBase, tensordict: TensorDictBase | None, auto_reset: bool) -> TensorDictBase:
    if auto_reset:
        return env.reset(tensordict)
    assert tensordict is not None
    if any(tensordict.get(group.done, None) is None for group in env.end_groups):
        env._check_batch(tensordict)
        _check_start(env, tensordict)
        complete_ends(tensordict, env.end_groups, batch_locked=env.batch_locked)
    return env.maybe_reset(tensordict)


def _check_start(env: EnvBase, tensordict: TensorDictBase) -> None:
    """A start without end flags is one where nothing has ended, if it is the start of anything at all."""
    keys = [*env.observation_keys, *env.state_keys]
    if keys and all(tensordict.get(key, None) is None for key in keys):
        present = ", ".join(repr(key) for key in tensordict.keys(True, True)) or "nothing"
        raise EnvError(
            f"auto_reset=False starts from the TensorDict that is given; that has {present}, and the environment's "
            f"observations are {', '.join(map(repr, keys))}. Pass tensordict=env.reset(), or leave auto_reset=True"
        )


def _on_accelerator(policy: Any) -> bool:
    if not isinstance(policy, nn.Module):
        return False
    return any(p.device.type != "cpu" for p in policy.parameters())


def take_steps(
    env: EnvBase,
    policy: Callable[[TensorDictBase], TensorDictBase] | None,
    start: TensorDictBase,
    max_steps: int,
    *,
    callback: Callable[[EnvBase, TensorDictBase], Any] | None = None,
    stop_any: bool = True,
    stop_all: bool = False,
    cast: bool = False,
) -> list[TensorDictBase]:
    """The stepped TensorDicts of a rollout, one per step."""
    steps: list[TensorDictBase] = []
    td = start
    frozen: Tensor | None = None
    for t in range(max_steps):
        td = _act(env, policy, td, cast)
        td = env.step(td)
        if frozen is not None:
            td = _freeze(td, steps[-1], frozen)
        steps.append(td)
        if callback is not None:
            callback(env, td)
        ended = any_done(td.get("next"), env.end_groups, td.batch_dims)
        if ended is not None and (stop_any or (stop_all and bool(ended.all()))):
            break
        if t + 1 < max_steps:
            td = env.step_mdp(td)
            if stop_all:
                frozen = ended
            elif ended is not None:
                td = env.maybe_reset(td)
    return steps


def _act(env: EnvBase, policy: Callable[..., Any] | None, td: TensorDictBase, cast: bool) -> TensorDictBase:
    if policy is None:
        return env.rand_action(td)
    if cast:
        device = next((p.device for p in policy.parameters()), None) if isinstance(policy, nn.Module) else None
        result = policy(td if device is None else td.to(device))
        result = result if env.device is None and device is None else result.to(env.device or "cpu")
    else:
        result = policy(td)
    if result is td:
        return td
    if not isinstance(result, TensorDictBase):
        raise PolicyError(f"the policy returned {type(result).__name__}; it must return a TensorDict with the action")
    return put_entries(td, result)


def _freeze(td: TensorDictBase, before: TensorDictBase, frozen: Tensor) -> TensorDictBase:
    """Rows that ended earlier repeat their last transition."""
    keep = ResetRequest({(): ~frozen.unsqueeze(-1)})
    return merge_reset(before, td, keep)


def mark_truncated(data: TensorDictBase, env: EnvBase) -> TensorDictBase:
    """Mark the last step of every row as truncated, unless its episode terminated there; in place.

    Real end flags are kept: ``truncated |= ~terminated`` on that step and ``done = terminated | truncated``.
    """
    nxt = data.get("next")
    last = (slice(None),) * (data.batch_dims - 1) + (-1,)
    for group in env.end_groups:
        if group.truncated is None:
            raise EnvError(
                f"set_truncated needs the end flag {'truncated'!r}, which {type(env).__name__} does not have; append "
                "StepCounter(max_steps=...) or declare it in the done spec"
            )
        terminated, done = nxt.get(group.terminated), nxt.get(group.done)
        truncated = nxt.get(group.truncated)
        truncated[last] |= ~terminated[last]
        done[last] = terminated[last] | truncated[last]
    return data
