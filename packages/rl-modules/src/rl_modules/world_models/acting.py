"""What a policy on latent states needs to act in a real environment: the state seen, and the belief carried on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from rl_core import CarriedState, StateCarrier, Unbounded
from rl_core.errors import SpecError
from rl_core.keys import Key, as_key, as_keys, join
from rl_modules.policies.base import PolicyModule
from rl_modules.world_models.categorical import RSSMPosteriorV3, RSSMPriorV3
from rl_modules.world_models.gaussian import RSSMPrior

__all__ = ["RSSMBeliefCarrier", "RSSMStateEstimatorV3"]


class RSSMBeliefCarrier(StateCarrier, PolicyModule):
    """Writes the belief with which an acting policy looks at the next observation.

    The last part of such a policy: posterior of (belief, embedding), actor on the state, then this. At resets the
    environment gives the belief 0; collectors and rollouts see to it. The policy is then::

        SafeSequential(
            SafeModule(encoder, ["pixels"], ["encoded_latents"]),
            SafeModule(posterior, ["belief", "encoded_latents"], ["_", "state"]),
            actor,
            RSSMBeliefCarrier(prior),
        )

    Args:
        prior: an ``RSSMPrior`` or ``RSSMPriorV3``.
        in_keys: of state, belief and action.
        out_key: of the next belief, under "next"; that of the belief unless given.

    Raises:
        SpecError: the prior is of another kind, or there are not three in_keys.
    """

    def __init__(
        self,
        prior: RSSMPrior | RSSMPriorV3,
        in_keys: Sequence[Key] = ("state", "belief", "action"),
        out_key: Key | None = None,
    ) -> None:
        super().__init__()
        keys = as_keys(list(in_keys))
        if not isinstance(prior, RSSMPrior | RSSMPriorV3) or len(keys) != 3:
            raise SpecError(
                f"{type(self).__name__} takes an RSSMPrior or RSSMPriorV3, and keys of state, belief and action; got "
                f"{type(prior).__name__} and {keys}"
            )
        self.prior = prior
        self.belief_key = keys[1]
        self._set_keys(keys, [join("next", keys[1]) if out_key is None else as_key(out_key)])

    def carried_state(self) -> CarriedState:
        """The belief [H], zero at the start."""
        return CarriedState({self.belief_key: Unbounded(shape=(self.prior.rnn_hidden_dim,))})

    def _compute(self, *inputs: Any) -> tuple[Any, ...]:
        state, belief, action = inputs
        return (self.prior.next_belief(state, belief, action),)


class RSSMStateEstimatorV3(PolicyModule):
    """One step of filtering: state and belief after the previous action and the present observation.

    Args:
        prior: gives the belief.
        posterior: gives the state.
        in_keys: of the previous state, belief and action, the present embedding, and the flag on first steps (bool
            [*B, 1]), at which the first three count as zero.
        out_keys: of the present state and belief.

    Raises:
        SpecError: there are not five in_keys and two out_keys.

    Hafner et al., 2023, Mastering Diverse Domains through World Models, eq. 3, arXiv 2301.04104.
    """

    def __init__(
        self,
        prior: RSSMPriorV3,
        posterior: RSSMPosteriorV3,
        *,
        in_keys: Sequence[Key] | None = None,
        out_keys: Sequence[Key] | None = None,
    ) -> None:
        super().__init__()
        reads = as_keys(list(in_keys or ("state", "belief", "previous_action", "encoded_latents", "is_init")))
        writes = as_keys(list(out_keys or ("state", "belief")))
        if len(reads) != 5 or len(writes) != 2:
            raise SpecError(f"{type(self).__name__} has five in_keys and two out_keys; got {reads} and {writes}")
        self.prior: nn.Module = prior
        self.posterior: nn.Module = posterior
        self._set_keys(reads, writes)

    def _compute(self, *inputs: Any) -> tuple[Any, ...]:
        state, belief, action, embedding, is_init = inputs
        start = is_init.reshape(*state.shape[:-1], 1)
        before: list[Tensor] = [value.masked_fill(start, 0) for value in (state, belief, action)]
        belief = self.prior.next_belief(*before)  # type: ignore[operator]
        return self.posterior(belief, embedding)[-1], belief
