"""TorchRL: the same tasks with its EnvBase, PendulumEnv, GymEnv and specs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from _imports import in_fork, in_new_interpreter
from _ten_leaves import ten_leaves
from _third_party import environment, root

Work = Callable[[], object]


def build(task: str, **arguments: Any) -> Work:
    """One repetition is what the task's function returns."""
    warnings.simplefilter("ignore")
    work: Work = globals()[task](**arguments)
    return work


def import_package() -> Work:
    """Python is started and imports ``torchrl``."""
    return in_new_interpreter("torchrl")


def import_envs() -> Work:
    """``torchrl.envs`` is imported after torch and tensordict."""
    return in_fork("torchrl.envs")


def third_party_step() -> Work:
    """``env.step`` of an ``EnvBase`` that is a third party's."""
    from torchrl.data import Composite, Unbounded
    from torchrl.envs import EnvBase

    env = environment(EnvBase, Composite, Unbounded)
    env.reset()
    return lambda: env.step(root())


def pendulum_step(batch: int) -> Work:
    """``env.step`` of a batch of pendulums."""
    from torchrl.envs import PendulumEnv

    env = PendulumEnv()
    td = env.rand_action(env.reset(env.gen_params(batch_size=[batch])))
    return lambda: env.step(td).del_("next")


def pendulum_rollout(batch: int, steps: int) -> Work:
    """A rollout with random actions."""
    from torchrl.envs import PendulumEnv

    env = PendulumEnv()
    if not batch:
        return lambda: env.rollout(steps)
    start = env.gen_params(batch_size=[batch])
    return lambda: env.rollout(steps, auto_reset=False, tensordict=env.reset(start.copy()))


def cartpole_rollout(steps: int) -> Work:
    """A rollout with random actions that goes on after the ends of episodes."""
    from torchrl.envs import GymEnv

    env = GymEnv("CartPole-v1", categorical_action_encoding=True)
    return lambda: env.rollout(steps, break_when_any_done=False)


def spec_rand() -> Work:
    """One draw from the Composite of ten leaves."""
    import torchrl.data

    return ten_leaves(torchrl.data).rand


def spec_is_in() -> Work:
    """One check of a draw."""
    import torchrl.data

    spec = ten_leaves(torchrl.data)
    values = spec.rand()
    assert spec.is_in(values)
    return lambda: spec.is_in(values)
