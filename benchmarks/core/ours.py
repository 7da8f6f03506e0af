"""rl-core and rl-envs: imports, a third party's environment, PendulumEnv, rollouts, specs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from _imports import in_fork, in_new_interpreter
from _ten_leaves import ten_leaves
from _third_party import environment, root

Work = Callable[[], object]


def build(task: str, **arguments: Any) -> Work:
    """One repetition is what the task's function returns."""
    work: Work = globals()[task](**arguments)
    return work


def import_package() -> Work:
    """Python is started and imports ``rl_core``."""
    return in_new_interpreter("rl_core")


def import_envs() -> Work:
    """``rl_core.envs.base`` is imported after torch and tensordict."""
    return in_fork("rl_core.envs.base")


def third_party_step() -> Work:
    """``env.step`` of an ``EnvBase`` that is a third party's."""
    from rl_core import Composite, EnvBase, Unbounded

    env = environment(EnvBase, Composite, Unbounded)
    return lambda: env.step(root())


def pendulum_step(batch: int) -> Work:
    """``env.step`` of a batch of pendulums."""
    from rl_envs import PendulumEnv

    env = PendulumEnv()
    td = env.rand_action(env.reset(env.gen_params(batch_size=[batch])))
    return lambda: env.step(td).del_("next")


def pendulum_rollout(batch: int, steps: int) -> Work:
    """A rollout with random actions."""
    from rl_envs import PendulumEnv

    env = PendulumEnv()
    if not batch:
        return lambda: env.rollout(steps)
    start = env.gen_params(batch_size=[batch])
    return lambda: env.rollout(steps, auto_reset=False, tensordict=env.reset(start.copy()))


def cartpole_rollout(steps: int) -> Work:
    """A rollout with random actions that goes on after the ends of episodes."""
    from rl_envs import GymEnv

    env = GymEnv("CartPole-v1", categorical_action_encoding=True)
    return lambda: env.rollout(steps, break_when_any_done=False)


def spec_rand() -> Work:
    """One draw from the Composite of ten leaves."""
    import rl_core

    return ten_leaves(rl_core).rand


def spec_is_in() -> Work:
    """One check of a draw."""
    import rl_core

    spec = ten_leaves(rl_core)
    values = spec.rand()
    assert spec.is_in(values)
    return lambda: spec.is_in(values)
