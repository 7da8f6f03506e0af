"""``check_chat_template``: finds out before the first step whether a template can say which tokens to train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rl_core.errors import SpecError
from rl_llm.data.assistant_mask import end_of_turn
from rl_llm.data.history import Chat, History
from rl_llm.data.rendering import render_text
from rl_llm.data.templates import has_generation_marks, resolve_template
from rl_llm.data.tokenizer_protocol import Tokenizer

__all__ = ["TemplateReport", "check_chat_template", "check_prefix_preserving"]

_ANSWERS = ("<think>because</think>yes", "")


@dataclass(frozen=True, kw_only=True)
class TemplateReport:
    """What :func:`check_chat_template` found out.

    Args:
        template: the template itself.
        end_of_turn: the text of the token that ends an assistant's turn.
        stop_token_id: its id.
        mask_by: how assistant tokens are found, "marks" or "prefix_difference".
    """

    template: str
    end_of_turn: str
    stop_token_id: int
    mask_by: str


def _chats(answer: str) -> Chat:
    return [
        {"role": "user", "content": "why?"},
        {"role": "assistant", "content": _ANSWERS[0]},
        {"role": "user", "content": "sure?"},
        {"role": "assistant", "content": answer},
    ]


def check_chat_template(
    tokenizer: Tokenizer,
    template: str | None = None,
    *,
    chat_template_name: str | None = None,
    mask_by: str = "marks",
    stop_token_ids: Sequence[int] | None = None,
) -> TemplateReport:
    """Check that a template masks exactly what an assistant generates, and never rewrites earlier turns.

    Two chats of two turns are rendered, one with an empty last answer. In each, every assistant message must be
    masked from its first character to the token that ends its turn, that token must be one at which generation stops,
    and each turn must be a prefix of what follows.

    Args:
        tokenizer: the tokenizer.
        template: a jinja template; default: the one that :meth:`History.apply_chat_template` would take.
        chat_template_name: a registered template.
        mask_by: "prefix_difference" declares the fallback for templates without generation marks.
        stop_token_ids: the tokens at which generation stops; default: any.

    Returns:
        what was found: the template, its end-of-turn token.

    Raises:
        SpecError: the first thing that is wrong, with its cure.
    """
    template = resolve_template(tokenizer, template, chat_template_name)
    if mask_by == "marks" and not has_generation_marks(template):
        raise SpecError(
            "this chat template has no generation marks, so the mask of assistant tokens would be all zero and the "
            "loss 0. Use chat_template_name='chatml_format', or put {% generation %} ... {% endgeneration %} around "
            "what the assistant says, its end-of-turn token included, or declare mask_by='prefix_difference'"
        )
    check_prefix_preserving(tokenizer, template)
    stop = end_of_turn(tokenizer, template)
    stop_id = _stop_id(tokenizer, stop, stop_token_ids)
    for answer in _ANSWERS:
        _check_mask(_chats(answer), tokenizer, template, mask_by, stop, stop_id)
    return TemplateReport(template=template, end_of_turn=stop, stop_token_id=stop_id, mask_by=mask_by)


def check_prefix_preserving(tokenizer: Tokenizer | None, template: str, **kwargs: Any) -> None:
    """Check that the rendering of a chat is a prefix of the rendering of any chat that goes on from it.

    Raises:
        SpecError: a later message changes what was rendered before (reasoning dropped from earlier turns, for example).
    """
    chat = _chats("no")
    whole = render_text(chat, tokenizer, template, add_generation_prompt=False, **kwargs)
    for count in range(1, len(chat) + 1):
        header = chat[count - 1]["role"] == "user"
        part = render_text(chat[:count], tokenizer, template, add_generation_prompt=header, **kwargs)
        if not whole.startswith(part):
            shared = next((i for i, (a, b) in enumerate(zip(part, whole, strict=False)) if a != b), len(whole))
            raise SpecError(
                "this chat template is not prefix-preserving: a later message changes how an earlier one is rendered, "
                "so the second turn would not be conditioned on the tokens that the first one sampled. The first "
                f"{count} messages end in {part[shared : shared + 60]!r} where the whole chat has "
                f"{whole[shared : shared + 60]!r}. Use a training variant of the template that keeps all text, or "
                "chat_template_name='chatml_format', or chats of one turn"
            )


def _stop_id(tokenizer: Tokenizer, stop: str, stop_token_ids: Sequence[int] | None) -> int:
    ids = tokenizer.encode(stop, add_special_tokens=False) if stop else []
    if len(ids) != 1:
        raise SpecError(
            f"this chat template ends an assistant's turn with {stop!r}, which is {len(ids)} tokens of this tokenizer, "
            "not one: nothing would tell a model to stop. Add it to the tokenizer as a special token, or take a "
            "template that ends turns with the eos token"
        )
    admitted = [ids[0]] if stop_token_ids is None else list(stop_token_ids)
    if ids[0] not in admitted:
        raise SpecError(
            f"this chat template ends an assistant's turn with {stop!r} (id {ids[0]}), at which generation does not "
            f"stop (stop ids {admitted}); add it to the stop tokens"
        )
    return int(ids[0])


def _check_mask(chat: Chat, tokenizer: Tokenizer, template: str, mask_by: str, stop: str, stop_id: int) -> None:
    row = History.from_chats(chat).apply_chat_template(
        tokenizer=tokenizer,
        chat_template=template,
        add_generation_prompt=False,
        return_assistant_tokens_mask=True,
        mask_by=mask_by,
    )
    runs = _runs(row["input_ids"].tolist(), row["assistant_masks"].tolist())
    answers = [message["content"] for message in chat if message["role"] == "assistant"]
    wanted = [[*tokenizer.encode(answer, add_special_tokens=False), stop_id] for answer in answers]
    if runs == wanted:
        return
    if not runs:
        raise SpecError("the mask of assistant tokens is all zero: check the generation marks of this chat template")
    if [run[:-1] for run in wanted if len(run) > 1] == [run for run in runs if run]:
        raise SpecError(
            f"the generation marks of this chat template leave out the token {stop!r} that ends an assistant's turn: "
            "a model trained on it never learns to stop. Move {% endgeneration %} behind that token"
        )
    said = [tokenizer.decode(run) for run in runs]
    expected = [tokenizer.decode(run) for run in wanted]
    raise SpecError(
        f"the generation marks of this chat template cover {said}, an assistant generated {expected}; put them around "
        "the content and the end-of-turn token, and nothing else"
    )


def _runs(ids: list[int], mask: list[bool]) -> list[list[int]]:
    """The tokens of every unbroken stretch of the mask."""
    runs: list[list[int]] = []
    before = False
    for token, flag in zip(ids, mask, strict=True):
        if flag and not before:
            runs.append([])
        if flag:
            runs[-1].append(token)
        before = flag
    return runs
