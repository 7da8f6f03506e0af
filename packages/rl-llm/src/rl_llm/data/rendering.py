"""Chats into texts and tokens through a template, with the mask of what an assistant says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDict, lazy_stack

from rl_core.errors import SpecError
from rl_llm.data.history import Chat, History
from rl_llm.data.parsing import IM_END, IM_START, render_chatml
from rl_llm.data.templates import CHATML_TEMPLATE, has_generation_marks, resolve_template
from rl_llm.data.tokenizer_protocol import Tokenizer

__all__ = ["RenderOptions", "control_strings", "refuse_special_tokens", "render_history", "render_text"]

_POLICIES = ("refuse", "assistant", "allow")
_MASKS = ("marks", "prefix_difference")


@dataclass(frozen=True, kw_only=True)
class RenderOptions:
    """The arguments of :meth:`History.apply_chat_template`."""

    add_generation_prompt: bool = True
    chat_template: str | None = None
    chat_template_name: str | None = None
    continue_final_message: bool = False
    tokenize: bool | None = None
    padding: bool = False
    truncation: bool = False
    return_tensors: str | None = None
    return_dict: bool | None = None
    return_assistant_tokens_mask: bool = False
    mask_end_of_turn: bool = True
    mask_by: str = "marks"
    special_tokens: str = "refuse"
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse options that contradict each other."""
        for name, value, admitted in (
            ("special_tokens", self.special_tokens, _POLICIES),
            ("mask_by", self.mask_by, _MASKS),
        ):
            if value not in admitted:
                raise SpecError(f"{name}={value!r}; it must be one of {', '.join(map(repr, admitted))}")
        if self.return_tensors not in (None, "pt"):
            raise SpecError(f"return_tensors={self.return_tensors!r}; only 'pt' is offered")
        if self.tokenize is False and (self.return_assistant_tokens_mask or self.return_tensors):
            raise SpecError("tokenize=False gives texts; a mask and tensors need tokens: leave tokenize out")
        if self.add_generation_prompt and self.continue_final_message:
            raise SpecError(
                "continue_final_message=True leaves the last message open: pass add_generation_prompt=False"
            )

    @property
    def gives_tokens(self) -> bool:
        """Whether tokens are asked for."""
        return bool(self.tokenize or self.return_assistant_tokens_mask or self.return_tensors)


def control_strings(tokenizer: Tokenizer | None, template: str) -> list[str]:
    """What a content must not hold: special tokens of the tokenizer, and ChatML's where the template has them.

    Returns:
        the longest first.
    """
    found = {mark for mark in (IM_START, IM_END) if mark in template}
    if tokenizer is not None:
        special = set(tokenizer.all_special_ids)
        found |= {text for text, token in tokenizer.get_added_vocab().items() if token in special}
    return sorted(found, key=lambda text: (-len(text), text))


def refuse_special_tokens(chat: Chat, controls: list[str], admitted: str = "refuse") -> None:
    """Check contents for control tokens.

    Args:
        chat: the messages.
        controls: from :func:`control_strings`.
        admitted: "refuse": nowhere; "assistant": in an assistant's turns; "allow": everywhere.

    Raises:
        SpecError: naming the message and the token.
    """
    for index, message in enumerate(chat):
        if admitted == "allow" or (admitted == "assistant" and message["role"] == "assistant"):
            continue
        for place in ("role", "content"):
            for control in controls:
                if control in message[place]:
                    raise SpecError(
                        f"the {place} of message {index} ({message['role']!r}) holds the control token {control!r}, "
                        "which would be read as the end or the start of a turn: "
                        f"{message[place][:80]!r}. Remove it from the data; where it is meant as text, build tokens "
                        "with TokenBuilder(..., special_tokens='escape'); special_tokens='allow' admits it as it is"
                    )


def render_text(chat: Chat, tokenizer: Tokenizer | None, template: str, **kwargs: Any) -> str:
    """One chat as a text; ``kwargs`` go to the template.

    Raises:
        SpecError: another template than the built-in one without a tokenizer, or structured calls that the built-in
            template does not show.
    """
    if template == CHATML_TEMPLATE:
        for message in chat:
            if message.get("tool_calls") or message.get("tool_responses"):
                raise SpecError(
                    "the built-in chatml_format shows role and content only, and a message has tool_calls or "
                    "tool_responses; write them into the content, or use the tokenizer's own template"
                )
    if tokenizer is None:
        if template != CHATML_TEMPLATE or set(kwargs) - {"add_generation_prompt", "continue_final_message"}:
            raise SpecError("only the built-in chatml_format can be rendered without a tokenizer; pass tokenizer=...")
        return render_chatml(chat, **kwargs)
    messages = [{key: value for key, value in message.items() if key != "is_complete"} for message in chat]
    return str(tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, **kwargs))


def render_history(history: History, tokenizer: Tokenizer | None, options: RenderOptions) -> Any:
    """See :meth:`History.apply_chat_template`."""
    if history.batch_dims == 0:
        raise SpecError("a single message cannot be rendered; a chat has batch size [T]: history.unsqueeze(0)")
    template = resolve_template(tokenizer, options.chat_template, options.chat_template_name)
    if options.return_assistant_tokens_mask and options.mask_by == "marks" and not has_generation_marks(template):
        raise SpecError(
            "the chat template has no generation marks, so the mask of assistant tokens would be all zero. Use "
            "chat_template_name='chatml_format', or put {% generation %} ... {% endgeneration %} around what the "
            "assistant says and its end-of-turn token, or ask for mask_by='prefix_difference'"
        )
    if history.batch_dims > 1:
        rows = [_render_row(row.to_chats(), tokenizer, template, options) for row in history.unbind(0)]
        return _batched(rows, tokenizer, options)
    return _single(_render_row(history.to_chats(), tokenizer, template, options), options)


def _render_row(chat: Any, tokenizer: Tokenizer | None, template: str, options: RenderOptions) -> Any:
    if chat and isinstance(chat[0], list):
        raise SpecError("a History of more than two batch dimensions is rendered after history.reshape(-1, ...)")
    refuse_special_tokens(chat, control_strings(tokenizer, template), options.special_tokens)
    turns = {
        "add_generation_prompt": options.add_generation_prompt,
        "continue_final_message": options.continue_final_message,
    }
    if not options.gives_tokens:
        return render_text(chat, tokenizer, template, **turns, **options.kwargs)
    if tokenizer is None:
        raise SpecError("tokens need a tokenizer: apply_chat_template(tokenizer=...)")
    from rl_llm.data.assistant_mask import tokens_with_mask

    return tokens_with_mask(chat, tokenizer, template, options)


def _as_tensordict(row: dict[str, list[int]]) -> TensorDict:
    dtypes = {"input_ids": torch.int64, "attention_mask": torch.bool, "assistant_masks": torch.bool}
    return TensorDict({name: torch.tensor(values, dtype=dtypes[name]) for name, values in row.items()})


def _single(row: Any, options: RenderOptions) -> Any:
    if not options.gives_tokens:
        return row
    if options.return_dict is False:
        return torch.tensor(row["input_ids"], dtype=torch.int64) if options.return_tensors else row["input_ids"]
    return _as_tensordict(row)


def _batched(rows: list[Any], tokenizer: Tokenizer | None, options: RenderOptions) -> Any:
    if not options.gives_tokens:
        return rows
    if options.padding:
        assert tokenizer is not None
        rows = _padded(rows, tokenizer)
    if options.return_dict is False:
        ids = [row["input_ids"] for row in rows]
        return torch.tensor(ids, dtype=torch.int64) if options.return_tensors else ids
    stacked = [_as_tensordict(row) for row in rows]
    return TensorDict.stack(stacked, 0) if options.padding else lazy_stack(stacked)


def _padded(rows: list[dict[str, list[int]]], tokenizer: Tokenizer) -> list[dict[str, list[int]]]:
    """Rows of one length, padded on the tokenizer's side; masks follow from lengths, not from ids."""
    if tokenizer.pad_token_id is None:
        raise SpecError("padding=True needs a pad token: set tokenizer.pad_token (it may be the eos token)")
    width = max(len(row["input_ids"]) for row in rows)
    left = getattr(tokenizer, "padding_side", "right") == "left"
    padded = []
    for row in rows:
        filled = {}
        for name, values in row.items():
            fill = [tokenizer.pad_token_id if name == "input_ids" else 0] * (width - len(values))
            filled[name] = fill + values if left else values + fill
        padded.append(filled)
    return padded
