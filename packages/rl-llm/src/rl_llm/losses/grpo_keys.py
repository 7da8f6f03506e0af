"""What losses over answers read from a batch, and how GRPO corrects for the engine that sampled it."""

from __future__ import annotations

from dataclasses import dataclass, field

from rl_core.errors import SpecError
from rl_core.keys import Key
from rl_core.losses.keys import entry
from rl_core.losses.module import LossKeys
from rl_llm.functional.importance import IMPORTANCE_LEVELS, IMPORTANCE_MODES

__all__ = ["AnswerKeys", "GRPOKeys", "ImportanceCorrection"]

_POLICY = "The generating policy writes it."
_ADVANTAGE = "MCAdvantage writes it as rows enter a buffer; or give the loss a critic_network."


@dataclass(frozen=True)
class AnswerKeys(LossKeys):
    """The token entries of a batch of answers: [*B, L], padded on either side, or ragged."""

    tokens: Key = field(default=("tokens", "full"), metadata=entry(producer=_POLICY))
    """int64; read by the actor."""
    prompt: Key = ("tokens", "prompt")
    """Read if present, for masking_strategy "sft": int64 [*B, P], ragged or padded."""
    assistant_mask: Key = field(default=("masks", "all_assistant_mask"), metadata=entry(producer=_POLICY))
    """bool: the tokens that the policy generated."""
    attention_mask: Key = field(default=("masks", "all_attention_mask"), metadata=entry(producer=_POLICY))
    """bool: all tokens, without padding. Needed for "generic", and with a ragged ``prompt``."""
    ref_log_prob: Key = field(
        default=("ref_log_probs", "full"),
        metadata=entry(
            producer="A reference policy writes it when it scores the batch. It is looked for under next too."
        ),
    )
    """The reference policy's log-probabilities, for kl_to_ref_coeff."""
    actor_log_prob: Key = ("log_probs", "full")
    """Where the actor writes its log-probabilities, unless it has a method ``log_probs``."""
    entropy: Key = ("entropy", "full")
    """Where the actor writes its entropy, likewise."""
    current_log_prob: Key = field(
        default=("current_log_probs", "full"),
        metadata=entry(producer="Without an actor_network the caller writes it, with its gradient."),
    )
    """Read where the loss has no actor_network."""


@dataclass(frozen=True)
class GRPOKeys(AnswerKeys):
    """The entries of :class:`~rl_llm.GRPOLoss`."""

    sample_log_prob: Key = field(default=("log_probs", "full"), metadata=entry(producer=_POLICY))
    """The log-probability that each token was sampled with."""
    old_log_prob: Key = ("old_log_probs", "full")
    """Read if present: the trainer's log-probabilities with the weights that sampled."""
    advantage: Key = field(default="advantage", metadata=entry(producer=_ADVANTAGE))
    """[*B, 1] or [*B, L]."""
    cut_answer: Key = field(
        default="cut_answer", metadata=entry(producer="The environment writes it where an answer met its length limit.")
    )
    """bool [*B] or [*B, 1], for ignore_cut_answers."""
    num_items: Key = "num_items"
    """Read if present: see ``num_items`` of the loss; one number, or the same in each row."""
    value: Key = "state_value"
    """What the critic writes: [*B, 1] or [*B, L]; read from the batch for clip_value."""
    value_target: Key = field(
        default="value_target",
        metadata=entry(producer="A value estimator writes it; or keep next.reward and next.done of whole dialogs."),
    )
    """[*B, 1] or [*B, L], for the critic."""
    reward: Key = field(default="reward", metadata=entry(producer="The environment writes it.", under_next=True))
    done: Key = field(default="done", metadata=entry(producer="The environment writes it.", under_next=True))


@dataclass(frozen=True, kw_only=True)
class ImportanceCorrection:
    """How tokens are weighted by pi_old / mu, trainer over engine (see ``functional.importance_weights``)."""

    mode: str = "mask"
    """"mask": weights outside of the bounds become 0; "truncate": they become the bound."""
    level: str = "sequence"
    """"sequence": one weight for an answer; "token": one for each token."""
    low: float | None = None
    """Smallest ratio; None: no bound."""
    high: float | None = 3.0
    """Largest ratio; None: no bound."""
    length_normalized: bool = True
    """For sequences: the mean of the log-ratios; False: their sum."""

    def __post_init__(self) -> None:
        if self.mode not in IMPORTANCE_MODES or self.level not in IMPORTANCE_LEVELS:
            raise SpecError(
                f"ImportanceCorrection has mode {self.mode!r} and level {self.level!r}; modes are {IMPORTANCE_MODES}, "
                f"levels {IMPORTANCE_LEVELS}. For no correction give the loss importance_correction=None."
            )
        if self.low is not None and self.high is not None and not self.low <= self.high:
            raise SpecError(f"ImportanceCorrection has low {self.low} above high {self.high}")
