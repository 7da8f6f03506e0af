"""Tokens of a rendered chat with the mask of what the assistant says, from marks or by prefix difference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rl_core.errors import SpecError
from rl_llm.data.tokenizer_protocol import Tokenizer

if TYPE_CHECKING:
    from rl_llm.data.history import Chat
    from rl_llm.data.rendering import RenderOptions

__all__ = ["end_of_turn", "tokens_with_mask"]

_PROBE = "x"


def tokens_with_mask(chat: Chat, tokenizer: Tokenizer, template: str, options: RenderOptions) -> dict[str, list[int]]:
    """One chat as ``input_ids``, ``attention_mask`` and, where asked for, ``assistant_masks``."""
    from rl_llm.data.rendering import render_text

    turns: dict[str, Any] = {
        "add_generation_prompt": options.add_generation_prompt,
        "continue_final_message": options.continue_final_message,
    }
    if options.return_assistant_tokens_mask and options.mask_by == "marks":
        row = _with_marks(chat, tokenizer, template, turns, options)
    else:
        text = render_text(chat, tokenizer, template, **turns, **_template_kwargs(options.kwargs))
        encoded = tokenizer(
            text,
            add_special_tokens=False,
            return_offsets_mapping=options.return_assistant_tokens_mask,
            truncation=options.truncation,
            **_tokenizer_kwargs(options.kwargs),
        )
        row = {"input_ids": list(encoded["input_ids"])}
        if options.return_assistant_tokens_mask:
            spans = _spans(chat, tokenizer, template, _template_kwargs(options.kwargs))
            row["assistant_masks"] = [
                int(stop > start and any(a <= start and stop <= b for a, b in spans))
                for start, stop in encoded["offset_mapping"]
            ]
    if options.return_assistant_tokens_mask and not options.mask_end_of_turn:
        _drop_end_of_turn(row, tokenizer, template)
    return {"input_ids": row["input_ids"], "attention_mask": [1] * len(row["input_ids"]), **row}


def _with_marks(
    chat: Chat, tokenizer: Tokenizer, template: str, turns: dict[str, Any], options: RenderOptions
) -> dict[str, list[int]]:
    messages = [{key: value for key, value in message.items() if key != "is_complete"} for message in chat]
    encoded = tokenizer.apply_chat_template(
        messages,
        chat_template=template,
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
        truncation=options.truncation,
        **turns,
        **options.kwargs,
    )
    return {
        "input_ids": [int(token) for token in encoded["input_ids"]],
        "assistant_masks": [int(flag) for flag in encoded["assistant_masks"]],
    }


def _template_kwargs(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name != "max_length"}


def _tokenizer_kwargs(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name == "max_length"}


def _spans(chat: Chat, tokenizer: Tokenizer, template: str, kwargs: dict[str, Any]) -> list[tuple[int, int]]:
    """Where the assistant speaks: what each of its messages adds to the header of its turn, end-of-turn included.

    Raises:
        SpecError: a message changes what was rendered before it.
    """
    from rl_llm.data.rendering import render_text

    stop = end_of_turn(tokenizer, template)
    spans = []
    for index, message in enumerate(chat):
        if message["role"] != "assistant":
            continue
        before = render_text(chat[:index], tokenizer, template, add_generation_prompt=True, **kwargs)
        after = render_text(chat[: index + 1], tokenizer, template, add_generation_prompt=False, **kwargs)
        whole = render_text(chat, tokenizer, template, add_generation_prompt=False, **kwargs)
        if not after.startswith(before) or not whole.startswith(after):
            raise SpecError(
                f"the template is not prefix-preserving: message {index} or a later one changes what is rendered "
                "before it, so its tokens cannot be found by difference. Use a template with generation marks"
            )
        place = after.rfind(stop) if stop else -1
        end = place + len(stop) if place >= len(before) else len(before) + len(after[len(before) :].rstrip())
        spans.append((len(before), end))
    return spans


def end_of_turn(tokenizer: Tokenizer, template: str) -> str:
    """The text that ends an assistant's turn: the first special token that the template puts after its content."""
    from rl_llm.data.rendering import control_strings, render_text

    asked = [{"role": "user", "content": _PROBE}]
    header = render_text(asked, tokenizer, template, add_generation_prompt=True)
    answered = render_text(
        [*asked, {"role": "assistant", "content": _PROBE}], tokenizer, template, add_generation_prompt=False
    )
    closing = answered[len(header) + len(_PROBE) :] if answered.startswith(header + _PROBE) else ""
    places = [(closing.index(text), text) for text in control_strings(tokenizer, template) if text in closing]
    return min(places)[1] if places else ""


def _drop_end_of_turn(row: dict[str, list[int]], tokenizer: Tokenizer, template: str) -> None:
    stop = end_of_turn(tokenizer, template)
    if not stop:
        return
    ids = tokenizer.encode(stop, add_special_tokens=False)
    mask = row["assistant_masks"]
    for index, flag in enumerate(mask):
        last = index + 1 == len(mask) or not mask[index + 1]
        if flag and last and row["input_ids"][max(0, index + 1 - len(ids)) : index + 1] == ids:
            mask[index + 1 - len(ids) : index + 1] = [0] * len(ids)
