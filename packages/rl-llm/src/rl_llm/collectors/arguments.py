"""What arguments of ``LLMCollector`` admit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rl_core import registry
from rl_core.envs.base import EnvBase
from rl_core.errors import CollectorError

__all__ = ["check_kinds", "make_env", "one_of_two"]


def one_of_two(name: str, value: Any, other: str, alias: Any) -> Any:
    """The value of an argument that has two names."""
    if value is not None and alias is not None and value != alias:
        raise CollectorError(f"{name}={value!r} and {other}={alias!r} are two names of one thing; give one of them")
    return alias if value is None else value


def check_kinds(
    whole: bool, only_last: bool, flatten: bool | None, async_envs: bool | None, turns: int | None, stale: str
) -> None:
    """Raise where the options about what a batch is contradict each other."""
    if only_last and not whole:
        raise CollectorError("yield_only_last_steps=True yields ended dialogs: leave yield_completed_trajectories out")
    if whole and flatten is False:
        raise CollectorError(
            "whole dialogs have different numbers of turns, so they are rows [N]: leave flatten_data out; "
            '("collector", "traj_ids") tells them apart'
        )
    if not whole and turns is None:
        raise CollectorError("dialog_turns_per_batch (or frames_per_batch) is missing: how many turns a batch has")
    if async_envs:
        raise CollectorError(
            "async_envs=True is not available: chats step together, and an ended one begins anew at once. start() "
            "collects beside training"
        )
    if stale not in ("drop", "raise"):
        raise CollectorError(f"stale={stale!r}; it must be 'drop' or 'raise'")


def make_env(source: EnvBase | Callable[[], EnvBase] | str) -> tuple[EnvBase, bool]:
    """The environment, and whether the collector owns it."""
    if isinstance(source, EnvBase):
        env, owned = source, False
    elif isinstance(source, str):
        env, owned = registry.envs.make(source), True
    else:
        env, owned = source(), True
    if not isinstance(env, EnvBase) or len(env.batch_size) != 1:
        got = tuple(env.batch_size) if isinstance(env, EnvBase) else type(env).__name__
        raise CollectorError(f"LLMCollector takes a chat environment with one batch dimension (N,); got {got}")
    return env, owned
