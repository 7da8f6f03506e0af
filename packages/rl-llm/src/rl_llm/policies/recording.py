"""``model.generate`` of Transformers, with the log-probability of every token that was drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rl_core.errors import PolicyError
from rl_llm.policies.completion import Completion
from rl_llm.policies.eval_mode import evaluating
from rl_llm.policies.generation_kwargs import GenerationSettings
from rl_llm.policies.library import transformers
from rl_llm.policies.sampling import SamplingDistribution, behaviour_log_probs

__all__ = ["generate_completions"]

AFTER_OURS = frozenset({"epsilon_cutoff", "eta_cutoff", "min_p", "top_h", "typical_p"})
"""Transformers would apply these after the log-probabilities are taken."""


@torch.no_grad()
def generate_completions(
    model: Any,
    prompts: Sequence[Tensor],
    settings: GenerationSettings,
    *,
    eos_ids: Sequence[int],
    limits: Sequence[int],
    tokenizer: Any = None,
) -> list[Completion]:
    """Completions of prompts, ``num_samples`` of each one after the other.

    The model's own generation configuration is not read: what is sampled from is what the settings say.

    Args:
        model: a causal language model of Transformers.
        prompts: B rows of token ids [L_i].
        settings: distribution, length and number.
        eos_ids: tokens that end a completion and belong to it.
        limits: B: the most tokens of each prompt's completions.
        tokenizer: for stop_strings.
    """
    late = sorted(AFTER_OURS & {name for name, value in settings.extra.items() if value is not None})
    if late:
        raise PolicyError(
            f"generate_kwargs has {', '.join(late)}, which Transformers would apply after the stored log-probabilities "
            "are taken: use temperature, top_k and top_p"
        )
    device = model.device
    ids, mask = _left_padded(prompts, device)
    repeats = settings.num_samples
    record = _Record(
        settings.distribution,
        torch.tensor(eos_ids, device=device, dtype=torch.int64),
        torch.tensor(limits, device=device).repeat_interleave(repeats),
        _stop_criteria(settings, tokenizer),
        ids.shape[1],
    )
    sampling = {} if settings.distribution.greedy else {"top_k": 0, "top_p": 1.0, "temperature": 1.0}
    config = transformers.GenerationConfig(
        do_sample=not settings.distribution.greedy,
        max_new_tokens=max(limits),
        num_return_sequences=repeats,
        eos_token_id=list(eos_ids) or None,
        pad_token_id=eos_ids[0] if eos_ids else 0,  # never read back: lengths are recorded
        **sampling,
        **settings.extra,
    )
    with evaluating(model), _own_settings_only(model):
        sequences = model.generate(
            input_ids=ids,
            attention_mask=mask,
            generation_config=config,
            logits_processor=transformers.LogitsProcessorList([_Processor(record)]),
            stopping_criteria=transformers.StoppingCriteriaList([_Criterion(record)]),
        )
    return record.completions(sequences)


class _Record:
    """What happens to each of R rows: log-probabilities by step, the length once a row has ended."""

    def __init__(
        self, how: SamplingDistribution, eos_ids: Tensor, limits: Tensor, stop: Any | None, prompt_length: int
    ) -> None:
        self.how, self.eos_ids, self.limits, self.stop, self.prompt_length = how, eos_ids, limits, stop, prompt_length
        self.steps: list[Tensor] = []
        self.lengths = torch.zeros_like(limits)
        self.ended = torch.zeros_like(limits, dtype=torch.bool)
        self.stopped = torch.zeros_like(self.ended)
        self.current: Tensor | None = None

    def distribution(self, logits: Tensor) -> Tensor:
        """The log-probabilities [R, V] that the next tokens are drawn from."""
        self.current = behaviour_log_probs(logits, self.how.temperature, self.how.top_p, self.how.top_k)
        return self.current

    def drawn(self, sequences: Tensor) -> Tensor:
        """Note the tokens just drawn; which rows are at their end."""
        assert self.current is not None
        last = sequences[:, -1]
        self.steps.append(self.current.gather(-1, last[:, None]).squeeze(-1))
        stops = torch.isin(last, self.eos_ids)
        if self.stop is not None:
            stops = stops | self.stop(sequences[:, self.prompt_length :], None)
        alive = ~self.ended
        self.lengths += alive
        self.stopped |= alive & stops
        self.ended |= stops | (self.lengths >= self.limits)
        return self.ended

    def completions(self, sequences: Tensor) -> list[Completion]:
        tokens = sequences[:, self.prompt_length :]
        log_probs = torch.stack(self.steps, dim=1)
        return [
            Completion(tokens[row, :length], log_probs[row, :length], bool(stopped))
            for row, (length, stopped) in enumerate(zip(self.lengths.tolist(), self.stopped.tolist(), strict=True))
        ]


class _Processor(transformers.LogitsProcessor):
    """Turns logits into the log-probabilities that are sampled from; the last of all processors."""

    def __init__(self, record: _Record) -> None:
        self.record = record

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return self.record.distribution(scores)


class _Criterion(transformers.StoppingCriteria):
    """Ends rows, and is told every token that was drawn."""

    def __init__(self, record: _Record) -> None:
        self.record = record

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return self.record.drawn(input_ids)


def _stop_criteria(settings: GenerationSettings, tokenizer: Any) -> Any:
    if not settings.stop_strings:
        return None
    if tokenizer is None:
        raise PolicyError("stop_strings are texts: give the policy a tokenizer")
    return transformers.StopStringCriteria(tokenizer=tokenizer, stop_strings=list(settings.stop_strings))


def _left_padded(prompts: Sequence[Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
    rows = [row.to(device) for row in prompts]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_side="left")
    lengths = torch.tensor([len(row) for row in rows], device=device)
    mask = torch.arange(ids.shape[1], device=device) >= ids.shape[1] - lengths[:, None]
    return ids, mask.to(torch.int64)


@contextmanager
def _own_settings_only(model: Any) -> Iterator[None]:
    """Hide the model's generation configuration, from which generate would fill in what ours leaves open."""
    before = model.generation_config
    model.generation_config = transformers.GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = before
