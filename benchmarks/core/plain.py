"""The limit of each task, by hand: the bare ``_step``, the pendulum's formula, gymnasium's loop, torch's draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from _imports import in_fork, in_new_interpreter
from _third_party import next_of, root
from tensordict import TensorDict
from torch import Tensor

Work = Callable[[], object]


def build(task: str, **arguments: Any) -> Work:
    """One repetition is what the task's function returns."""
    work: Work = globals()[task](**arguments)
    return work


def import_package() -> Work:
    """Python is started, and nothing is imported."""
    return in_new_interpreter(None)


def import_envs() -> Work:
    """A fork of this process, and nothing is imported."""
    return in_fork(None)


def third_party_step() -> Work:
    """The bare ``_step`` of the third party's environment."""
    return lambda: next_of(root())


class Pendulum:
    """The formula of Pendulum-v1 with a set of constants for every pendulum."""

    def __init__(self, *batch: int) -> None:
        self.max_speed, self.max_torque, self.dt, self.g, self.m, self.length = (
            torch.full(batch, number) for number in (8.0, 2.0, 0.05, 10.0, 1.0, 1.0)
        )

    def move(self, th: Tensor, thdot: Tensor, action: Tensor) -> dict[str, Tensor]:
        """State, observation, reward and end flags after one step, in as few operations as it takes."""
        u, sin = action.squeeze(-1).clamp(-self.max_torque, self.max_torque), th.sin()
        upright = torch.atan2(sin, th.cos())
        cost = torch.addcmul(torch.addcmul(upright * upright, thdot, thdot, value=0.1), u, u, value=0.001)
        pull = torch.addcdiv(self.g * sin, u, self.m * self.length, value=2.0) * self.dt
        thdot = torch.addcdiv(thdot, pull, self.length, value=1.5).clamp(-self.max_speed, self.max_speed)
        th = torch.addcmul(th, thdot, self.dt)
        ended = torch.zeros(*th.shape, 1, dtype=torch.bool)
        return {
            "th": th,
            "thdot": thdot,
            "observation": torch.stack([th.cos(), th.sin(), thdot], -1),
            "reward": -cost.unsqueeze(-1),
            "done": ended,
            "terminated": ended.clone(),
        }


def pendulum_step(batch: int) -> Work:
    """The formula and one TensorDict, for a batch of pendulums."""
    pendulum = Pendulum(batch)
    th, thdot, action = torch.randn(batch), torch.randn(batch), torch.randn(batch, 1)
    return lambda: TensorDict(pendulum.move(th, thdot, action), batch_size=[batch])


def pendulum_rollout(batch: int, steps: int) -> Work:
    """The formula in a loop, and one ``torch.stack`` for each entry."""
    shape = (batch,) if batch else ()
    pendulum = Pendulum(*shape)

    def run() -> TensorDict:
        moved = {"th": torch.rand(shape) * 2 * math.pi - math.pi, "thdot": torch.rand(shape) * 2 - 1}
        rows = []
        for _ in range(steps):
            action = torch.rand(*shape, 1) * 4 - 2
            moved = pendulum.move(moved["th"], moved["thdot"], action)
            moved["action"] = action
            rows.append(moved)
        columns = {key: torch.stack([row[key] for row in rows], len(shape)) for key in rows[0]}
        return TensorDict(columns, batch_size=[*shape, steps])

    return run


def cartpole_rollout(steps: int) -> Work:
    """A loop over gymnasium that writes into preallocated tensors."""
    import gymnasium

    env = gymnasium.make("CartPole-v1")

    def run() -> TensorDict:
        observation, reward = torch.empty(steps + 1, 4), torch.empty(steps, 1)
        action = torch.randint(2, (steps,))
        terminated, truncated = torch.empty(2, steps, 1, dtype=torch.bool)
        observations, rewards, ends, cuts = (t.numpy() for t in (observation, reward, terminated, truncated))
        observations[0] = env.reset()[0]
        for t, choice in enumerate(action.tolist()):
            observations[t + 1], rewards[t], ends[t], cuts[t], _ = env.step(choice)
            if ends[t, 0] or cuts[t, 0]:
                observations[t + 1] = env.reset()[0]
        columns = {"action": action, "reward": reward, "terminated": terminated, "truncated": truncated}
        columns |= {"observation": observation[:-1], "next_observation": observation[1:]}
        return TensorDict(columns, batch_size=[steps])

    return run


def spec_rand() -> Work:
    """The ten draws, and a TensorDict for each level."""

    def draw() -> TensorDict:
        agents = TensorDict(
            {
                "observation": torch.randn(4, 5),
                "action": torch.randint(5, (4,)),
                "torque": torch.rand(4, 2) * 4 - 2,
                "alive": torch.randint(2, (4,), dtype=torch.bool),
            },
            batch_size=[],
        )
        return TensorDict(
            {
                "position": torch.rand(3) * 2 - 1,
                "velocity": torch.randn(6),
                "pixels": torch.randint(256, (3, 8, 8), dtype=torch.uint8),
                "action": torch.randint(4, (1,)) == torch.arange(4),
                "done": torch.randint(2, (1,), dtype=torch.bool),
                "terminated": torch.randint(2, (1,), dtype=torch.bool),
                "agents": agents,
            },
            batch_size=[],
        )

    return draw


def spec_is_in() -> Work:
    """The comparisons that the ten leaves need, in torch."""
    data = spec_rand()()
    assert isinstance(data, TensorDict)

    def has(value: Tensor, dtype: torch.dtype, *shape: int) -> bool:
        return value.dtype == dtype and value.shape == shape

    def check() -> bool:
        position, velocity, pixels, action = (data[name] for name in ("position", "velocity", "pixels", "action"))
        done, terminated, agents = data["done"], data["terminated"], data["agents"]
        observation, choice, torque, alive = (agents[name] for name in ("observation", "action", "torque", "alive"))
        return bool(
            has(position, torch.float32, 3)
            and (position.abs() <= 1).all()
            and has(velocity, torch.float32, 6)
            and has(pixels, torch.uint8, 3, 8, 8)
            and has(action, torch.bool, 4)
            and action.sum() == 1
            and has(done, torch.bool, 1)
            and has(terminated, torch.bool, 1)
            and has(observation, torch.float32, 4, 5)
            and has(choice, torch.int64, 4)
            and ((choice >= 0) & (choice < 5)).all()
            and has(torque, torch.float32, 4, 2)
            and (torque.abs() <= 2).all()
            and has(alive, torch.bool, 4)
        )

    assert check()
    return check
