"""rl-envs: rollouts of the same with random actions, every transition kept, true last observations included."""

from __future__ import annotations

from collections.abc import Callable

from rl_core import RowRunner
from rl_envs import CartPoleEnv, GymEnv

_MODES = {"gym": "sync", "vector": "vector_entry_point"}


def build(kind: str, n_envs: int, steps: int) -> Callable[[], object]:
    """One repetition takes ``steps`` steps of ``n_envs`` environments."""
    if kind == "native":
        native = CartPoleEnv(num_envs=n_envs, categorical_action_encoding=True)
        return lambda: native.rollout(steps, break_when_any_done=False)
    env = GymEnv("CartPole-v1", True, num_envs=n_envs, vectorization_mode=_MODES[kind])
    env.set_seed(0)
    return RowRunner(env, None, steps).run
