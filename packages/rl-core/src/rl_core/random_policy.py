"""Uniformly random actions, as a policy."""

from __future__ import annotations

from tensordict import TensorDictBase
from torch import Tensor

from rl_core.errors import PolicyError
from rl_core.keys import Key, as_key
from rl_core.specs import Composite, TensorSpec

__all__ = ["RandomPolicy"]


class RandomPolicy:
    """Writes a random member of the action spec, whatever the observation.

    Args:
        action_spec: the environment's action spec, whose shape includes the environment's batch dims; a leaf, or a
            Composite whose keys are then the action keys.
        action_key: where a leaf's action is written.

    Raises:
        PolicyError: when called, if the batch size of the data is not that of the spec.

    Example:
        >>> from rl_core.testing import CountingEnv
        >>> env = CountingEnv(batch_size=[2])
        >>> RandomPolicy(env.action_spec)(env.reset())["action"].shape
        torch.Size([2, 1])
    """

    in_keys: list[Key]
    out_keys: list[Key]

    def __init__(self, action_spec: TensorSpec, action_key: Key = "action") -> None:
        self.action_spec = action_spec
        self.in_keys = []
        self.out_keys = (
            [as_key(key) for key in action_spec.keys(True, True)]
            if isinstance(action_spec, Composite)
            else [as_key(action_key)]
        )

    def forward_tensors(self) -> tuple[Tensor, ...]:
        """One action for each of ``out_keys``."""
        action = self.action_spec.rand()
        return tuple(action.get(key) for key in self.out_keys) if isinstance(action, TensorDictBase) else (action,)

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the actions."""
        batch = tensordict.batch_size
        for key, action in zip(self.out_keys, self.forward_tensors(), strict=True):
            if action.shape[: len(batch)] != batch:
                raise PolicyError(
                    f"RandomPolicy drew {key!r} of shape {list(action.shape)} for data of batch size {list(batch)}. "
                    f"Use the environment's own action_spec, or expand the spec: spec.expand(*batch, *spec.shape)."
                )
            tensordict.set(key, action)
        return tensordict

    def __repr__(self) -> str:
        return f"RandomPolicy({self.action_spec!r})"
