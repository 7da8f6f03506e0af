"""Replay: the same actions in two environments, by steps or as a rollout, and a comparison that names what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_core.envs.action_masks import action_leaves, legal_action_specs
from rl_core.envs.base import EnvBase
from rl_core.keys import Key, as_key, as_path

__all__ = ["assert_same", "draw_actions", "put_action", "rollout_of", "start", "steps_of"]


def start(env: EnvBase, rows: int = 3) -> TensorDictBase:
    """A reset; an environment of any batch size gets ``rows`` rows."""
    return env.reset() if env.batch_locked else env.reset(TensorDict({}, batch_size=[rows], device=env.device))


def draw_actions(env: EnvBase, n: int, batch: torch.Size, seed: int = 0) -> list[TensorDictBase]:
    """``n`` random actions for a batch, always the same; torch's generator is left as it was."""
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    drawn = [env.rand_action(TensorDict({}, batch_size=batch, device=env.device)) for _ in range(n)]
    torch.random.set_rng_state(state)
    return drawn


def put_action(env: EnvBase, td: TensorDictBase, action: TensorDictBase) -> TensorDictBase:
    """Write an action that was drawn before into a TensorDict, changed to the nearest that its masks allow.

    Returns:
        the TensorDict.
    """
    td.update(action)
    leaves = [leaf for leaf in action_leaves(env) if leaf[2] is not None]
    extra = () if env.batch_locked else td.batch_size[len(env.batch_size) :]
    for key, legal in legal_action_specs(leaves, td, extra):
        td.set(key, legal.project(td.get(key)))
    return td


def steps_of(env: EnvBase, td: TensorDictBase, actions: Iterable[TensorDictBase]) -> list[TensorDictBase]:
    """The stepped TensorDicts of ``step_and_maybe_reset``, each a copy of its own."""
    steps = []
    for action in actions:
        stepped, td = env.step_and_maybe_reset(put_action(env, td, action))
        steps.append(stepped.clone())
    return steps


def rollout_of(env: EnvBase, actions: list[TensorDictBase]) -> TensorDictBase:
    """A rollout through all ends with these actions."""
    queue = iter(actions)

    def policy(tensordict: TensorDictBase) -> TensorDictBase:
        return put_action(env, tensordict, next(queue))

    return env.rollout(len(actions), policy, break_when_any_done=False, trust_policy=True)


def assert_same(
    found: TensorDictBase,
    expected: TensorDictBase,
    what: str,
    *,
    keys: Iterable[Key] | None = None,
    pick: Callable[[Any], Any] = lambda value: value,
) -> None:
    """Every entry of ``expected`` (or the keys named) is equal in ``found``, up to float rounding.

    Args:
        found: the subject's.
        expected: the right values.
        what: a sentence's beginning for the message, e.g. "row 0 after a reset of row 1".
        keys: the entries to compare.
        pick: applied to both values, e.g. to choose rows.
    """
    for raw in expected.keys(True, True) if keys is None else keys:
        key = as_key(as_path(raw))
        ours, theirs = found.get(key, None), expected.get(key)
        assert ours is not None, f"{what}: {key!r} is missing"
        if isinstance(theirs, Tensor):
            ours, theirs = pick(ours), pick(theirs)
            assert ours.shape == theirs.shape, (
                f"{what}: {key!r} has shape {tuple(ours.shape)}, not {tuple(theirs.shape)}"
            )
            assert ours.dtype == theirs.dtype, f"{what}: {key!r} has dtype {ours.dtype}, not {theirs.dtype}"
            if theirs.is_floating_point():
                same = torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6, equal_nan=True)
            else:
                same = torch.equal(ours, theirs)
            assert same, f"{what}: {key!r} is {ours.tolist()}, not {theirs.tolist()}"
        else:
            assert _plain(pick(ours)) == _plain(pick(theirs)), (
                f"{what}: {key!r} is {_plain(ours)}, not {_plain(theirs)}"
            )


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else getattr(value, "data", value)
