"""ChatML texts back into messages, exactly: no content is stripped, and an ambiguous text is an error."""

from __future__ import annotations

from rl_core.errors import SpecError

__all__ = ["IM_END", "IM_START", "parse_chatml", "render_chatml"]

IM_START = "<|im_start|>"
IM_END = "<|im_end|>"


def render_chatml(
    messages: list[dict[str, object]], *, add_generation_prompt: bool = False, continue_final_message: bool = False
) -> str:
    """The built-in template without jinja: the same text, for use without a tokenizer."""
    parts = [f"{IM_START}{message['role']}\n{message['content']}{IM_END}\n" for message in messages]
    if continue_final_message and parts:
        parts[-1] = parts[-1].removesuffix(f"{IM_END}\n")
    if add_generation_prompt:
        parts.append(f"{IM_START}assistant\n")
    return "".join(parts)


def parse_chatml(text: str) -> list[dict[str, object]]:
    """Messages of a ChatML text.

    The line break after the last end marker may be absent (a model stops at the marker). A last message without an end
    marker is incomplete; an empty last turn of the assistant, which is a generation prompt, is dropped.

    Raises:
        SpecError: text outside of a message, no role, or a control token inside a content.
    """
    messages: list[dict[str, object]] = []
    rest = text
    while rest:
        if not rest.startswith(IM_START):
            raise _ambiguous(text, len(text) - len(rest), f"{IM_START!r} should stand here")
        role, newline, rest = rest[len(IM_START) :].partition("\n")
        if not newline or not role or IM_END in role or IM_START in role:
            raise _ambiguous(text, len(text) - len(rest), "a role and a line break should stand before this place")
        content, end, rest = rest.partition(IM_END)
        if IM_START in content:
            raise _ambiguous(text, len(text) - len(rest) - len(end), f"the content before this place has {IM_START!r}")
        if end and rest not in ("", "\n") and not rest.startswith(f"\n{IM_START}"):
            raise _ambiguous(text, len(text) - len(rest), f"a content has {IM_END!r} in it")
        rest = rest.removeprefix("\n") if end else ""
        if not end and not content and role == "assistant":
            break
        messages.append({"role": role, "content": content} | ({} if end else {"is_complete": False}))
    return messages


def _ambiguous(text: str, place: int, what: str) -> SpecError:
    return SpecError(
        f"this text is not one that the chatml template makes of messages: {what}, at character {place}: "
        f"{text[max(0, place - 30) : place + 30]!r}. Keep messages as a History, or tokens as tokens, and never parse "
        "what a user, a tool or a model wrote"
    )
