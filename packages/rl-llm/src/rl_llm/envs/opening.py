"""The first messages of chats, from whatever stands under an environment's data key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensordict import NonTensorData, NonTensorStack

from rl_core.errors import SpecError
from rl_llm.data.history import Chat, History

__all__ = ["opening_chats"]


def opening_chats(
    value: Any, count: int, *, key: str, user_role: str = "user", system: tuple[str, str] | None = None
) -> list[Chat]:
    """One chat per row.

    Args:
        value: a text for all rows, or texts, chats (lists of dicts) or a History ``[B, T]``, one per row.
        count: the number of rows.
        key: the entry's name, for messages.
        user_role: the role of a text.
        system: role and content of a first message for chats that do not begin with one of that role.

    Raises:
        SpecError: a value of another kind, or not one per row.
    """
    rows = _rows(value, count)
    if len(rows) != count:
        raise SpecError(f"{key!r} holds {len(rows)} questions for {count} chats; give one per chat")
    chats = []
    for index, row in enumerate(rows):
        if isinstance(row, str):
            chat: Chat = [{"role": user_role, "content": row}]
        elif isinstance(row, (list, tuple)) and row and all(isinstance(message, Mapping) for message in row):
            chat = [dict(message) for message in row]
        else:
            raise SpecError(
                f"row {index} of {key!r} is {type(row).__name__} {row!r:.80}; a question is a text, or a chat: a list "
                "of {'role': ..., 'content': ...}, or a History of batch size [B, T]"
            )
        if system is not None and chat[0]["role"] != system[0]:
            chat.insert(0, {"role": system[0], "content": system[1]})
        chats.append(chat)
    return chats


def _rows(value: Any, count: int) -> list[Any]:
    if isinstance(value, History):
        chats = value.to_chats()
        return [chats] if value.batch_dims == 1 else chats
    if isinstance(value, NonTensorData):
        value = value.data
        whole = isinstance(value, str) or (isinstance(value, list) and bool(value) and isinstance(value[0], Mapping))
        return [value] * count if whole or not isinstance(value, list) else value
    if isinstance(value, NonTensorStack):
        return list(value.tolist())
    if isinstance(value, str):
        return [value] * count
    return list(value) if isinstance(value, (list, tuple)) else [value]
