"""``vLLMWrapper``: an in-process vLLM engine as a policy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core.errors import PolicyError
from rl_core.keys import Key
from rl_llm.policies.base import LLMWrapperBase
from rl_llm.policies.completion import Completion
from rl_llm.policies.rows import dense_tokens
from rl_llm.policies.vllm_engine import make_vllm_engine
from rl_llm.policies.vllm_library import vllm_module

__all__ = ["vLLMWrapper"]

COLDEST = 0.01
"""The engine raises smaller temperatures to this one."""


class vLLMWrapper(LLMWrapperBase):  # noqa: N801 (the engine's own spelling)
    """An in-process vLLM engine as a policy; all arguments are at :class:`LLMWrapperBase`.

    ``model`` is a ``vllm.LLM`` or a name or path for :func:`~rl_llm.policies.vllm_engine.make_vllm_engine`; the
    tokenizer is the engine's unless one is given. Prompts go in, and completions come out, as token ids.
    ``pad_model_input`` has no meaning here. Scoring has no gradient, and the engine scores with temperature 1 over the
    whole vocabulary only: use a :class:`~rl_llm.policies.transformers.TransformersWrapper` for the loss.
    """

    def open_engine(self, model: Any, tokenizer: Any) -> tuple[Any, Any]:
        if isinstance(model, (str, os.PathLike)):
            model = make_vllm_engine(os.fspath(model))
        if not isinstance(model, vllm_module().LLM):
            raise PolicyError(f"model must be a vllm.LLM, or the name or path of a model; got {type(model).__name__}")
        how, mode = self.settings.distribution, model.llm_engine.model_config.logprobs_mode
        plain = how.greedy or (how.temperature == 1 and not how.truncated and not self.settings.reshaped_by)
        if mode != "processed_logprobs" and not (mode == "raw_logprobs" and plain):
            raise PolicyError(
                f"the engine reports {mode}, which are not log-probabilities of the distribution it samples from: make "
                "it with make_vllm_engine(...), or vllm.LLM(..., logprobs_mode='processed_logprobs')"
            )
        if 0 < how.temperature < COLDEST:
            raise PolicyError(
                f"vLLM samples with a temperature of at least {COLDEST}, or 0 (greedy); got {how.temperature}"
            )
        return model, model.get_tokenizer() if tokenizer is None else tokenizer

    @property
    def context(self) -> int | None:
        return int(self.model.llm_engine.model_config.max_model_len)

    def reset_prefix_cache(self) -> None:
        """Forget keys and values computed with other weights.

        Raises:
            PolicyError: the engine refuses, since requests are running.
        """
        if not self.model.reset_prefix_cache():
            raise PolicyError("the engine did not reset its prefix cache: some requests are still running")

    def sample(self, prompts: Sequence[Tensor], limits: Sequence[int]) -> list[Completion]:
        one = len(set(limits)) == 1
        params = [self._params(limit) for limit in ([limits[0]] if one else limits)]
        results = self.model.generate(
            [{"prompt_token_ids": prompt.tolist()} for prompt in prompts],
            params[0] if one else params,
            use_tqdm=False,
        )
        return [self._completion(output) for result in results for output in result.outputs]

    def log_probs(
        self, batch: TensorDictBase, with_entropy: bool = False, *, wanted_key: Key | None = None
    ) -> tuple[Tensor, Tensor | None]:
        how = self.settings.check_scoring()
        if with_entropy or how.truncated or how.temperature != 1:
            raise PolicyError(
                "vLLM scores with temperature 1 over the whole vocabulary, without entropies; this policy has "
                f"{how}{' and is asked for entropies' if with_entropy else ''}. Score with a TransformersWrapper"
            )
        tokens, mask = dense_tokens(batch, self.options.full_key, self.options.attention_key)
        log_prob = torch.zeros(tokens.shape, dtype=torch.float32, device=tokens.device)
        flat_mask = mask.reshape(-1, mask.shape[-1])
        scores = self.prompt_log_probs([r[m] for r, m in zip(tokens.reshape(flat_mask.shape), flat_mask, strict=True)])
        log_prob[mask] = torch.cat(scores).to(log_prob.device)
        if wanted_key is not None:
            log_prob = log_prob * batch.get(wanted_key)
        return log_prob, None

    def prompt_log_probs(self, rows: Sequence[Tensor]) -> list[Tensor]:
        """Log-probabilities [L_i] of the tokens of rows [L_i] at temperature 1; 0 for each first one."""
        scored = [row for row in rows if len(row) > 1]
        params = vllm_module().SamplingParams(max_tokens=1, prompt_logprobs=0, temperature=1.0, detokenize=False)
        prompts = [{"prompt_token_ids": row.tolist()} for row in scored]
        results = iter(self.model.generate(prompts, params, use_tqdm=False) if prompts else [])
        out = []
        for row in rows:
            values = [0.0] * len(row)
            if len(row) > 1:
                positions = next(results).prompt_logprobs
                values[1:] = [positions[t][int(row[t])].logprob for t in range(1, len(row))]
            out.append(torch.tensor(values))
        return out

    def _params(self, limit: int) -> Any:
        how, settings = self.settings.distribution, self.settings
        try:
            return vllm_module().SamplingParams(
                n=settings.num_samples,
                temperature=how.temperature,
                top_p=1.0 if how.greedy else how.top_p,
                top_k=0 if how.greedy else how.top_k,
                max_tokens=limit,
                stop=list(settings.stop_strings) or None,
                detokenize=bool(settings.stop_strings),
                logprobs=0,
                flat_logprobs=True,
                output_kind=vllm_module().sampling_params.RequestOutputKind.FINAL_ONLY,
                **settings.extra,
            )
        except TypeError as error:
            raise PolicyError(
                f"vLLM does not take all of the generate_kwargs {sorted(settings.extra)}: {error}"
            ) from error

    def _completion(self, output: Any) -> Completion:
        tokens = torch.tensor(output.token_ids, dtype=torch.int64)
        if self.settings.distribution.greedy:
            log_probs = torch.zeros(len(tokens))
        else:
            log_probs = torch.tensor(output.logprobs.logprobs, dtype=torch.float32)
        if log_probs.shape != tokens.shape:
            raise PolicyError(f"the engine gave {len(log_probs)} log-probabilities for {len(tokens)} tokens")
        return Completion(tokens, log_probs, output.finish_reason == "stop")
