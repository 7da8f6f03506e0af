"""``ActionMask``: which choices are legal, as the environment said at the last step."""

from __future__ import annotations

from tensordict import TensorDictBase

from rl_core import Categorical, Composite, MultiCategorical, MultiOneHot, OneHot, Transform
from rl_core.errors import EnvError, KeyMissingError
from rl_core.keys import Key, as_key, as_path, sibling
from rl_envs.transforms.end_groups import specs_seen

__all__ = ["ActionMask"]


class ActionMask(Transform):
    """Gives the action's spec the mask that the environment wrote, after every reset and step.

    Random actions, and ``env.action_spec.rand()`` of the environment that holds this transform, are then legal. Masks
    are found beside the action under the name "action_mask" even without this transform; one of another name or place
    is copied there.

    Args:
        action_key: the action, a choice (Categorical, OneHot) or several (MultiCategorical, MultiOneHot).
        mask_key: the mask, bool, True where a choice is legal.
    """

    def __init__(self, action_key: Key = "action", mask_key: Key = "action_mask") -> None:
        self._action, self._mask = as_key(as_path(action_key)), as_key(as_path(mask_key))
        super().__init__()
        self.in_keys, self.out_keys = [self._action, self._mask], []
        self._copy = sibling(self._action, "action_mask")
        self._specs: tuple[int, Composite] | None = None

    def set_container(self, owner: object) -> None:
        """Take an owner, whose action spec gets the masks."""
        super().set_container(owner)
        self._specs = None

    def _action_spec(self) -> Composite | None:
        container, seen = self.container, specs_seen(self)
        if container is None or seen is None:
            return None
        if self._specs is None or self._specs[0] != seen:
            self._specs = (seen, container.full_action_spec)
        return self._specs[1]

    def _call(self, tensordict: TensorDictBase) -> TensorDictBase:
        mask = tensordict.get(self._mask, None)
        if mask is None:
            raise KeyMissingError(
                f"ActionMask needs {self._mask!r}; the data has {list(tensordict.keys(True, True))}. Name the mask "
                "with mask_key=..."
            )
        specs = self._action_spec()
        leaf = None if specs is None else specs.get(self._action, None)
        if isinstance(leaf, _CHOICES) and tensordict.batch_size == specs.shape:  # type: ignore[union-attr]
            leaf.update_mask(mask)
        if self._mask != self._copy:
            tensordict.set(self._copy, mask)
        return tensordict

    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict_reset)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stored data stay as they are: each step has its own mask."""
        return tensordict

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The mask beside the action, where it has another name."""
        if self._mask not in observation_spec:
            raise KeyMissingError(
                f"ActionMask needs the observation {self._mask!r}; the environment has "
                f"{list(observation_spec.keys(True, True))}. Name the mask with mask_key=..."
            )
        if self._mask != self._copy:
            observation_spec.set(self._copy, observation_spec[self._mask].clone())
        return observation_spec

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """The same spec; its mask follows."""
        leaf = action_spec.get(self._action, None)
        if not isinstance(leaf, _CHOICES):
            raise EnvError(
                f"ActionMask needs {self._action!r} to be a choice (Categorical, OneHot, MultiCategorical, "
                f"MultiOneHot), found {leaf!r}. Name the action with action_key=..."
            )
        return action_spec

    @property
    def supports_rows(self) -> bool:
        """False: the spec follows every step."""
        return False


_CHOICES = (Categorical, OneHot, MultiCategorical, MultiOneHot)
