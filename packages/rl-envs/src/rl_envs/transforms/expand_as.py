"""``ExpandAs``: one entry in the shape of another."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Composite, TensorSpec, Transform
from rl_core.errors import EnvError, KeyMissingError
from rl_core.keys import Key

__all__ = ["ExpandAs"]


class ExpandAs(Transform):
    """Repeats an entry over the dimensions that another one has beyond it, such as a team's reward over its agents.

    Dimensions of size 1 are added at the end of the entry until it has as many as the other, then it is expanded.

    Args:
        in_key: the entry.
        ref_key: the entry whose shape it takes.
        out_key: where to write it; default: ``in_key``.

    Example:
        >>> from tensordict import TensorDict
        >>> data = TensorDict(team=torch.zeros(3, 1), agents=torch.zeros(3, 5, 2), batch_size=[3])
        >>> ExpandAs("team", "agents")(data)["team"].shape
        torch.Size([3, 5, 2])
    """

    def __init__(self, in_key: Key, ref_key: Key, out_key: Key | None = None) -> None:
        super().__init__([in_key], [in_key if out_key is None else out_key])
        self.ref_key = ref_key

    def _call(self, tensordict: TensorDictBase) -> TensorDictBase:
        value, like = (tensordict.get(key, None) for key in (self.in_keys[0], self.ref_key))
        if value is None or like is None:
            if self._missing_ok:
                return tensordict
            raise KeyMissingError(self._missing(self.in_keys[0] if value is None else self.ref_key, tensordict))
        return tensordict.set(self.out_keys[0], self._expanded(value, like.shape))

    def _expanded(self, value: Tensor, shape: torch.Size) -> Tensor:
        try:
            return value.reshape(*value.shape, *(1,) * (len(shape) - value.ndim)).expand(shape)
        except RuntimeError as error:
            raise EnvError(self._does_not_fit(value.shape, shape)) from error

    def _does_not_fit(self, own: torch.Size, shape: torch.Size) -> str:
        return (
            f"ExpandAs: {self.in_keys[0]!r} of shape {tuple(own)} does not expand to {tuple(shape)}, the shape of "
            f"{self.ref_key!r}; its dimensions must equal the first ones there, or be 1"
        )

    # ---------------------------------------------------------------- specs
    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The shape of the other entry."""
        return self._expand_spec(observation_spec)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """The same for a reward."""
        return self._expand_spec(reward_spec)

    def _expand_spec(self, spec: Composite) -> Composite:
        leaf: TensorSpec | None = spec.get(self.in_keys[0], None)
        if leaf is None:
            return spec
        shape = self._shape_of_ref(spec)
        if shape is None:
            raise EnvError(
                f"ExpandAs needs {self.ref_key!r} for its shape; no observation, reward or end flag of the environment "
                "has that name"
            )
        if any(own not in (1, there) for own, there in zip(leaf.shape, shape, strict=False)) or leaf.ndim > len(shape):
            raise EnvError(self._does_not_fit(leaf.shape, shape))
        spec.set(self.out_keys[0], leaf.reshape(*leaf.shape, *(1,) * (len(shape) - leaf.ndim)).expand(*shape))
        return spec

    def _shape_of_ref(self, spec: Composite) -> torch.Size | None:
        parent = self.parent
        known = [spec]
        if parent is not None:
            known += [parent.observation_spec, parent.full_reward_spec, parent.full_done_spec]
        for specs in known:
            leaf = specs.get(self.ref_key, None)
            if leaf is not None:
                return torch.Size(leaf.shape)
        return None
