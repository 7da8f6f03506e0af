"""Scoring: log-probabilities of given tokens under a causal language model, padded or packed.

Whatever the padding of the input, the model sees real tokens at positions 0, 1, 2, ...: padded rows are moved to the
left, so that a causal model never sees padding; packed rows see themselves only.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_core.errors import PolicyError
from rl_llm.policies.eval_mode import evaluating
from rl_llm.policies.library import transformers
from rl_llm.policies.log_probs import from_logits, token_log_probs
from rl_llm.policies.packing import Packed, packed_from_padded, unpack_to_padded
from rl_llm.policies.sampling import SamplingDistribution

__all__ = ["CausalScorer", "context_length"]


def context_length(model: Any) -> int | None:
    """The most tokens a model can see, or None where its configuration does not say."""
    return getattr(model.config, "max_position_embeddings", None)


class CausalScorer:
    """Scores tokens with a Transformers model.

    Where the logits are a plain linear function of the last hidden states, they are never made for all tokens at
    once; that is found out by comparing the two on a few tokens, once.

    Args:
        model: a causal language model of Transformers, or a wrapper of one that returns ``logits``.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model: Any = model
        self._linear_head: tuple[nn.Module, nn.Linear] | bool | None = None

    def score(
        self,
        tokens: Tensor,
        mask: Tensor,
        how: SamplingDistribution,
        *,
        packed: bool = False,
        with_entropy: bool = False,
        wanted: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probability of each token given those before it in its row.

        Args:
            tokens: int64 [B, L], anything where the mask is False.
            mask: bool [B, L], True on real tokens.
            how: the distribution that logits stand for.
            packed: one row of all tokens instead of padding.
            with_entropy: also the entropy of the distribution each token was drawn from.
            wanted: bool [B, L]: score only these, which costs less memory; all others get 0.

        Returns:
            Two tensors [B, L] (the second may be None), 0 at padding and at each row's first real token.

        Raises:
            PolicyError: a row is longer than the model's context, or the model cannot be packed.
        """
        if not bool(mask.any()):
            zeros = tokens.new_zeros(tokens.shape, dtype=torch.float32)
            return zeros, zeros.clone() if with_entropy else None
        rows = packed_from_padded(tokens, mask)
        self._check_lengths(rows.lengths)
        places = rows.scored()
        if wanted is not None:
            places = places[wanted[mask][places]]
        targets = rows.tokens[0][places]
        states, head = self._states(rows, packed)
        states = states.index_select(0, places - 1)
        options: dict[str, Any] = {
            "temperature": how.temperature,
            "top_p": how.top_p,
            "top_k": how.top_k,
            "with_entropy": with_entropy,
        }
        if head is None:
            log_prob, entropy = from_logits(states, targets, **options)
        else:
            log_prob, entropy = token_log_probs(states, head.weight, targets, bias=head.bias, **options)

        def placed(values: Tensor) -> Tensor:
            full = values.new_zeros(rows.tokens.shape[1]).index_copy(0, places, values)
            return unpack_to_padded(full, mask)

        return placed(log_prob), None if entropy is None else placed(entropy)

    def _states(self, rows: Packed, packed: bool) -> tuple[Tensor, nn.Linear | None]:
        """Hidden states [S, H] and the head, or logits [S, V] and None, in packed order."""
        inputs = self._packed_inputs(rows) if packed else self._padded_inputs(rows)
        if self._linear_head is None:
            self._linear_head = self._find_linear_head()
        if isinstance(self._linear_head, tuple):
            backbone, head = self._linear_head
            values = backbone(**inputs, use_cache=False).last_hidden_state
        else:
            head = None
            values = self.model(**inputs, use_cache=False).logits
        if packed:
            return values[0], head
        real = torch.arange(values.shape[1], device=values.device) < rows.lengths[rows.lengths > 0, None]
        return values[real], head

    def _padded_inputs(self, rows: Packed) -> dict[str, Tensor]:
        """Rows moved to the left: behind them is padding that no causal model looks at. Empty rows are left out."""
        lengths = rows.lengths[rows.lengths > 0]
        positions = torch.arange(int(lengths.max()), device=lengths.device).expand(len(lengths), -1)
        ids = unpack_to_padded(rows.tokens[0], positions < lengths[:, None], fill=0)
        return {"input_ids": ids, "position_ids": positions} if self._takes("position_ids") else {"input_ids": ids}

    def _packed_inputs(self, rows: Packed) -> dict[str, Tensor]:
        self._check_packable(rows.lengths)
        inputs = {"input_ids": rows.tokens, "position_ids": rows.position_ids}
        if not self._attention().startswith("flash"):  # flash attention reads the sequences off the positions
            inputs["attention_mask"] = rows.additive_mask(self.model.dtype)
        return inputs

    def _attention(self) -> str:
        return str(self.model.config._attn_implementation)

    def _takes(self, argument: str) -> bool:
        language_model = _language_model(self.model)
        return argument in inspect.signature((language_model or self.model).forward).parameters

    def _check_lengths(self, lengths: Tensor) -> None:
        context = context_length(self.model)
        longest = int(lengths.max())
        if context is not None and longest > context:
            raise PolicyError(
                f"row {int(lengths.argmax())} has {longest} tokens, the model sees at most {context} "
                "(max_position_embeddings): cut or drop long episodes before scoring, e.g. with a length policy of the "
                "environment"
            )

    def _check_packable(self, lengths: Tensor) -> None:
        config = self.model.config
        cure = "; score it padded: pad_model_input=True"
        attention = self._attention()
        if not attention.startswith(("flash", "sdpa", "eager")):
            raise PolicyError(f"packed rows need the attention sdpa, eager or flash, the model has {attention!r}{cure}")
        if not self._takes("position_ids"):
            raise PolicyError(f"{type(self.model).__name__} takes no position_ids, so rows cannot be packed{cure}")
        kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
        if kinds:
            raise PolicyError(
                f"layers of the kinds {sorted(kinds)} carry a state from one packed row to the next{cure}"
            )
        window = getattr(config, "sliding_window", None)
        if window is not None and getattr(config, "use_sliding_window", True) and int(lengths.max()) > window:
            raise PolicyError(
                f"a row of {int(lengths.max())} tokens exceeds the attention window of {window}, which the packed mask "
                f"would open{cure}"
            )

    @torch.no_grad()
    def _find_linear_head(self) -> tuple[nn.Module, nn.Linear] | bool:
        """The backbone and the head, if applying the one after the other gives the model's logits; else False."""
        language_model = _language_model(self.model)
        head = None if language_model is None else language_model.get_output_embeddings()
        if language_model is None or type(head) is not nn.Linear or type(head.weight) is not nn.Parameter:
            return False
        backbone = language_model.base_model
        # A soft cap is nearly the identity on small logits, so that a comparison could miss it.
        if backbone is language_model or getattr(self.model.config, "final_logit_softcapping", None) is not None:
            return False
        ids = torch.arange(min(4, head.weight.shape[0]), device=head.weight.device)[None]
        with evaluating(self.model):
            logits = self.model(input_ids=ids, use_cache=False).logits
            hidden = getattr(backbone(input_ids=ids, use_cache=False), "last_hidden_state", None)
        if hidden is None:
            return False
        plain = F.linear(hidden, head.weight, head.bias)  # not head(hidden): a hook on the head must be noticed
        same = plain.shape == logits.shape and torch.allclose(logits, plain, rtol=1e-5, atol=1e-6)
        return (backbone, head) if same else False


def _language_model(model: nn.Module) -> Any:
    """The Transformers model that may be called in parts: itself or in PEFT, but not in a parallel wrapper."""
    if isinstance(model, transformers.PreTrainedModel):
        return model
    if type(model).__module__.partition(".")[0] == "peft":
        return model.get_base_model()  # type: ignore[operator]
    return None
