"""``VLLMWeightSync``: trained weights into running vLLM engines, with a version and a proof that they arrived."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_core.errors import CollectorError
from rl_llm.policies.base import LLMWrapperBase
from rl_llm.policies.eval_mode import evaluating
from rl_llm.policies.library import transformers
from rl_llm.policies.sampling import SamplingDistribution
from rl_llm.policies.scoring import CausalScorer
from rl_llm.policies.vllm import vLLMWrapper
from rl_llm.policies.vllm_engine import WORKER_EXTENSION
from rl_llm.weights.module_sync import chosen_targets, named_weights

__all__ = ["VLLMWeightSync"]

TOLERANCE = 1e-3
HALF_TOLERANCE = 0.15


class VLLMWeightSync:
    """Live weight updates of in-process vLLM engines.

    Each ``send`` waits for running calls, gives the engine's workers the tensors as they are, checks the version that
    they answer, empties the prefix cache, and, where a module was sent, compares log-probabilities of a probe prompt on
    both sides.

    Args:
        policies: vLLMWrappers, numbered from 0, over engines made with
            :func:`~rl_llm.policies.vllm_engine.make_vllm_engine`.
        probe: token ids of the probe prompt, at least two; by default the first 16 of the vocabulary.
        tolerance: the largest mean difference of log-probabilities on the probe; by default 1e-3 for an engine in
            float32 and 0.15 for half precision.

    Raises:
        CollectorError: no policy, or a probe too short.
    """

    def __init__(
        self,
        policies: vLLMWrapper | Sequence[vLLMWrapper],
        *,
        probe: Sequence[int] | None = None,
        tolerance: float | None = None,
    ) -> None:
        self.policies = [policies] if isinstance(policies, vLLMWrapper) else list(policies)
        if not self.policies or not all(isinstance(policy, vLLMWrapper) for policy in self.policies):
            raise CollectorError(
                f"VLLMWeightSync sends to vLLMWrappers, got {[type(policy).__name__ for policy in self.policies]}"
            )
        if probe is not None and len(probe) < 2:
            raise CollectorError(f"a probe prompt has at least two tokens, got {list(probe)}")
        self.probe, self.tolerance = probe, tolerance
        self._version = 0

    @property
    def version(self) -> int:
        """The version of the weights sent last; 0 before any."""
        return self._version

    def send(self, weights: Any, worker_ids: list[int] | None = None) -> int:
        """Send weights to all engines, or to some.

        Args:
            weights: a Transformers model, a policy over one, or names (as in the checkpoint) and tensors.
            worker_ids: numbers of the policies; None is all.

        Returns:
            The new version.

        Raises:
            CollectorError: an engine did not take the weights, or has others afterwards.
        """
        named = _checkpoint_weights(weights)
        chosen = chosen_targets(worker_ids, len(self.policies))
        for number in chosen:
            _check_complete(named, self.policies[number], number)
        version = self._version + 1
        for number in chosen:
            self._send_to(number, version, named)
        self._version = version
        module = _module_of(weights)
        if module is not None:
            for number in chosen:
                self._compare(number, module)
        return version

    def check(self, weights: Any = None, worker_ids: list[int] | None = None) -> None:
        """Raise where an engine missed a sync.

        Args:
            weights: the model that is trained, or a policy over it: its log-probabilities must be the engine's.
            worker_ids: numbers of the policies; None is all.

        Raises:
            CollectorError: an engine has another version than the one sent last, or other weights than the model.
        """
        for number in chosen_targets(worker_ids, len(self.policies)):
            has = self._call(number, "rl_llm_version")
            if self._version and any(version != self._version for version in has):
                raise CollectorError(
                    f"engine {number} missed a weight sync: its workers have the versions {has}, the last one sent is "
                    f"{self._version}. Send to it again: sync.send(model, worker_ids=[{number}]) or without worker_ids"
                )
            module = _module_of(weights)
            if module is not None:
                self._compare(number, module)

    def _send_to(self, number: int, version: int, named: dict[str, Tensor]) -> None:
        policy = self.policies[number]
        with policy.engine_state.lock:
            answers = self._call(number, "rl_llm_update", version, list(named.items()))
            if not answers or any(answer != version for answer in answers):
                raise CollectorError(f"engine {number} was sent version {version}, its workers answered {answers}")
            policy.reset_prefix_cache()
            policy.engine_state.version = version

    def _call(self, number: int, method: str, *args: Any) -> list[Any]:
        engine = self.policies[number].model
        try:
            return list(engine.collective_rpc(method, args=args))
        except (AttributeError, NotImplementedError) as error:
            if method not in str(error):
                raise
            raise CollectorError(
                f"engine {number} has no method {method}: make it with make_vllm_engine(...), or "
                f"vllm.LLM(..., worker_extension_cls={WORKER_EXTENSION!r})"
            ) from error

    def _compare(self, number: int, module: nn.Module) -> None:
        """The probe's log-probabilities on both sides."""
        policy = self.policies[number]
        config = policy.model.llm_engine.model_config
        ids = self.probe if self.probe is not None else range(min(16, config.get_vocab_size()))
        probe = torch.tensor(list(ids))
        with policy.engine_state.lock:
            theirs = policy.prompt_log_probs([probe])[0]
        device = next(module.parameters()).device
        row = probe[None].to(device)
        with torch.no_grad(), evaluating(module):
            ours, _ = CausalScorer(module).score(row, torch.ones_like(row, dtype=torch.bool), SamplingDistribution())
        gap = (ours[0].cpu() - theirs)[1:].abs().mean().item()
        limit = (
            self.tolerance
            if self.tolerance is not None
            else (TOLERANCE if config.dtype == torch.float32 else HALF_TOLERANCE)
        )
        if not gap <= limit:
            raise CollectorError(
                f"engine {number} (version {policy.policy_version}) does not have the model's weights: "
                f"log-probabilities of a probe prompt differ by {gap:.3g} on average, allowed is {limit:.3g}. Send the "
                "weights again after every update; for an engine of another precision set tolerance=..."
            )


def _module_of(weights: Any) -> nn.Module | None:
    if isinstance(weights, LLMWrapperBase):
        weights = weights.model
    return weights if isinstance(weights, nn.Module) else None


def _checkpoint_weights(weights: Any) -> dict[str, Tensor]:
    named = {name: tensor.detach() for name, tensor in named_weights(weights).items()}
    adapters = [name for name in named if "lora_" in name or ".base_layer." in name or name.startswith("base_model.")]
    if adapters:
        raise CollectorError(
            f"the weights have adapters ({adapters[0]}, ...), which the engine would not apply: send the merged model, "
            "model.merge_and_unload() of a copy"
        )
    return named


def _check_complete(named: dict[str, Tensor], policy: vLLMWrapper, number: int) -> None:
    """Names and shapes against those of the engine's own configuration: what is missing would stay old."""
    config = policy.model.llm_engine.model_config.hf_config
    if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        return  # a model with code of its own: the probe has to tell
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    expected = model.state_dict()
    parameters = dict(model.named_parameters())  # of tied ones, one name is enough
    missing = sorted(name for name in parameters if name not in named)
    unknown = sorted(name for name in named if name not in expected)
    shapes = sorted(name for name in named if name in expected and named[name].shape != expected[name].shape)
    if missing or unknown or shapes:
        raise CollectorError(
            f"these are not the weights of the model of engine {number}, {type(config).__name__}: "
            f"missing {missing[:3] or 'nothing'}, unknown {unknown[:3] or 'nothing'}, of another shape "
            f"{shapes[:3] or 'nothing'}. Nothing was sent"
        )
