"""How a loss gets the log-probabilities of stored tokens from a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import PolicyError
from rl_core.keys import Key
from rl_core.losses.keys import missing_key, quoted

__all__ = ["TokenScorer", "score_tokens"]


@runtime_checkable
class TokenScorer(Protocol):
    """A policy that scores stored tokens, whatever it does when it is called."""

    in_keys: Any
    """The entries that it reads."""

    def log_probs(self, batch: TensorDictBase, with_entropy: bool) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities of a batch's tokens.

        Args:
            batch: tokens and masks, dense [*B, L].
            with_entropy: whether the entropy is wanted too.

        Returns:
            ``(log_prob, entropy)``, float [*B, L] both; position t scores token t. The entropy is that of the
            distribution which token t was drawn from, None where it is not wanted.
        """
        ...


def score_tokens(
    actor: nn.Module,
    batch: TensorDictBase,
    *,
    out_key: Key,
    entropy_key: Key,
    with_entropy: bool,
    owner: str,
    hidden: Sequence[Key] = (),
) -> tuple[Tensor, Tensor | None]:
    """The log-probabilities of a batch's tokens, and their entropy.

    Args:
        actor: a :class:`TokenScorer`, or a module that takes a TensorDict and writes ``out_key`` into it.
        batch: it is left alone.
        out_key: where such a module writes.
        entropy_key: where it writes the entropy.
        with_entropy: whether the entropy is needed.
        owner: who asks, for the errors.
        hidden: entries that the module does not see: stored log-probabilities, which would pass for new ones if it
            wrote none.

    Returns:
        ``(log_prob, entropy)``, [*B, L] both; the entropy is None where the actor gives none and none is needed.

    Raises:
        KeyMissingError: the module wrote no ``out_key``.
        PolicyError: the entropy is needed and not given.
    """
    if isinstance(actor, TokenScorer):
        log_prob, entropy = actor.log_probs(batch, with_entropy)
    else:
        written = actor(batch.exclude(*hidden))
        log_prob, entropy = written.get(out_key, None), written.get(entropy_key, None)
        if log_prob is None:
            cure = (
                f"The actor_network ({type(actor).__name__}) writes it when it scores tokens: generate=False, or give "
                "it a method log_probs(batch, with_entropy). Where it writes elsewhere: "
                "loss.set_keys(actor_log_prob=...)."
            )
            raise missing_key(owner, out_key, written, cure)
    if with_entropy and entropy is None:
        raise PolicyError(
            f"{owner} has entropy_bonus=True, but its actor_network ({type(actor).__name__}) gives no entropy: return "
            f"it from log_probs(batch, with_entropy=True), write it under {quoted(entropy_key)}, or leave the bonus out"
        )
    return log_prob, entropy
