"""Several actions per state: draws of a policy with their log-probabilities, and the values that critics give them."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_core.keys import Key, as_key, join
from rl_core.losses.keys import missing_key
from rl_objectives.losses.off_policy import OffPolicyLoss

__all__ = ["draw_actions", "entropy_per_row", "values_of_actions"]


def draw_actions(distribution: Any, count: int) -> tuple[Tensor, Tensor]:
    """Draws of a policy, reparametrised where the distribution allows it.

    Args:
        distribution: over ``[*B]`` states.
        count: draws per state, n.

    Returns:
        actions ``[n, *B, ...]`` and log-probabilities ``[n, *B]``.
    """
    joint = getattr(distribution, "rsample_and_log_prob", None)
    if joint is not None:
        # Squashed distributions lose digits when they invert a saturated sample; those that offer both at once do not.
        actions, log_prob = joint((count,))
        return actions, log_prob
    actions = distribution.rsample((count,)) if distribution.has_rsample else distribution.sample((count,))
    return actions, distribution.log_prob(actions)


def entropy_per_row(distribution: Any, samples: int = 1) -> Tensor:
    """The entropy ``[*B]``: in closed form, else -log pi of fresh draws, averaged."""
    try:
        entropy: Tensor = distribution.entropy()
    except NotImplementedError:
        entropy = -draw_actions(distribution, samples)[1].mean(0)
    return entropy


def values_of_actions(
    loss: OffPolicyLoss, batch: TensorDictBase, actions: Tensor, under: Key | None = None, *, target: bool = False
) -> Tensor:
    """The values that all critics give to several actions of each state, by one call.

    Args:
        loss: whose critics are asked.
        batch: ``[*B]``.
        actions: ``[n, *B, ...]``.
        under: where the observations lie: at the root or under "next".
        target: ask the target critics, if there are any.

    Returns:
        ``[N, n, *B, ...]`` of N critics.
    """
    critics, action = loss.network(loss.critic_name, target=target), loss.path("action")
    count, dims = actions.shape[0], batch.ndim
    loss.refuse_sequences(critics, "it asks for the values of several actions of each row")
    keys = [as_key(key) for key in critics.in_keys if as_key(key) != action]  # type: ignore[union-attr]
    names = keys if under is None else [join(under, key) for key in keys]
    # Rows of all actions in one dimension: a network that takes [B, F] only is served as well.
    wide = TensorDict({}, batch_size=[count * batch.batch_size.numel()])
    for name in names:
        value = batch.get(name, None)
        if value is None:
            cure = f"It is an in_key of {loss.critic_name}: rename there, or let the environment write it."
            raise missing_key(type(loss).__name__, name, batch, cure)
        wide.set(name, value.expand(count, *value.shape).flatten(0, dims))
    values = loss.critic_values(wide, actions.flatten(0, dims), under, target=target)
    return values.unflatten(1, (count, *batch.batch_size))
