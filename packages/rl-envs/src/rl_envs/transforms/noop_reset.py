"""``NoopResetEnv``: a random number of idle steps at the beginning of an episode."""

from __future__ import annotations

import numpy as np
import torch
from tensordict import TensorDictBase

from rl_core import Columns, EnvBase, RowProgram
from rl_core.envs.env_specs import leaf_specs
from rl_core.errors import EnvError
from rl_envs.transforms.inner_steps import InnerRows, InnerSteps, ended_in

__all__ = ["NoopResetEnv"]

_TRIALS = 10  # episodes that may end while idling, before the reset gives up


class NoopResetEnv(InnerSteps):
    """Begins episodes with steps of the action zero, so that a deterministic simulator starts in different states.

    Where the episode ends meanwhile, the environment is reset and goes on idling. For single environments: in a batch,
    put it into each of them.

    Args:
        noops: how many steps, at least 1.
        random: draw the number from ``1 .. noops`` (torch's generator) at each reset.
    """

    def __init__(self, noops: int = 30, random: bool = True) -> None:
        super().__init__()
        if noops < 1:
            raise ValueError(f"noops is the number of idle steps, at least 1; got {noops}")
        self.noops, self.random = noops, random

    def _count(self) -> int:
        return int(torch.randint(1, self.noops + 1, ())) if self.random else self.noops

    def _env(self) -> EnvBase:
        env = self.inner_env()
        if env.batch_size.numel() != 1:
            raise EnvError(
                f"NoopResetEnv idles in one environment at a time; the environment has the batch size "
                f"{tuple(env.batch_size)}. Put it into each: SerialEnv(n, lambda: TransformedEnv(env, NoopResetEnv()))"
            )
        return env

    def _failed(self, env: EnvBase) -> EnvError:
        return EnvError(
            f"{type(env.base_env).__name__} ended {_TRIALS} times in {self.noops} idle steps; give NoopResetEnv fewer"
        )

    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        env = self._env()
        idle = env.full_action_spec.zero()
        td, ends = tensordict_reset, 0
        for _ in range(self._count()):
            stepped = env.step(td.copy().update(idle))
            if bool(ended_in(stepped.get("next")).all()):
                ends += 1
                if ends >= _TRIALS:
                    raise self._failed(env)
                td = env.reset()
            else:
                td = env.step_mdp(stepped)
        return td.exclude(*env.action_keys)

    # ---------------------------------------------------------------- rows
    @property
    def supports_rows(self) -> bool:
        """True."""
        return True

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """Idle steps on columns of one step."""
        env = self._env()
        inner = InnerRows(env, before)
        idle = {key: spec.zero() for key, spec in leaf_specs(env.full_action_spec).items()}

        def reset(t: int, mask: np.ndarray | None) -> None:
            inner.take(t)
            for key in (*inner.flags, *inner.done):
                inner.own[key][0] = False
            ends = 0
            for _ in range(self._count()):
                for key, action in idle.items():
                    inner.act(key, action.numpy())
                inner.step()
                if inner.ended().all():
                    ends += 1
                    if ends >= _TRIALS:
                        raise self._failed(env)
                    inner.reset()
                inner.carry()
            for key in inner.own.carried:
                before[key][t] = inner.own[key][0]

        return RowProgram(lambda t: None, reset)
