"""The provider ``chat`` of the registry: ``registry.envs.make("chat:letters", tokenizer=tokenizer)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rl_core.registry import unknown_id
from rl_llm.envs.dataset import DatasetChatEnv
from rl_llm.envs.tasks.addition import addition_data, addition_reward
from rl_llm.envs.tasks.letters import letters_data, letters_reward

__all__ = ["ChatProvider"]


class Task(NamedTuple):
    """Data, and what answers are worth."""

    about: str
    data: Callable[[], list[dict[str, str]]]
    reward: Callable[..., float]


_TASKS = {
    "letters": Task(
        "repeat the letter of the prompt; the reward is the share of the answer's characters that equal it",
        letters_data,
        letters_reward,
    ),
    "addition": Task(
        "add two digits modulo ten; the reward is 1 for the digit and nothing else", addition_data, addition_reward
    ),
}


class ChatProvider:
    """Makes chats over the tasks in ``rl_llm.envs.tasks``, which need no download."""

    def make(
        self,
        id: str,
        *,
        tokenizer: Any = None,
        num_envs: int = 1,
        repeats: int | None = None,
        group_repeats: bool | None = None,
        **kwargs: Any,
    ) -> DatasetChatEnv:
        """Build the chat of a task.

        Args:
            id: "letters" or "addition".
            tokenizer: see DatasetChatEnv.
            num_envs: prompts at a time.
            repeats: answers to each prompt.
            group_repeats: whether they stand side by side; default: where there are several.
            **kwargs: of DatasetChatEnv; ``dataset`` and ``reward`` replace those of the task.
        """
        task = self._task(id)
        given: dict[str, Any] = {"dataset": task.data(), "reward": [task.reward], **kwargs}
        return DatasetChatEnv(
            tokenizer=tokenizer,
            num_envs=num_envs,
            repeats=repeats,
            group_repeats=repeats is not None if group_repeats is None else group_repeats,
            **given,
        )

    def ids(self) -> list[str]:
        """The names of the tasks."""
        return sorted(_TASKS)

    def describe(self, id: str) -> str:
        """What is asked, and what is paid."""
        return f"{id}: {self._task(id).about}"

    def _task(self, id: str) -> Task:
        if id not in _TASKS:
            raise unknown_id("chat", id, self.ids())
        return _TASKS[id]
