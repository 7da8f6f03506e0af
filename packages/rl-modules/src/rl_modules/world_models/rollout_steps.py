"""The steps of a recurrent state-space model on tensors: with the modules of this package, or with any modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_core.errors import KeyMissingError, SpecError
from rl_core.keys import Key, as_key, as_path, join
from rl_core.policy import row_policy
from rl_modules.world_models.categorical import RSSMPosteriorV3, RSSMPriorV3
from rl_modules.world_models.gaussian import RSSMPosterior, RSSMPrior

__all__ = ["AnySteps", "KnownSteps", "StateSpaceKeys", "Steps", "steps_known"]


class StateSpaceKeys:
    """Which entries of prior and posterior are the state, the belief, and what they read beside them.

    Args:
        prior: a module with keys.
        posterior: likewise.

    Raises:
        SpecError: the two do not make a recurrent state-space model.
    """

    def __init__(self, prior: Any, posterior: Any) -> None:
        self.prior_in = [as_key(key) for key in prior.in_keys]
        self.posterior_in = [as_key(key) for key in posterior.in_keys]
        self.prior_written = [as_key(key) for key in prior.out_keys]
        self.posterior_written = [as_key(key) for key in posterior.out_keys]
        state = [key for key in self.prior_in if join("next", key) in self.posterior_written]
        belief = [key for key in self.prior_in if join("next", key) in self.prior_written and key not in state]
        self.embeddings = [key for key in self.posterior_in if key not in self.prior_written]
        if len(belief) != 1 or len(state) != 1 or not self.embeddings:
            raise SpecError(
                "a prior reads state, belief and action and writes the next belief; a posterior reads that and an "
                f"observation and writes the next state. The prior has {self.prior_in} -> {self.prior_written}, the "
                f'posterior {self.posterior_in} -> {self.posterior_written}. Give them e.g. ["state", "belief", '
                '"action"] -> ["_", "_", ("next", "belief")] and [("next", "belief"), ("next", "encoded_latents")] -> '
                '["_", ("next", "state")]'
            )
        self.state, self.belief = state[0], belief[0]
        self.next_state, self.next_belief = join("next", self.state), join("next", self.belief)
        self.others = [key for key in self.prior_in if key not in (self.state, self.belief)]
        kept = dict.fromkeys([*self.prior_written, *self.posterior_written])
        kept.pop("_", None)
        self.written: list[Key] = list(kept)
        """What a step writes."""

    def embedding_at_root(self) -> Key:
        """Where the embedding of a step's own observation lies.

        Raises:
            SpecError: the posterior reads several entries, or one that is not under "next".
        """
        path = as_path(self.embeddings[0])
        if len(self.embeddings) != 1 or path[0] != "next":
            raise SpecError(f"infer_first needs one embedding under 'next'; the posterior reads {self.embeddings}")
        return as_key(path[1:])


class Steps(Protocol):
    """One step after the other, then everything that was written."""

    def step(self, t: int, state: Tensor, belief: Tensor) -> tuple[Tensor, Tensor]:
        """State and belief [N, ...] after step t."""
        ...

    def infer(self, embedding: Tensor, belief: Tensor) -> Tensor:
        """The states that the posterior sees in embeddings [M, E] with beliefs [M, H]."""
        ...

    def outputs(self) -> list[Tensor]:
        """What all steps wrote [N, T, ...], in the order of ``StateSpaceKeys.written``."""
        ...


def steps_known(prior: Any, posterior: Any) -> bool:
    """Whether :class:`KnownSteps` may take the place of calling the two modules."""
    inner = getattr(prior, "module", None), getattr(posterior, "module", None)
    pairs = ((RSSMPrior, RSSMPosterior), (RSSMPriorV3, RSSMPosteriorV3))
    if not any(type(inner[0]) is first and type(inner[1]) is second for first, second in pairs):
        return False
    plain = row_policy(prior) is not None and row_policy(posterior) is not None
    hooks = [module._forward_hooks or module._forward_pre_hooks for module in inner if module is not None]
    return plain and not any(hooks) and len(prior.in_keys) == 3 and len(posterior.in_keys) == 2


class KnownSteps:
    """The steps of this package's modules: beliefs and posteriors one by one, everything else for whole sequences.

    Args:
        prior: holds an ``RSSMPrior`` or ``RSSMPriorV3``, on state, belief and action.
        posterior: holds an ``RSSMPosterior`` or ``RSSMPosteriorV3``, on belief and embedding.
        keys: of both.
        values: what they read, [N, T, ...].
    """

    def __init__(self, prior: Any, posterior: Any, keys: StateSpaceKeys, values: Mapping[Key, Tensor]) -> None:
        self.prior, self.posterior, self.keys = prior.module, posterior.module, keys
        embedding = values[keys.embeddings[0]]
        self.embedded = self.posterior.embed(embedding.new_zeros(self.prior.rnn_hidden_dim), embedding).unbind(1)
        self.actions = values[keys.others[0]].unbind(1)
        self.records: list[tuple[Tensor, ...]] = []

    def step(self, t: int, state: Tensor, belief: Tensor) -> tuple[Tensor, Tensor]:
        belief = self.prior.next_belief(state, belief, self.actions[t])
        inferred = self.posterior.infer(belief, self.embedded[t])
        self.records.append((belief, *inferred))
        return inferred[-1], belief

    def infer(self, embedding: Tensor, belief: Tensor) -> Tensor:
        state: Tensor = self.posterior(belief, embedding)[-1]
        return state

    def outputs(self) -> list[Tensor]:
        belief, *inferred = (torch.stack(parts, 1) for parts in zip(*self.records, strict=True))
        keys = self.keys
        # A sample of the prior is drawn only where someone wants it.
        wanted = keys.prior_written[-2] != "_"
        predicted = self.prior.predict(belief) if wanted else (*self.prior.parameters_of(belief), None)
        found = dict(zip(keys.prior_written, (*predicted, belief), strict=True))
        found |= zip(keys.posterior_written, inferred, strict=True)
        return [found[key] for key in keys.written]


class AnySteps:
    """The steps of any modules with keys.

    Args:
        prior: a module with keys.
        posterior: likewise.
        keys: of both.
        values: what they read, [N, T, ...].
    """

    def __init__(self, prior: Any, posterior: Any, keys: StateSpaceKeys, values: Mapping[Key, Tensor]) -> None:
        self.prior, self.posterior, self.keys = _bound(prior), _bound(posterior), keys
        self.values = {key: values[key].unbind(1) for key in (*keys.others, *keys.embeddings)}
        self.records: list[list[Tensor]] = []

    def step(self, t: int, state: Tensor, belief: Tensor) -> tuple[Tensor, Tensor]:
        keys = self.keys
        seen: dict[Key, Tensor] = {key: rows[t] for key, rows in self.values.items()}
        seen |= {keys.state: state, keys.belief: belief}
        seen |= zip(keys.prior_written, self.prior(*[seen[key] for key in keys.prior_in]), strict=True)
        seen |= zip(keys.posterior_written, self.posterior(*[seen[key] for key in keys.posterior_in]), strict=True)
        self.records.append([seen[key] for key in keys.written])
        return seen[keys.next_state], seen[keys.next_belief]

    def infer(self, embedding: Tensor, belief: Tensor) -> Tensor:
        keys = self.keys
        inputs = {keys.next_belief: belief, keys.embeddings[0]: embedding}
        absent = [key for key in keys.posterior_in if key not in inputs]
        if absent:
            raise KeyMissingError(f"infer_first needs a posterior of belief and embedding alone; it reads {absent} too")
        written = self.posterior(*[inputs[key] for key in keys.posterior_in])
        return dict(zip(keys.posterior_written, written, strict=True))[keys.next_state]

    def outputs(self) -> list[Tensor]:
        return [torch.stack(parts, 1) for parts in zip(*self.records, strict=True)]


def _bound(module: Any) -> Callable[..., Sequence[Tensor]]:
    """A module with keys as a function of tensors."""
    plan = row_policy(module)
    if plan is not None:
        return plan.call
    if not isinstance(module, TensorDictModuleBase):
        raise SpecError(f"a prior or posterior is a module with in_keys and out_keys; got {type(module).__name__}")

    def call(*inputs: Tensor) -> Sequence[Tensor]:
        data = module(TensorDict(dict(zip(module.in_keys, inputs, strict=True)), batch_size=inputs[0].shape[:1]))
        return [inputs[0] if key == "_" else data.get(key) for key in module.out_keys]

    return call
