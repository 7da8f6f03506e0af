"""``LLMWrapperBase``: a language model as a policy of TensorDicts, whatever the engine behind it.

An engine completes and scores rows of token ids. This class reads prompts, keeps the keys, and writes the containers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase, lazy_stack
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from typing_extensions import Self

from rl_core.errors import PolicyError
from rl_core.keys import Key
from rl_llm.data.containers import LogProbs
from rl_llm.policies.completion import Completion
from rl_llm.policies.engine_state import EngineState
from rl_llm.policies.generation_kwargs import read_generation_kwargs
from rl_llm.policies.options import WrapperOptions
from rl_llm.policies.outputs import sequence_containers, turn_containers
from rl_llm.policies.prompts import PromptReader
from rl_llm.policies.rows import batch_rows, dense_tokens, is_dense, nested_stack, token_rows

__all__ = ["LLMWrapperBase"]


class LLMWrapperBase(TensorDictModuleBase):
    """A language model as a policy.

    ``generate=True``: reads ``(mode, "prompt")`` and writes completions: the containers text, masks, tokens, log_probs,
    and in history mode the answers as messages. ``log_probs.full`` has the log-probability of every generated token
    under the distribution it was drawn from (temperature, top-p, top-k), the first one and the end-of-text token among
    them, and 0.0 on the prompt. ``generate=False``: reads ``(mode, "full")`` and writes ``log_probs.full`` of every
    token.

    Args:
        model: the engine; see the subclasses.
        tokenizer: needed in the modes history and text; an engine may bring its own.
        input_mode: "history" (messages), "text" or "tokens" (token ids).
        input_key: where to read instead.
        attention_mask_key: a bool mask of dense token prompts, used where present.
        generate: generate, or score.
        generate_kwargs: see :func:`~rl_llm.policies.generation_kwargs.read_generation_kwargs`; temperature, top_p and
            top_k hold for scoring too.
        tokenizer_kwargs: for the tokenizer; ``add_special_tokens=False`` by default.
        pad_output: dense outputs: prompts padded on the left, responses and full on the right.
        pad_model_input: score padded rows; False packs them into one.
        inplace: None and True write into the input, False into a copy. With several samples there is always a copy.
        device: where outputs go; by default where the input is, else where the model is.
        layout: None or torch.strided.
        num_samples: completions of each prompt; above one the outputs have batch size ``[*B, num_samples]``.
        chat_template_name: a registered template for histories.
        chat_template: a template for histories.
        return_log_probs: None and True: write log_probs.
        history_key: key of the ChatHistory.
        text_key: key of the Text.
        tokens_key: key of the Tokens.
        masks_key: key of the Masks.
        log_probs_key: key of the LogProbs.
        prefer_tokens: where ``(tokens_key, "prompt")`` (for scoring "full") is present, the model reads these ids:
            tokens in, tokens out. Otherwise ids are made from texts or messages each time.

    Raises:
        PolicyError: options that contradict each other.
    """

    def __init__(
        self,
        model: Any,
        *,
        tokenizer: Any = None,
        input_mode: str = "history",
        input_key: Key | None = None,
        attention_mask_key: Key = "attention_mask",
        generate: bool = True,
        generate_kwargs: Mapping[str, Any] | None = None,
        tokenizer_kwargs: Mapping[str, Any] | None = None,
        pad_output: bool = False,
        pad_model_input: bool = True,
        inplace: bool | None = None,
        device: torch.device | str | None = None,
        layout: torch.layout | None = None,
        num_samples: int | None = None,
        chat_template_name: str | None = None,
        chat_template: str | None = None,
        return_log_probs: bool | None = None,
        history_key: str = "history",
        text_key: str = "text",
        tokens_key: str = "tokens",
        masks_key: str = "masks",
        log_probs_key: str = "log_probs",
        prefer_tokens: bool = True,
    ) -> None:
        super().__init__()
        self.options = WrapperOptions(
            input_mode=input_mode,
            input_key=input_key,
            attention_mask_key=attention_mask_key,
            generate=generate,
            generate_kwargs=generate_kwargs,
            tokenizer_kwargs=tokenizer_kwargs,
            pad_output=pad_output,
            pad_model_input=pad_model_input,
            inplace=inplace,
            device=device,
            layout=layout,
            num_samples=num_samples,
            chat_template_name=chat_template_name,
            chat_template=chat_template,
            return_log_probs=return_log_probs,
            history_key=history_key,
            text_key=text_key,
            tokens_key=tokens_key,
            masks_key=masks_key,
            log_probs_key=log_probs_key,
            prefer_tokens=prefer_tokens,
        )
        self.settings = read_generation_kwargs(generate_kwargs, num_samples)
        if self.settings.num_samples > 1 and inplace:
            raise PolicyError(
                f"{self.settings.num_samples} samples add a batch dimension, so they cannot be written in place: leave "
                "inplace out"
            )
        self.model, self.tokenizer = self.open_engine(model, tokenizer)
        if self.tokenizer is None and input_mode != "tokens":
            raise PolicyError(
                f"input_mode={input_mode!r} needs a tokenizer: pass tokenizer=..., or read token ids with "
                "input_mode='tokens'"
            )
        self.engine_state = EngineState()
        self.in_keys: list[Any] = [self.options.read_key]
        self.out_keys: list[Any] = list(self.options.written_keys)
        self.reader = PromptReader(self.options, self.tokenizer)

    # ------------------------------------------------------------------------------------------------ engines
    @abstractmethod
    def open_engine(self, model: Any, tokenizer: Any) -> tuple[Any, Any]:
        """The engine and the tokenizer behind what the user gave, e.g. loaded from a path."""

    @abstractmethod
    def sample(self, prompts: Sequence[Tensor], limits: Sequence[int]) -> list[Completion]:
        """Complete token prompts.

        Args:
            prompts: B rows of token ids [L_i].
            limits: B: the most tokens of a completion, by prompt.

        Returns:
            ``num_samples`` completions of the first prompt, then those of the second one, ...
        """

    @abstractmethod
    def log_probs(
        self, batch: TensorDictBase, with_entropy: bool = False, *, wanted_key: Key | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Score ``tokens.full``: the log-probability of each token given those before it, with the sampling settings.

        Args:
            batch: ``(tokens_key, "full")`` int64 [*B, L] with ``(masks_key, "all_attention_mask")`` bool [*B, L], or
                ragged tokens, which are padded on the right here.
            with_entropy: also the entropy of the distribution that each token is drawn from.
            wanted_key: a bool mask [*B, L], e.g. ("masks", "all_assistant_mask"): other tokens get 0 and cost no
                vocabulary.

        Returns:
            Log-probabilities [*B, L], 0 at padding and at the first token of each row, and the entropy [*B, L] or None.

        Raises:
            PolicyError: the policy is greedy, or samples in a way that scoring does not repeat.
        """

    @property
    @abstractmethod
    def context(self) -> int | None:
        """The most tokens of a prompt and its completion together, None where not known."""

    # ------------------------------------------------------------------------------------------------ versions
    def get_new_version(self, **overrides: Any) -> Self:
        """The same policy over the same model with some arguments of the constructor changed."""
        given: dict[str, Any] = {name: getattr(self.options, name) for name in WrapperOptions.__dataclass_fields__}
        if "generate_kwargs" in overrides and "num_samples" not in overrides:
            given["num_samples"] = None  # the new settings say how many
        if "num_samples" in overrides and "generate_kwargs" not in overrides:
            kwargs = dict(self.options.generate_kwargs or {})
            given["generate_kwargs"] = {k: v for k, v in kwargs.items() if k not in ("n", "num_return_sequences")}
        if overrides.get("generate") is False and given["return_log_probs"] is False:
            given["return_log_probs"] = None
        new = type(self)(**{"model": self.model, "tokenizer": self.tokenizer, **given, **overrides})
        if new.model is self.model:
            new.engine_state = self.engine_state
        return new

    @property
    def policy_version(self) -> int:
        """The version of the weights in use, 0 before any weight sync."""
        return self.engine_state.version

    # ------------------------------------------------------------------------------------------------ calls
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Generate or score; see the class."""
        with self.engine_state.lock:
            return self._generate(tensordict) if self.options.generate else self._score(tensordict)

    def _generate(self, tensordict: TensorDictBase) -> TensorDictBase:
        prompts = self.reader.prompts(batch_rows(tensordict))
        completions = self.sample(prompts.tokens, self._limits(prompts.tokens))
        repeats, device = self.settings.num_samples, self._output_device(tensordict)
        samples = [
            turn_containers(prompts, completions[sample::repeats], self.options, self.tokenizer, device)
            for sample in range(repeats)
        ]
        if repeats == 1:
            return self._write(tensordict, samples[0])
        copies = [self._write(tensordict.copy(), written) for written in samples]
        return lazy_stack(copies, tensordict.batch_dims)

    def _score(self, tensordict: TensorDictBase) -> TensorDictBase:
        options, flat = self.options, batch_rows(tensordict)
        device = self._output_device(tensordict)
        given = options.prefer_tokens or options.input_mode == "tokens"
        if given and is_dense(flat, options.full_key, options.attention_key):
            log_prob, _ = self.log_probs(flat)
            dense = LogProbs(full=log_prob.to(device), padded=True, batch_size=flat.batch_size)
            return self._write(tensordict, {options.log_probs_key: dense})
        rows = token_rows(flat, options.full_key) if given else None
        scored = sequence_containers(self.reader.full(flat) if rows is None else rows, options, self.tokenizer)
        source = flat.empty().update(scored)
        log_prob, _ = self.log_probs(source)
        _, mask = dense_tokens(source, options.full_key, options.attention_key)
        kept = [row[real].to(device) for row, real in zip(log_prob, mask.to(log_prob.device), strict=True)]
        written = {key: value.to(device) for key, value in scored.items()} if rows is None else {}
        written[options.log_probs_key] = LogProbs.from_rows(full=kept, pad=options.pad_output)
        return self._write(tensordict, written)

    def _write(self, tensordict: TensorDictBase, written: Mapping[str, Any]) -> TensorDictBase:
        target = tensordict.copy() if self.options.inplace is False else tensordict
        for key, container in written.items():
            if tensordict.batch_dims != 1:
                container = nested_stack(list(container.unbind(0)), tensordict.batch_size)
            target.set(key, container)
        return target

    def _output_device(self, tensordict: TensorDictBase) -> torch.device | None:
        if self.options.device is not None:
            return torch.device(self.options.device)
        return tensordict.device

    def _limits(self, prompts: Sequence[Tensor]) -> list[int]:
        """How many tokens each prompt leaves room for."""
        wanted, context = self.settings.max_new_tokens, self.context
        if context is None:
            return [wanted] * len(prompts)
        for row, prompt in enumerate(prompts):
            if len(prompt) >= context:
                raise PolicyError(
                    f"the prompt of row {row} has {len(prompt)} tokens, the model sees at most {context} with its "
                    "completion: shorten it, or end the episode before with the environment's length policy"
                )
        return [min(wanted, context - len(prompt)) for prompt in prompts]
