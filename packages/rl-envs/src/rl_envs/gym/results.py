"""The errors for resets and steps that do not return what gymnasium's do."""

from __future__ import annotations

from typing import Any

from rl_core.errors import EnvError

__all__ = ["wrong_reset", "wrong_step"]

_STEPS = {
    4: (
        "which looks like old gym's (observation, reward, done, info), where a time limit and an end cannot be told "
        "apart. Wrap it: gymnasium.make('GymV21Environment-v0', env=...) of the package shimmy"
    ),
    6: (
        "which looks like (observation, reward, cost, terminated, truncated, info) of constrained environments such as "
        "Safety-Gymnasium's. Write a gymnasium.Wrapper whose step puts the cost into info (info['cost'] = cost), and "
        "read it with env.set_info_dict_reader(['cost'])"
    ),
}


def wrong_step(name: str, result: Any) -> EnvError:
    """The error for a step that did not return five values."""
    if not isinstance(result, tuple | list):
        found = f"a {type(result).__name__}"
    else:
        found = f"{len(result)} values"
        if len(result) in _STEPS:
            found += f", {_STEPS[len(result)]}; or say how they are read in a subclass of rl_envs.GymLikeEnv"
            return EnvError(f"step of {name} returned {found}")
    return EnvError(
        f"step of {name} returned {found}; (observation, reward, terminated, truncated, info) is expected. Say how its "
        "results are read in a subclass of rl_envs.GymLikeEnv"
    )


def wrong_reset(name: str, result: Any) -> EnvError:
    """The error for a reset that did not return two values."""
    found = f"{len(result)} values" if isinstance(result, tuple | list) else f"a {type(result).__name__}"
    return EnvError(
        f"reset of {name} returned {found}; (observation, info) is expected. Return an empty info ({{}}) in a "
        "gymnasium.Wrapper, or say how its results are read in a subclass of rl_envs.GymLikeEnv"
    )
