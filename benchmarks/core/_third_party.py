"""An environment as a third party writes it: ``_step`` builds one TensorDict, whatever library its base comes from."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase


def next_of(data: TensorDictBase) -> TensorDict:
    """One TensorDict with an observation, a reward and an end flag: the bare work of ``_step``."""
    observation = data.get("observation") + data.get("action")
    return TensorDict(
        {"observation": observation, "reward": observation[..., :1], "done": torch.zeros(1, dtype=torch.bool)},
        batch_size=data.batch_size,
    )


def root() -> TensorDict:
    """What a step is given."""
    return TensorDict({"observation": torch.zeros(3), "action": torch.ones(3)}, batch_size=[])


def environment(base: Any, composite: Any, unbounded: Any) -> Any:
    """The environment over a library's ``EnvBase`` and specs."""

    class Adding(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.observation_spec = composite(observation=unbounded(shape=(3,)))
            self.action_spec = unbounded(shape=(3,))
            self.reward_spec = unbounded(shape=(1,))

        def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
            return TensorDict({"observation": torch.zeros(3)}, batch_size=[])

        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            return next_of(tensordict)

        def _set_seed(self, seed: int | None) -> None:
            torch.manual_seed(seed or 0)

    return Adding()
