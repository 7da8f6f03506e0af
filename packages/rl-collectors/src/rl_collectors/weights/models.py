"""Which modules an update of weights is about, by their names in a collector."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from rl_core.errors import CollectorError, KeyMissingError

__all__ = ["WeightUpdate", "model_at"]

_STEP = re.compile(r"\.?(?P<name>[A-Za-z_]\w*)|\[(?P<index>\d+)\]")


def model_at(collector: Any, model_id: str) -> nn.Module:
    """The module of a collector that a model id names: "policy", or a path such as "env.transform[0]".

    Raises:
        KeyMissingError: there is none.
    """
    found, place = collector, 0
    while place < len(model_id):
        step = _STEP.match(model_id, place)
        try:
            if step is None:
                raise AttributeError(f"{model_id[place:]!r} is no attribute")
            found = getattr(found, step["name"]) if step["name"] else found[int(step["index"])]
        except (AttributeError, IndexError, TypeError) as error:
            raise KeyMissingError(
                f"there is no model {model_id!r} in {type(collector).__name__}: {error}. Model ids are 'policy' and "
                "paths such as 'env.transform[0]'"
            ) from error
        place = step.end()
    if not isinstance(found, nn.Module):
        raise KeyMissingError(
            f"the model {model_id!r} is a {type(found).__name__}; only modules (torch.nn.Module) have weights"
        )
    return found


@dataclass(frozen=True)
class WeightUpdate:
    """What ``update_policy_weights_`` was asked for.

    Attributes:
        weights: model id -> module, state dict, TensorDict of parameters, or None for the policy that was given.
        worker_ids: the workers to be updated; None for all.
    """

    weights: dict[str, Any]
    worker_ids: list[int] | None

    @classmethod
    def of(
        cls,
        policy_or_weights: Any,
        *,
        weights: Any = None,
        policy: Any = None,
        worker_ids: int | list[int] | None = None,
        model_id: str | None = None,
        weights_dict: Mapping[str, Any] | None = None,
    ) -> WeightUpdate:
        """One update from the spellings of its arguments.

        Raises:
            CollectorError: the weights are given twice.
        """
        given = [value for value in (policy_or_weights, weights, policy) if value is not None]
        if len(given) + (weights_dict is not None) > 1:
            raise CollectorError(
                "update_policy_weights_ was given weights in two ways; pass one of policy_or_weights, weights, policy, "
                "weights_dict"
            )
        if weights_dict is not None:
            chosen = dict(weights_dict)
        else:
            chosen = {"policy" if model_id is None else model_id: given[0] if given else None}
        return cls(chosen, [worker_ids] if isinstance(worker_ids, int) else worker_ids)
