"""``ChatEnv``: a conversation as an environment; the action is the policy's turn, the observation all turns so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, TensorDictBase

from rl_core import Composite, NonTensor, Transform, reset_rows
from rl_core.errors import EnvError, KeyMissingError, SpecError
from rl_core.specs import Categorical
from rl_llm.data.containers import ChatHistory, Text
from rl_llm.data.history import Chat, History
from rl_llm.data.template_check import check_prefix_preserving
from rl_llm.data.templates import resolve_template
from rl_llm.data.token_builder import TokenBuilder
from rl_llm.data.tokenizer_protocol import Tokenizer
from rl_llm.envs.conversation import Conversations
from rl_llm.envs.opening import opening_chats
from rl_llm.envs.row_merge import ChatRows, put_entries
from rl_llm.envs.text_turns import TextTurns

if TYPE_CHECKING:
    from rl_llm.envs.chat_transforms import ChatTransformedEnv

__all__ = ["ChatEnv"]

_MODES = ("history", "text", "tokens")
_TEMPLATE_NAMES = ("chat_template", "chat_template_name")


class ChatEnv(ChatRows):
    """A chat without reward or end of its own: a step makes what was said so far the next prompt.

    ``reset`` reads the question under ``data_key`` (a text, a History, chats as lists of dicts) and writes
    ``history.prompt`` (or ``text.prompt``, ``tokens.prompt``). The policy writes ``full`` beside it; ``step`` makes it
    the next prompt. With a tokenizer, in history and tokens mode, ``tokens.prompt`` is kept append-only: it begins with
    the very tokens that were sampled, and ends with the header of the policy's turn; ``masks.prompt_assistant_mask``
    and ``log_probs.prompt`` say which of them the policy generated, and how likely they were.

    Args:
        input_mode: what the policy reads: "history", "text" or "tokens" (needs a tokenizer).
        batch_size: ``(N,)`` chats.
        system_prompt: the first message of every chat that has none of that role.
        tokenizer: keeps tokens; renders texts.
        template_kwargs: ``chat_template`` or ``chat_template_name``, and further entries for the template.
        system_role: the role of the system prompt.
        user_role: the role of a text under ``data_key``.
        policy_role: the role of the policy's messages.
        data_key: where reset finds the question; default: "query".
        device: where end flags live; tokens stay on the CPU.
        max_turns: truncate after so many turns of the policy; None: never.
        special_tokens: contents of users and tools that hold control tokens: "refuse" or "escape" them.
        token_mismatch: a policy that was conditioned on other tokens than ``tokens.prompt``: "raise", or "adopt" its
            prompt.

    Raises:
        SpecError: an option is not admitted, or the template rewrites earlier turns although there may be several.

    Example:
        >>> env = ChatEnv(batch_size=(1,), system_prompt="Be brief.")
        >>> td = env.reset(TensorDict({"query": "2+2?"}, batch_size=[1]))
        >>> td["history"].prompt[0].to_chats()
        [{'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': '2+2?'}]
    """

    def __init__(
        self,
        *,
        input_mode: str = "history",
        batch_size: Sequence[int] | torch.Size | int = (1,),
        system_prompt: str | None = None,
        tokenizer: Tokenizer | None = None,
        template_kwargs: dict[str, Any] | None = None,
        system_role: str = "system",
        user_role: str = "user",
        policy_role: str = "assistant",
        data_key: str | None = None,
        device: torch.device | str | None = None,
        max_turns: int | None = None,
        special_tokens: str = "refuse",
        token_mismatch: str = "raise",
    ) -> None:
        size = torch.Size((batch_size,) if isinstance(batch_size, int) else batch_size)
        _check_options(input_mode, size, tokenizer, max_turns)
        super().__init__(device=device, batch_size=size)
        self.input_mode, self.system_prompt, self.tokenizer = input_mode, system_prompt, tokenizer
        self.system_role, self.user_role, self.policy_role = system_role, user_role, policy_role
        self.data_key = "query" if data_key is None else data_key
        self.max_turns = max_turns
        options = dict(template_kwargs or {})
        chosen = {name: options.pop(name) for name in _TEMPLATE_NAMES if name in options}
        self.template_kwargs = options
        self.template = resolve_template(tokenizer, **chosen)
        if max_turns != 1 and input_mode != "text" and tokenizer is not None:
            check_prefix_preserving(tokenizer, self.template, **options)
        self._turns = torch.zeros(size, dtype=torch.int64)
        self._conversations: Conversations | None = None
        if tokenizer is not None and input_mode != "text":
            self._conversations = Conversations(size[0], lambda: self._builder(special_tokens), token_mismatch)
        self._text_turns = TextTurns(tokenizer, self.template, options) if input_mode == "text" else None
        self._declare()

    def _builder(self, special_tokens: str) -> TokenBuilder:
        assert self.tokenizer is not None
        one_turn = self.max_turns == 1
        return TokenBuilder(
            self.tokenizer, self.template, special_tokens=special_tokens, one_turn=one_turn, **self.template_kwargs
        )

    def _declare(self) -> None:
        size = self.batch_size
        rows = NonTensor(shape=size, batched=True)
        observation = Composite(shape=size)
        if self.input_mode == "tokens":
            self.action_spec = Composite({"tokens": rows}, shape=size)
        else:
            observation.set((self.input_mode, "prompt"), rows)
            self.action_spec = Composite({(self.input_mode, "full"): rows}, shape=size)
        if self._conversations is not None:
            for name in ("tokens", "masks", "log_probs"):
                observation.set(name, rows)
        self.observation_spec = observation
        self.full_reward_spec = Composite(shape=size)
        flag = Categorical(2, shape=(*size, 1), dtype=torch.bool)
        self.done_spec = Composite({"done": flag, "terminated": flag.clone(), "truncated": flag.clone()}, shape=size)

    @classmethod
    def from_dataloader(cls, dataloader: Any, *, repeats: int | None = None, **kwargs: Any) -> ChatTransformedEnv:
        """A ChatEnv (``**kwargs`` are its arguments) whose resets are fed by a dataloader."""
        from rl_llm.envs.dataset import DataLoadingPrimer

        env = cls(**kwargs)
        return env.append_transform(DataLoadingPrimer(dataloader, repeats=repeats, data_key=env.data_key))

    def append_transform(self, transform: Transform | Callable[[TensorDictBase], TensorDictBase]) -> ChatTransformedEnv:
        """A new environment that passes this one's data through a transform, and keeps tokens in step with turns."""
        from rl_llm.envs.chat_transforms import ChatTransformedEnv

        return ChatTransformedEnv(self, transform)

    # ---------------------------------------------------------------- reset and step
    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        rows = reset_rows(tensordict)
        self._turns[slice(None) if rows is None else rows.cpu()] = 0
        if tensordict is None or tensordict.get(self.data_key, None) is None:
            raise KeyMissingError(
                f"ChatEnv.reset needs the question under {self.data_key!r}: "
                f"env.reset(TensorDict({{{self.data_key!r}: ['...']}}, batch_size={list(self.batch_size)})), or feed "
                "resets from data with DataLoadingPrimer or DatasetChatEnv"
            )
        chats = opening_chats(
            tensordict.get(self.data_key),
            self.batch_size[0],
            key=self.data_key,
            user_role=self.user_role,
            system=None if self.system_prompt is None else (self.system_role, self.system_prompt),
        )
        result: dict[str, Any] = {}
        size = self.batch_size
        if self._text_turns is not None:
            result["text"] = Text(prompt=[self._text_turns.open(chat) for chat in chats], batch_size=size)
        if self.input_mode == "history":
            result["history"] = ChatHistory(prompt=History.from_chats(chats), batch_size=size)
        if self._conversations is not None:
            self._conversations.start(chats, rows)
            result.update(self._conversations.view())
        return TensorDict(result, batch_size=size, device=self.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        result: dict[str, Any] = {}
        size = self.batch_size
        if self._text_turns is not None:
            result["text"] = Text(prompt=self._text_turns.advance(tensordict), batch_size=size)
        elif self.input_mode == "history":
            full = self._full_history(tensordict)
            self._record(tensordict, self._prompts(tensordict), full)
            result["history"] = ChatHistory(prompt=History.from_chats(full), batch_size=size)
        elif self._conversations is not None and not self._conversations.record(tensordict, [None] * size[0]):
            raise EnvError("the policy wrote neither tokens.full nor tokens.response, which tokens mode reads")
        if self._conversations is not None:
            result.update(self._conversations.view())
        self._turns += 1
        over = torch.zeros_like(self._turns, dtype=torch.bool)
        if self.max_turns is not None:
            over = self._turns >= self.max_turns
        truncated = over.unsqueeze(-1)
        result |= {"terminated": torch.zeros_like(truncated), "truncated": truncated, "done": truncated.clone()}
        return TensorDict(result, batch_size=size, device=self.device)

    def _full_history(self, tensordict: TensorDictBase) -> list[Chat]:
        """All messages after the policy's turn, one chat per row."""
        full = tensordict.get("history").full
        if not isinstance(full, History):
            raise EnvError(
                "the policy wrote no history.full, which a ChatEnv in history mode makes the next prompt; got "
                f"{type(full).__name__}"
            )
        chats: list[Chat] = full.to_chats()
        return chats

    def _prompts(self, tensordict: TensorDictBase) -> list[Chat]:
        prompt = tensordict.get("history").prompt
        if not isinstance(prompt, History):
            raise EnvError(
                "step reads history.prompt, which reset wrote, beside the policy's history.full; the policy replaced "
                "the entry: write its answer into the ChatHistory that it was given"
            )
        chats: list[Chat] = prompt.to_chats()
        return chats

    def _record(self, tensordict: TensorDictBase, prompts: list[Chat], fulls: list[Chat]) -> None:
        if self._conversations is None:
            return
        self._conversations.sync(prompts)
        contents = [
            full[len(prompt)]["content"] if len(full) > len(prompt) else None
            for prompt, full in zip(prompts, fulls, strict=True)
        ]
        self._conversations.record(tensordict, contents)
        self._conversations.sync(fulls)

    def in_step(self, result: TensorDictBase) -> TensorDictBase:
        """Rewrite the tokens of a reset's or a step's output where transforms added or edited messages."""
        history = result.get("history", None)
        if self._conversations is None or self.input_mode != "history" or history is None:
            return result
        if self._conversations.sync(history.prompt.to_chats()):
            put_entries(result, self._conversations.view())
        return result

    # ---------------------------------------------------------------- life
    def get_stats(self) -> dict[str, int]:
        """How many prompts of the policy were adopted, and how many recorded messages were rewritten by others."""
        if self._conversations is None:
            return {"adopted_prompts": 0, "rewritten_messages": 0}
        return {
            "adopted_prompts": self._conversations.adopted,
            "rewritten_messages": self._conversations.rewritten,
        }

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """There are no random actions: a turn needs a policy."""
        raise EnvError("a ChatEnv has no random actions: give rollout a policy, which writes the assistant's turn")


def _check_options(input_mode: str, size: torch.Size, tokenizer: Tokenizer | None, max_turns: int | None) -> None:
    if input_mode not in _MODES:
        raise SpecError(f"input_mode={input_mode!r}; it must be one of {', '.join(map(repr, _MODES))}")
    if len(size) != 1 or size[0] < 1:
        raise SpecError(f"ChatEnv has one batch dimension, (N,) with N >= 1; got batch_size={tuple(size)}")
    if input_mode == "tokens" and tokenizer is None:
        raise SpecError("input_mode='tokens' needs a tokenizer: ChatEnv(tokenizer=...)")
    if max_turns is not None and max_turns < 1:
        raise SpecError(f"max_turns={max_turns}; it is at least 1, or None")
