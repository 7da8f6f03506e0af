"""Legal actions: an environment may write ``action_mask`` beside an action, bool, True where a choice is legal.

The mask is data: it changes from step to step, while the action's spec stays. Where it counts (random actions, checks)
the spec is taken with the mask of the moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tensordict import TensorDictBase

from rl_core.envs.env_specs import EnvSpecs, leaf_specs
from rl_core.keys import Key, join, parent_path
from rl_core.specs import TensorSpec
from rl_core.specs.multi_choice import MultiChoice
from rl_core.specs.single_choice import SingleChoice

if TYPE_CHECKING:
    import torch

__all__ = ["ActionLeaf", "action_leaves", "legal_action_specs"]

ActionLeaf = tuple[Key, TensorSpec, "Key | None"]


def action_leaves(env: EnvSpecs) -> list[ActionLeaf]:
    """(key, spec, key of its mask or None) of every action."""
    leaves: list[ActionLeaf] = []
    for key, spec in leaf_specs(env.full_action_spec).items():
        mask = join(parent_path(key), "action_mask")
        masked = isinstance(spec, (SingleChoice, MultiChoice)) and mask in env.observation_keys
        leaves.append((key, spec, mask if masked else None))
    return leaves


def legal_action_specs(
    leaves: list[ActionLeaf], data: TensorDictBase, extra: torch.Size | tuple[int, ...] = ()
) -> Iterator[tuple[Key, TensorSpec]]:
    """The spec of every action, of what the data's masks allow.

    Args:
        leaves: from :func:`action_leaves`.
        data: holds the masks; an action whose mask is missing keeps its spec.
        extra: leading dimensions of the data that the specs do not have.

    Yields:
        (key, spec).
    """
    for key, spec, mask_key in leaves:
        mask = None if mask_key is None else data.get(mask_key, None)
        if mask is None:
            yield key, spec
        else:
            yield key, (spec.expand(*extra, *spec.shape) if extra else spec).replace(mask=mask)
