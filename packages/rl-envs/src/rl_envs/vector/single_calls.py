"""One environment's own reset or step, as the workers of an AsyncEnvPool do it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensordict import TensorDictBase

from rl_core import EnvBase
from rl_envs.vector.members import Members

__all__ = ["call_member"]


def call_member(
    members: Members, index: int, method: str, data: TensorDictBase | None, kwargs: Mapping[str, Any]
) -> list[TensorDictBase]:
    """Call a method of one environment.

    Args:
        members: the environments of the worker.
        index: which of them.
        method: "reset", "step" or "step_and_maybe_reset".
        data: its argument.
        kwargs: further arguments of a reset.

    Returns:
        what it returns, as a list.
    """
    env = members.envs[index]
    if data is not None and env.device is not None:
        data = data.to(env.device)
    phase = "reset" if method == "reset" else "step"
    return members.run(index, phase, _CALLS[method], env, data, kwargs)


def _reset(env: EnvBase, data: TensorDictBase | None, kwargs: Mapping[str, Any]) -> list[TensorDictBase]:
    return [env.reset(data, **kwargs)]


def _step(env: EnvBase, data: TensorDictBase, kwargs: Mapping[str, Any]) -> list[TensorDictBase]:
    return [env.step(data)]


def _step_and_maybe_reset(env: EnvBase, data: TensorDictBase, kwargs: Mapping[str, Any]) -> list[TensorDictBase]:
    return list(env.step_and_maybe_reset(data))


_CALLS = {"reset": _reset, "step": _step, "step_and_maybe_reset": _step_and_maybe_reset}
