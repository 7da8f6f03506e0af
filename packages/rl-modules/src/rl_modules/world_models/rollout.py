"""The rollout of a recurrent state-space model over recorded sequences: priors and posteriors of every step."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.keys import Key, as_key
from rl_modules.policies.reading import read_inputs
from rl_modules.world_models.rollout_steps import AnySteps, KnownSteps, StateSpaceKeys, Steps, steps_known

__all__ = ["RSSMRollout", "RSSMRolloutV3"]


class RSSMRollout(TensorDictModuleBase):
    """Runs prior and posterior over sequences [*B, T] (time last), each step from the posterior of the one before.

    Step t reads the state and belief at its root, its action, and the embedding of the observation that followed, and
    writes what the two modules make of them under "next"; state and belief at the root of every step are written as
    well, so that imagination can start from them. The first step starts from the state and belief that the batch has
    there (zero if it has none), every step flagged by ``reset_key`` from zero: nothing passes from one episode into the
    next. A batch without the flag is one episode per row.

    With the modules of this package the loop holds what is recurrent alone; the rest (the embeddings' part of the
    posterior, all priors) is computed for whole sequences. Any other modules with keys are called step by step.

    Args:
        rssm_prior: reads "state", "belief", "action" and writes, under "next", the prior and "belief".
        rssm_posterior: reads ("next", "belief") and ("next", "encoded_latents"), writes the posterior and
            ("next", "state").
        use_scan: accepted for compatibility, without effect.
        compile_step: accepted for compatibility, without effect: compile the module, or the loss around it.
        compile_backend: likewise.
        compile_mode: likewise.
        reset_key: the flag on first steps, bool [*B, T, 1]; None: every row is one episode.
        infer_first: begin an episode from what the posterior makes of its first observation and a zero belief, as an
            acting policy does, instead of from a zero state. That observation's embedding lies at the root, under the
            posterior's key without "next", and is read at flagged steps alone.

    Raises:
        SpecError: the modules' keys do not fit each other.

    Hafner et al., 2019, Learning Latent Dynamics for Planning from Pixels, eq. 4, arXiv 1811.04551.
    """

    def __init__(
        self,
        rssm_prior: nn.Module,
        rssm_posterior: nn.Module,
        use_scan: bool = False,
        compile_step: bool = False,
        compile_backend: str = "inductor",
        compile_mode: str | None = None,
        *,
        reset_key: Key | None = "is_init",
        infer_first: bool = False,
    ) -> None:
        super().__init__()
        self.rssm_prior, self.rssm_posterior = rssm_prior, rssm_posterior
        self.reset_key = None if reset_key is None else as_key(reset_key)
        self.infer_first = infer_first
        self.action_key: Key | None = None
        self._keys = keys = StateSpaceKeys(rssm_prior, rssm_posterior)
        # State, belief and flag are read where they are, and not asked for.
        first = [keys.embedding_at_root()] if infer_first else []
        self.in_keys: list[Any] = [*keys.others, *keys.embeddings, *first]
        self.out_keys: list[Any] = [keys.state, keys.belief, *keys.written]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write states, beliefs, priors and posteriors of sequences [*B, T].

        Raises:
            SpecError: the batch has no dimensions, or the flag is not bool [*B, T, 1].
            KeyMissingError: an action or an embedding is absent.
        """
        batch = tensordict.batch_size
        if not batch:
            raise SpecError(f"{type(self).__name__} reads sequences [*B, T]; the batch has no dimensions")
        flags = self._flags(tensordict)
        found = dict(zip(self.in_keys, read_inputs(tensordict, self.in_keys, self), strict=True))
        values = {key: value.reshape(-1, batch[-1], *value.shape[len(batch) :]) for key, value in found.items()}
        if self.action_key is not None and flags is not None:
            values[self.action_key] = values[self.action_key].masked_fill(flags, 0)
        kind: Any = KnownSteps if steps_known(self.rssm_prior, self.rssm_posterior) else AnySteps
        steps: Steps = kind(self.rssm_prior, self.rssm_posterior, self._keys, values)
        state, belief = self._start(tensordict, values)
        first = self._first_states(steps, values, flags, state, belief)
        roots = self._loop(steps, batch[-1], state, belief, flags, first)
        for key, value in zip(self.out_keys, (*roots, *steps.outputs()), strict=True):
            tensordict.set(key, value.reshape(*batch, *value.shape[2:]))
        return tensordict

    def _loop(
        self, steps: Steps, count: int, state: Tensor, belief: Tensor, flags: Tensor | None, first: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """States and beliefs at the root of each step [N, T, ...]."""
        resets: list[Tensor | None] = [None] * count if flags is None else [*flags.unbind(1)]
        seen: list[Tensor | None] = [None] * count if first is None else [*first.unbind(1)]
        states, beliefs = [], []
        for t, reset in enumerate(resets):
            if reset is not None:
                belief = belief.masked_fill(reset, 0.0)
                start = seen[t]
                state = state.masked_fill(reset, 0.0) if start is None else torch.where(reset, start, state)
            states.append(state)
            beliefs.append(belief)
            state, belief = steps.step(t, state, belief)
        return torch.stack(states, 1), torch.stack(beliefs, 1)

    def _flags(self, tensordict: TensorDictBase) -> Tensor | None:
        """First steps, bool [N, T, 1]; None where there is none."""
        flags = None if self.reset_key is None else tensordict.get(self.reset_key, None)
        if flags is None:
            return None
        batch = tensordict.batch_size
        if flags.dtype is not torch.bool or flags.shape not in (batch, (*batch, 1)):
            raise SpecError(
                f"{type(self).__name__}: {self.reset_key!r} is bool {[*batch, 1]}; got {flags.dtype} "
                f"{list(flags.shape)}"
            )
        flags = flags.reshape(-1, batch[-1], 1)
        if flags.is_cpu and not torch.compiler.is_compiling() and not bool(flags.any()):
            return None
        return flags

    def _start(self, tensordict: TensorDictBase, values: dict[Key, Tensor]) -> tuple[Tensor, Tensor]:
        """State and belief [N, ...] before the first step."""
        keys, dims = self._keys, tensordict.batch_dims
        prior = getattr(self.rssm_prior, "module", None)
        like = values[keys.embeddings[0]]
        found: list[Tensor] = []
        for key, size in ((keys.state, "state_dim"), (keys.belief, "rnn_hidden_dim")):
            value = tensordict.get(key, None)
            width = getattr(prior, size, None)
            if value is not None:
                found.append(value.select(dims - 1, 0).reshape(like.shape[0], *value.shape[dims:]))
            elif width is not None:
                found.append(like.new_zeros(like.shape[0], width))
            else:
                read_inputs(tensordict, [key], self)  # its size is not known: the batch must have it
        return found[0], found[1]

    def _first_states(
        self, steps: Steps, values: dict[Key, Tensor], flags: Tensor | None, state: Tensor, belief: Tensor
    ) -> Tensor | None:
        """States [N, T, S] to begin episodes with, at flagged steps; None for zero."""
        if not self.infer_first or flags is None:
            return None
        rows = flags.squeeze(-1)
        embedding = values[self._keys.embedding_at_root()][rows]
        inferred = steps.infer(embedding, belief.new_zeros(embedding.shape[0], *belief.shape[1:]))
        return state.new_zeros(*rows.shape, *state.shape[1:]).index_put((rows,), inferred)


class RSSMRolloutV3(RSSMRollout):
    """:class:`RSSMRollout` for :class:`RSSMPriorV3` and :class:`RSSMPosteriorV3`.

    Args:
        rssm_prior: see :class:`RSSMRollout`.
        rssm_posterior: likewise.
        reset_key: likewise.
        action_key: the entry of the *previous* action, where steps are recorded so; it counts as zero at first steps.
            None: the action is the one taken at the step, which leads out of it and is never dropped.
        infer_first: see :class:`RSSMRollout`.

    Raises:
        SpecError: the modules' keys do not fit each other, or the prior does not read ``action_key``.

    Hafner et al., 2023, Mastering Diverse Domains through World Models, eq. 3, arXiv 2301.04104.
    """

    def __init__(
        self,
        rssm_prior: nn.Module,
        rssm_posterior: nn.Module,
        reset_key: Key | None = "is_init",
        action_key: Key | None = None,
        *,
        infer_first: bool = False,
    ) -> None:
        super().__init__(rssm_prior, rssm_posterior, reset_key=reset_key, infer_first=infer_first)
        if action_key is not None:
            self.action_key = as_key(action_key)
            if self.action_key not in self._keys.others:
                raise SpecError(f"the prior does not read {action_key!r}; its in_keys are {self._keys.prior_in}")
