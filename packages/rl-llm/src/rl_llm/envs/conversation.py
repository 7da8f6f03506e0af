"""``Conversations``: the tokens of a batch of chats, kept append-only by one ``TokenBuilder`` per row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core.errors import EnvError, KeyMissingError, SpecError
from rl_llm.data.containers import LogProbs, Masks, Tokens, rows_of
from rl_llm.data.history import Chat
from rl_llm.data.token_builder import TokenBuilder

__all__ = ["Conversations"]


class Conversations:
    """One token builder per row, and what the policy made of its prompt.

    Args:
        count: the number of rows.
        make_builder: gives an empty builder.
        token_mismatch: what to do where the policy was conditioned on other tokens than ``tokens.prompt``: "raise", or
            "adopt" its prompt, of which no token then counts as generated.
    """

    def __init__(self, count: int, make_builder: Callable[[], TokenBuilder], token_mismatch: str = "raise") -> None:
        if token_mismatch not in ("raise", "adopt"):
            raise SpecError(f"token_mismatch={token_mismatch!r}; it must be 'raise' or 'adopt'")
        self.builders = [make_builder() for _ in range(count)]
        self.token_mismatch = token_mismatch
        self.adopted = 0
        self.rewritten = 0

    def start(self, chats: Sequence[Chat], rows: Tensor | None = None) -> None:
        """Begin the chats of some rows (None: of all); neighbours with one opening render it once."""
        begun: tuple[Chat, TokenBuilder] | None = None
        for index, (builder, chat) in enumerate(zip(self.builders, chats, strict=True)):
            if rows is not None and not bool(rows[index]):
                continue
            if begun is not None and begun[0] == chat:
                builder.start_like(begun[1])
            else:
                builder.start(chat)
            begun = chat, builder

    def sync(self, chats: Sequence[Chat]) -> bool:
        """Bring the tokens in step with messages that others added or edited.

        Returns:
            whether anything changed.
        """
        changed = False
        for builder, chat in zip(self.builders, chats, strict=True):
            before = len(builder.messages)
            dropped = builder.sync(chat)
            self.rewritten += dropped
            changed = changed or dropped > 0 or len(builder.messages) != before
        return changed

    def view(self) -> dict[str, Any]:
        """``tokens.prompt``, ``masks.prompt_assistant_mask`` and ``log_probs.prompt``, ragged."""
        prompts, masks, scores = [], [], []
        for builder in self.builders:
            opened = builder.generation_prompt()
            prompts.append(torch.tensor([*builder.ids, *opened], dtype=torch.int64))
            masks.append(torch.tensor([*builder.mask, *[False] * len(opened)], dtype=torch.bool))
            scores.append(torch.tensor([*builder.log_probs, *[0.0] * len(opened)], dtype=torch.float32))
        return {
            "tokens": Tokens.from_rows(prompt=prompts),
            "masks": Masks.from_rows(prompt_assistant_mask=masks),
            "log_probs": LogProbs.from_rows(prompt=scores),
        }

    # ---------------------------------------------------------------- what the policy wrote
    def record(self, tensordict: TensorDictBase, contents: Sequence[str | None]) -> bool:
        """Add the policy's turn to every row from ``tokens`` and ``log_probs``.

        Args:
            tensordict: what the policy returned.
            contents: the text of its messages; None: decode it from the tokens.

        Returns:
            False where the policy gave no tokens.

        Raises:
            EnvError: the policy's prompt is not the one it was given (``token_mismatch="raise"``).
        """
        sampled = self._sampled(tensordict)
        if sampled is None:
            return False
        for index, (builder, (prompt, ids, scores)) in enumerate(zip(self.builders, sampled, strict=True)):
            if prompt is not None and prompt != builder.prompt():
                self._mismatch(index, builder, prompt)
            builder.add_generated(ids, scores, contents[index])
        return True

    def _mismatch(self, index: int, builder: TokenBuilder, prompt: list[int]) -> None:
        if self.token_mismatch == "adopt":
            self.adopted += 1
            builder.adopt_prompt(prompt)
            return
        mine = builder.prompt()
        place = next(
            (i for i, (a, b) in enumerate(zip(mine, prompt, strict=False)) if a != b), min(len(mine), len(prompt))
        )
        around = slice(max(0, place - 8), place + 8)
        raise EnvError(
            f"row {index}: the policy was conditioned on other tokens than tokens.prompt: from place {place} on it has "
            f"{prompt[around]} ({builder.tokenizer.decode(prompt[around])!r}), the environment {mine[around]} "
            f"({builder.tokenizer.decode(mine[around])!r}). Let the policy read tokens.prompt (prefer_tokens=True, or "
            "input_mode='tokens') and use the environment's chat template; token_mismatch='adopt' takes the policy's "
            "prompt instead, and then trains the newest turn only"
        )

    def _sampled(
        self, tensordict: TensorDictBase
    ) -> list[tuple[list[int] | None, list[int], list[float] | None]] | None:
        """For each row the prompt (None where only the response is known), the sampled ids and their log-probs."""
        tokens = tensordict.get("tokens", None)
        if tokens is None:
            return None
        fulls, responses = self._rows(tensordict, "tokens", "full"), self._rows(tensordict, "tokens", "response")
        if fulls is None and responses is None:
            return None
        full_scores = self._rows(tensordict, "log_probs", "full")
        response_scores = self._rows(tensordict, "log_probs", "response")
        result: list[tuple[list[int] | None, list[int], list[float] | None]] = []
        for index, builder in enumerate(self.builders):
            if fulls is None:
                assert responses is not None
                ids, prompt = responses[index].tolist(), None
            else:
                whole = fulls[index].tolist()
                size = len(whole) - len(responses[index]) if responses is not None else len(builder.prompt())
                prompt, ids = whole[:size], whole[size:]
            scores = None
            if response_scores is not None:
                scores = response_scores[index].tolist()
            elif full_scores is not None and len(ids):
                scores = full_scores[index].tolist()[-len(ids) :]
            elif full_scores is not None:
                scores = []
            result.append((prompt, ids, scores))
        return result

    def _rows(self, tensordict: TensorDictBase, name: str, field: str) -> list[Tensor] | None:
        """The rows of a field without their padding; of padded data only "full", whose lengths a mask tells."""
        container = tensordict.get(name, None)
        rows = None if container is None else rows_of(container, field)
        if rows is None or not _is_padded(container):
            return rows
        if field != "full":
            return None
        masks = tensordict.get("masks", None)
        keep = None if masks is None else rows_of(masks, "all_attention_mask")
        if keep is None:
            raise KeyMissingError(
                f"{name}.full is padded, and masks.all_attention_mask, which tells the rows' lengths, is missing; let "
                "the policy write it, or ragged tokens (pad_output=False)"
            )
        return [row[mask] for row, mask in zip(rows, keep, strict=True)]


def _is_padded(container: Any) -> bool:
    flags = container.get("padded", None)
    return flags is True or (isinstance(flags, list) and any(flags))
