"""Actions in [-1, 1]: critics see them beside observations of order 1, and noise and entropies need no unit.

A critic that reads actions in a wider range reacts to them as much more at the start, and so does the policy that
follows it: on Pendulum, whose actions are in [-2, 2], DDPG and TD3 lost in some runs for a while what they had learnt.
"""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase

from rl_core import registry

__all__ = ["env_in_unit_actions", "rows_in_env_actions", "rows_in_unit_actions"]


def env_in_unit_actions(env: Any) -> Any:
    """The environment whose policy acts in [-1, 1]; itself where that is so, or where actions are no bounded vector."""
    bounds = _middle_and_half(env.action_spec_unbatched)
    if bounds is None or (bool((bounds[0] == 0).all()) and bool((bounds[1] == 1).all())):
        return env
    return env.append_transform(registry.transforms.get("ActionScaling")())


def rows_in_unit_actions(rows: TensorDictBase, spec: Any) -> TensorDictBase:
    """Rows whose actions obey an environment's spec, with actions in [-1, 1]; as they are where it has no bounds."""
    bounds = _middle_and_half(spec)
    return rows if bounds is None else rows.copy().set("action", (rows["action"] - bounds[0]) / bounds[1])


def rows_in_env_actions(rows: TensorDictBase, spec: Any) -> TensorDictBase:
    """The inverse of :func:`rows_in_unit_actions`."""
    bounds = _middle_and_half(spec)
    return rows if bounds is None else rows.copy().set("action", rows["action"] * bounds[1] + bounds[0])


def _middle_and_half(spec: Any) -> tuple[Any, Any] | None:
    """Of the range of a vector of bounded numbers, in single precision."""
    low, high = getattr(spec, "low", None), getattr(spec, "high", None)
    if low is None or high is None or not spec.dtype.is_floating_point:
        return None
    if len(spec.shape) != 1 or not bool(low.isfinite().all()) or not bool(high.isfinite().all()):
        return None
    return ((high + low) / 2).float(), ((high - low) / 2).float()
