"""``History``: the messages of a chat (or of a batch of chats) as a tensor class, one message per element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from tensordict import LazyStackedTensorDict, NonTensorData, TensorClass, lazy_stack
from typing_extensions import Self

from rl_core.errors import SpecError
from rl_core.specs import Composite, NonTensor
from rl_llm.data.tokenizer_protocol import Tokenizer

__all__ = ["FILLER_ROLE", "Chat", "History", "Message"]

Message = dict[str, Any]
Chat = list[Message]

FILLER_ROLE = "<none>"
"""The role of elements that only fill a ragged batch; they are dropped when a chat is rendered or listed."""

_OPTIONAL = ("tool_calls", "tool_responses")


class History(TensorClass, nocast=True):
    """Messages: batch size ``[T]`` for one chat, ``[*B, T]`` for a batch of chats, ragged in T.

    ``role`` and ``content`` come back as (nested) lists; ``history[..., -1]`` is the last message of every chat.

    Args:
        role: who speaks: "system", "user", "assistant", "tool", ...
        content: the text.
        is_complete: whether the message was ended by its author (False: cut by a limit).
        tool_calls: structured calls, a list of dicts, or None.
        tool_responses: structured results, a list of dicts, or None.

    Example:
        >>> chat = History.from_chats([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}])
        >>> chat.batch_size, chat[-1].content
        (torch.Size([2]), 'yo')
        >>> chat.append(History(role="user", content="bye", batch_size=[])).to_chats()[-1]
        {'role': 'user', 'content': 'bye'}
    """

    role: str
    content: str
    is_complete: bool = True
    tool_calls: list[Any] | None = None
    tool_responses: list[Any] | None = None

    # ---------------------------------------------------------------- chats as lists of dicts
    @classmethod
    def from_chats(cls, chats: Sequence[Any]) -> Self:
        """Messages from dicts with "role" and "content" (and "is_complete", "tool_calls", "tool_responses").

        Args:
            chats: a list of dicts -> ``[T]``; a list of chats -> ``[B, T]`` (lists nest further).

        Raises:
            SpecError: nothing to stack, or a message without role or content, or with an unknown entry.
        """
        if not chats:
            raise SpecError("History.from_chats got no message; a chat has at least one, {'role': ..., 'content': ...}")
        if isinstance(chats[0], Mapping):
            return lazy_stack([cls._message(message) for message in chats])
        return lazy_stack([cls.from_chats(chat) for chat in chats])

    @classmethod
    def _message(cls, message: Mapping[str, Any]) -> Self:
        unknown = set(message) - {"role", "content", "is_complete", *_OPTIONAL}
        if unknown or not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
            raise SpecError(
                f"a message needs the texts 'role' and 'content', and may have is_complete, {', '.join(_OPTIONAL)}; "
                f"got {dict(message)!r}"
            )
        structured: dict[str, Any] = {
            name: NonTensorData(message[name]) for name in _OPTIONAL if message.get(name, None) is not None
        }
        return cls(
            role=message["role"],
            content=message["content"],
            is_complete=message.get("is_complete", True),
            batch_size=[],
            **structured,
        )

    def to_chats(self) -> Any:
        """The inverse of :meth:`from_chats`; fillers are dropped, ``is_complete`` is given where it is False."""
        if self.batch_dims == 0:
            return self._as_message()
        rows = [row.to_chats() for row in self.unbind(0)]
        if self.batch_dims == 1:
            return [message for message in rows if message["role"] != FILLER_ROLE]
        return rows

    def _as_message(self) -> Message:
        message: Message = {"role": self.role, "content": self.content}
        if not self.is_complete:
            message["is_complete"] = False
        for name in _OPTIONAL:
            value = self.get(name, None)
            if value is not None:
                message[name] = list(value)
        return message

    # ---------------------------------------------------------------- growing
    def append(self, history: History, *, inplace: bool = True, dim: int = -1) -> Self:
        """Add one message to every chat.

        Args:
            history: a batch size with one dimension less than this one's: ``[]`` for ``[T]``, ``[B]`` for ``[B, T]``.
            inplace: change this History, else return a new one.
            dim: the dimension that grows; only the last one, that of messages, has single elements to add.

        Raises:
            SpecError: the batch dimensions do not fit.
        """
        if self.batch_dims < 1 or history.batch_dims != self.batch_dims - 1 or dim not in (-1, self.batch_dims - 1):
            raise SpecError(
                f"History.append to batch size {tuple(self.batch_size)} along dim {dim} needs a message of batch size "
                f"{tuple(self.batch_size[:-1])} and the last dimension, got {tuple(history.batch_size)}. To join "
                "chats use extend"
            )
        return self._grown(_last_level(self), [[message] for message in _elements(history)], inplace)

    def extend(self, history: History, *, inplace: bool = True, dim: int = 0) -> Self:
        """Add another History's elements along a dimension: 0 is that of chats in a batch, -1 that of messages.

        Raises:
            SpecError: the batch dimensions do not fit.
        """
        if history.batch_dims != self.batch_dims or not -self.batch_dims <= dim < self.batch_dims:
            raise SpecError(
                f"History.extend needs as many batch dimensions on both sides and a dim among them, got "
                f"{tuple(self.batch_size)}, {tuple(history.batch_size)} and dim {dim}"
            )
        if dim % self.batch_dims == self.batch_dims - 1:
            added = [list(chat.unbind(0)) for chat in _last_level(history)]
            return self._grown(_last_level(self), added, inplace)
        if dim % self.batch_dims != 0:
            raise SpecError(
                f"History.extend along dim {dim} of {self.batch_dims}: only the first and the last can grow"
            )
        chats: list[Any] = [*self.unbind(0), *self._moved(history).unbind(0)]
        joined = lazy_stack(chats)
        return self._become(joined) if inplace else cast(Self, joined)

    def _grown(self, chats: list[History], added: list[list[History]], inplace: bool) -> Self:
        if len(chats) != len(added):
            raise SpecError(f"got messages for {len(added)} chats, this History has {len(chats)}")
        grown: list[Any] = []
        for chat, more in zip(chats, added, strict=True):
            messages: list[Any] = [*chat.unbind(0), *(chat._moved(message) for message in more)]
            grown.append(lazy_stack(messages))
        result = _rebuild(self, iter(grown))
        return self._become(result) if inplace else cast(Self, result)

    def _moved(self, history: History) -> History:
        return history if self.device is None or history.device == self.device else history.to(self.device)

    def _become(self, other: Any) -> Self:
        """Take over another History's elements; a lazy stack keeps its identity, so its owner sees the change."""
        mine, theirs = self.__dict__["_tensordict"], other._tensordict
        if isinstance(mine, LazyStackedTensorDict) and isinstance(theirs, LazyStackedTensorDict):
            _replace_elements(mine, theirs)
        else:
            self.__dict__["_tensordict"] = theirs
        return self

    # ---------------------------------------------------------------- texts and tokens
    def apply_chat_template(
        self,
        *,
        tokenizer: Tokenizer | None = None,
        add_generation_prompt: bool = True,
        chat_template: str | None = None,
        chat_template_name: str | None = None,
        continue_final_message: bool = False,
        tokenize: bool | None = None,
        padding: bool = False,
        truncation: bool = False,
        return_tensors: str | None = None,
        return_dict: bool | None = None,
        return_assistant_tokens_mask: bool = False,
        mask_end_of_turn: bool = True,
        mask_by: str = "marks",
        special_tokens: str = "refuse",
        **kwargs: Any,
    ) -> Any:
        """Render every chat as a text, or as tokens.

        The template is the one given, else the one named, else one registered for the tokenizer's family
        (:func:`rl_llm.add_chat_template`), else the tokenizer's own, else "chatml_format".

        Args:
            tokenizer: needed unless the built-in template is rendered as a text.
            add_generation_prompt: end with the header of the policy's turn.
            chat_template: a jinja template.
            chat_template_name: a registered template.
            continue_final_message: leave the last message open.
            tokenize: give tokens; default: where a mask or tensors are asked for.
            padding: dense ``[B, L]`` tokens, padded on the tokenizer's side.
            truncation: cut to ``max_length`` (a keyword of the tokenizer).
            return_tensors: "pt"; tokens are tensors anyway in a TensorDict.
            return_dict: a TensorDict with "input_ids" and "attention_mask" (default), else the ids alone.
            return_assistant_tokens_mask: add "assistant_masks", bool, True on what an assistant says.
            mask_end_of_turn: keep the token that ends an assistant's turn in the mask.
            mask_by: "marks": the template's generation marks; "prefix_difference": what each assistant message adds to
                the rendering, for templates without marks.
            special_tokens: contents that hold special tokens: "refuse" them, admit them in "assistant" turns only, or
                "allow" them (they become control tokens, so a user or a tool can forge turns).
            **kwargs: for the template and the tokenizer (``tools``, ``max_length``, ...).

        Returns:
            a text or a TensorDict for ``[T]``, a list or a lazy stack of them for ``[B, T]``.

        Raises:
            SpecError: a content holds special tokens, or a mask is asked of a template without generation marks.
        """
        from rl_llm.data.rendering import RenderOptions, render_history

        options = RenderOptions(
            add_generation_prompt=add_generation_prompt,
            chat_template=chat_template,
            chat_template_name=chat_template_name,
            continue_final_message=continue_final_message,
            tokenize=tokenize,
            padding=padding,
            truncation=truncation,
            return_tensors=return_tensors,
            return_dict=return_dict,
            return_assistant_tokens_mask=return_assistant_tokens_mask,
            mask_end_of_turn=mask_end_of_turn,
            mask_by=mask_by,
            special_tokens=special_tokens,
            kwargs=kwargs,
        )
        return render_history(self, tokenizer, options)

    @classmethod
    def from_text(
        cls,
        text: str | Sequence[str],
        chat_template_name: str | None = None,
        *,
        tokenizer: Tokenizer | None = None,
    ) -> Self:
        """Messages from a rendered text, the inverse of a template; contents come back to the last blank.

        Args:
            text: one text -> ``[T]``; a list -> ``[B, T]``.
            chat_template_name: the built-in "chatml_format" (the default), or a registered one that has an inverse.
            tokenizer: its family's registered template is taken, where there is one and no name is given.

        Raises:
            SpecError: the text was not made by the template, or a content holds its control tokens.
        """
        from rl_llm.data.templates import inverse_parser

        parse = inverse_parser(chat_template_name, tokenizer)
        if isinstance(text, str):
            return cls.from_chats(parse(text))
        return cls.from_chats([parse(one) for one in text])

    @classmethod
    def default_spec(cls, shape: Sequence[int] = (-1,)) -> Composite:
        """A Composite with a NonTensor for each field."""
        size = tuple(shape)
        examples: dict[str, Any] = {"role": "user", "content": "a text", "is_complete": True}
        fields = (*examples, *_OPTIONAL)
        return Composite({name: NonTensor(shape=size, example_data=examples.get(name)) for name in fields}, shape=size)


def _elements(history: History) -> list[History]:
    """Every message, batch dimensions flattened."""
    if history.batch_dims == 0:
        return [history]
    return [message for row in history.unbind(0) for message in _elements(row)]


def _last_level(history: History) -> list[History]:
    """Every chat ``[T]``, batch dimensions flattened."""
    if history.batch_dims == 1:
        return [history]
    return [chat for row in history.unbind(0) for chat in _last_level(row)]


def _rebuild(like: History, chats: Any) -> Any:
    """The batch structure of ``like`` around new chats."""
    if like.batch_dims == 1:
        return next(chats)
    return lazy_stack([_rebuild(row, chats) for row in like.unbind(0)])


def _replace_elements(mine: Any, theirs: Any) -> None:
    """Make one lazy stack hold what another holds, level by level, keeping the objects that exist."""
    olds, news = list(mine.tensordicts), list(theirs.tensordicts)
    same = mine.stack_dim == theirs.stack_dim
    for index, new in enumerate(news):
        if not same or index >= len(olds):
            break
        old = olds[index]
        if isinstance(old, LazyStackedTensorDict) and isinstance(new, LazyStackedTensorDict):
            _replace_elements(old, new)
            news[index] = old
    mine.stack_dim = theirs.stack_dim
    mine.tensordicts = news
