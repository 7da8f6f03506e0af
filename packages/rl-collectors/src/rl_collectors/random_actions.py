"""Random legal actions as a policy, for where a policy is needed and not the absence of one."""

from __future__ import annotations

from collections.abc import Callable

from tensordict import TensorDictBase
from torch import Tensor

from rl_core.envs.action_masks import action_leaves
from rl_core.envs.base import EnvBase
from rl_core.keys import Key
from rl_core.specs import NonTensor
from rl_core.transforms.transformed_env import supports_rows

__all__ = ["has_masks", "random_policy"]


class _RandomActions:
    """Random legal actions, drawn step by step."""

    def __init__(self, env: EnvBase) -> None:
        self.env = env

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self.env.rand_action(tensordict)


class _RandomActionRows(_RandomActions):
    """The same for environments on columns: actions are drawn for many steps at once."""

    ahead = 64

    def __init__(self, env: EnvBase) -> None:
        super().__init__(env)
        self.in_keys: list[Key] = []
        self.out_keys = list(env.action_keys)
        self._rows: list[tuple[Tensor, ...]] = []

    def forward_tensors(self) -> tuple[Tensor, ...]:
        if not self._rows:
            drawn = [self.env.full_action_spec[key].rand((self.ahead,)) for key in self.out_keys]
            self._rows = list(zip(*(values.unbind(0) for values in drawn), strict=True))[::-1]
        return self._rows.pop()


def has_masks(env: EnvBase) -> bool:
    """Whether the legal actions of an environment change from step to step."""
    return any(mask is not None for _, _, mask in action_leaves(env))


def random_policy(env: EnvBase) -> Callable[[TensorDictBase], TensorDictBase]:
    """Random legal actions as a policy."""
    specs = [env.full_action_spec[key] for key in env.action_keys]
    simple = supports_rows(env) and not has_masks(env) and not any(isinstance(spec, NonTensor) for spec in specs)
    return _RandomActionRows(env) if simple else _RandomActions(env)
