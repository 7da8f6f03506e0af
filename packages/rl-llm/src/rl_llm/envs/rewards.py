"""``RewardFunctions``: weighted reward functions over completions, as a transform of a chat environment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import NonTensorData, TensorDictBase
from tensordict.utils import is_non_tensor
from torch import Tensor

from rl_core import Composite, Transform, Unbounded, reset_rows
from rl_core.errors import EnvError, KeyMissingError, SpecError
from rl_llm.data.containers import rows_of
from rl_llm.data.history import Chat
from rl_llm.data.parsing import IM_END
from rl_llm.data.tokenizer_protocol import Tokenizer
from rl_llm.envs.reward_calls import RewardBatch, RewardCall

__all__ = ["RewardFunctions"]

_COMBINATIONS = ("mean", "sum")
_FORMATS = ("text", "messages")
_OWN = ("history", "text", "tokens", "masks", "log_probs", "next", "group_id", "_reset")


class RewardFunctions(Transform):
    r"""Scores completions with one or several functions.

    .. math:: r = \sum_{i \in A} w_i r_i \Big/ \sum_{i \in A} |w_i|

    where A are the functions that are applicable (gave a number, not None); ``combine="sum"`` leaves out the division.
    Writes ``("rewards", name)``, NaN where not applicable, and ``reward``, each float ``[*B, 1]``.

    A function with a parameter ``completion`` is called for each row, with the columns that it names::

        def exact(completion, answer): return float(completion == answer)

    Any other is called once with the keywords prompts, completions, completion_ids, every column of the data, and
    trainer_state, log_metric(name, value), log_extra(column, values) as far as its signature takes them, and returns a
    list of numbers or None. Both kinds may be async.

    Args:
        functions: the functions, or (name, function) pairs.
        weights: one for each; default: 1.
        combine: "mean" or "sum".
        set_done: end the episode at every step that is scored (chats of one turn). False: score rows when they end by
            another cause, and give 0 (components NaN) before.
        completion_format: "text": the policy's last text; "messages": all messages since the question, as dicts, tools'
            turns among them.
        tokenizer: decodes completions in tokens mode.
        data_key: the column with the question.
        trainer_state: handed through.

    Raises:
        SpecError: an option is not admitted, two functions of one name.
    """

    def __init__(
        self,
        functions: Sequence[Callable[..., Any] | tuple[str, Callable[..., Any]]],
        weights: Sequence[float] | None = None,
        *,
        combine: str = "mean",
        set_done: bool = True,
        completion_format: str = "text",
        tokenizer: Tokenizer | None = None,
        data_key: str = "query",
        trainer_state: Any = None,
    ) -> None:
        super().__init__()
        self.calls = [RewardCall(f[1], f[0]) if isinstance(f, tuple) else RewardCall(f) for f in functions]
        self.weights = [1.0] * len(self.calls) if weights is None else [float(weight) for weight in weights]
        names = [call.name for call in self.calls]
        if not names or len(set(names)) != len(names) or len(self.weights) != len(names):
            raise SpecError(
                f"RewardFunctions needs at least one function, distinct names (pass (name, function) pairs) and one "
                f"weight for each; got the names {names} and {len(self.weights)} weights"
            )
        if combine not in _COMBINATIONS or completion_format not in _FORMATS:
            raise SpecError(
                f"combine={combine!r} is one of {_COMBINATIONS}, "
                f"completion_format={completion_format!r} one of {_FORMATS}"
            )
        if combine == "mean" and not any(self.weights):
            raise SpecError(f"the weights {self.weights} are all 0, which has no weighted mean")
        self.combine, self.set_done, self.completion_format = combine, set_done, completion_format
        self.tokenizer, self.data_key, self.trainer_state = tokenizer, data_key, trainer_state
        self._openings: list[int] = []
        self._metrics: dict[str, list[float]] = defaultdict(list)
        self._extras: dict[str, list[Any]] = defaultdict(list)

    # ---------------------------------------------------------------- reset and step
    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        history = tensordict_reset.get("history", None)
        if history is not None:
            sizes = [len(chat) for chat in history.prompt.to_chats()]
            rows = reset_rows(tensordict)
            old = self._openings if rows is not None and len(self._openings) == len(sizes) else sizes
            self._openings = [n if rows is None or bool(rows[i]) else old[i] for i, n in enumerate(sizes)]
        return tensordict_reset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        count = tensordict.batch_size.numel()
        done = next_tensordict.get("done").reshape(-1)
        scored = list(range(count)) if self.set_done else done.nonzero().flatten().tolist()
        device = next_tensordict.device
        values = torch.full((len(self.calls), count), float("nan"))
        reward = torch.zeros(count)
        if scored:
            batch = self._batch(tensordict, next_tensordict, scored)
            for index, call in enumerate(self.calls):
                values[index, scored] = torch.tensor(call(batch))
            reward[scored] = self._combined(values[:, scored], scored)
        size = (*tensordict.batch_size, 1)
        for call, column in zip(self.calls, values, strict=True):
            next_tensordict.set(("rewards", call.name), column.reshape(size).to(device or "cpu"))
        next_tensordict.set("reward", reward.reshape(size).to(device or "cpu"))
        if self.set_done:
            ended = torch.ones_like(next_tensordict.get("done"))
            next_tensordict.set("terminated", ended)
            next_tensordict.set("done", ended.clone())
            if next_tensordict.get("truncated", None) is not None:
                next_tensordict.set("truncated", torch.zeros_like(ended))
        return next_tensordict

    def _combined(self, values: Tensor, rows: list[int]) -> Tensor:
        weights = torch.tensor(self.weights).unsqueeze(-1)
        applicable = ~values.isnan()
        none = (~applicable.any(0)).nonzero().flatten().tolist()
        if none:
            names = ", ".join(call.name for call in self.calls)
            raise EnvError(
                f"no reward function is applicable to row {rows[none[0]]}: {names} all gave None; add one "
                "that always gives a number, or leave such samples out of the data"
            )
        total = torch.where(applicable, values * weights, 0.0).sum(0)
        if self.combine == "sum":
            return total
        mass = (applicable * weights.abs()).sum(0)
        return torch.where(mass > 0, total / mass.clamp_min(torch.finfo(mass.dtype).tiny), 0.0)

    # ---------------------------------------------------------------- what functions are called with
    def _batch(self, root: TensorDictBase, nxt: TensorDictBase, rows: list[int]) -> RewardBatch:
        columns = {
            str(name): column
            for name, value in root.items()
            if name not in _OWN and (column := _column(value, root.batch_size.numel())) is not None
        }
        questions = columns.pop(self.data_key, None)
        prompts, completions = self._said(root, questions)
        ids = self._response_ids(root)
        return RewardBatch(
            prompts=[prompts[i] for i in rows],
            completions=[completions[i] for i in rows],
            completion_ids=None if ids is None else [ids[i] for i in rows],
            columns={name: [values[i] for i in rows] for name, values in columns.items()},
            extras={
                "trainer_state": self.trainer_state,
                "log_metric": self._log_metric,
                "log_extra": self._log_extra,
            },
        )

    def _said(self, root: TensorDictBase, questions: list[Any] | None) -> tuple[list[Any], list[Any]]:
        history = root.get("history", None)
        if history is not None:
            return self._said_in_history(history, questions)
        if self.completion_format == "messages":
            raise SpecError("completion_format='messages' needs an environment in history mode; use 'text'")
        completions = self._texts(root)
        return questions if questions is not None else [""] * len(completions), completions

    def _said_in_history(self, history: Any, questions: list[Any] | None) -> tuple[list[Any], list[Any]]:
        prompts: list[Chat] = history.prompt.to_chats()
        full = history.full
        if full is None:
            full = history.prompt.extend(history.response, inplace=False, dim=-1)
        chats: list[Chat] = full.to_chats()
        if self.completion_format == "messages":
            openings = self._openings or [len(prompt) for prompt in prompts]
            return (
                [chat[:n] for chat, n in zip(chats, openings, strict=True)],
                [chat[n:] for chat, n in zip(chats, openings, strict=True)],
            )
        asked = [prompt[-1]["content"] for prompt in prompts]
        if questions is not None and all(isinstance(question, str) for question in questions):
            asked = questions
        said = ["\n".join(m["content"] for m in chat[len(p) :]) for chat, p in zip(chats, prompts, strict=True)]
        return asked, said

    def _texts(self, root: TensorDictBase) -> list[str]:
        """What the policy wrote at this turn, without the token that ends it."""
        text = root.get("text", None)
        if text is None or self.tokenizer is not None:
            return self._decoded(root)
        if text.get("response", None) is not None:
            completions = text.texts("response")
        elif text.get("full", None) is not None:
            pairs = zip(text.texts("prompt"), text.texts("full"), strict=True)
            completions = [full.removeprefix(prompt) for prompt, full in pairs]
        else:
            completions = self._decoded(root)
        return [completion.removesuffix(f"{IM_END}\n").removesuffix(IM_END) for completion in completions]

    def _decoded(self, root: TensorDictBase) -> list[str]:
        ids = self._response_ids(root)
        if ids is None or self.tokenizer is None:
            raise KeyMissingError(
                "RewardFunctions needs completions: history.full, text.response, or tokens.response and a tokenizer "
                "(RewardFunctions(..., tokenizer=...)); the data has none of them"
            )
        return [self.tokenizer.decode(row, skip_special_tokens=True) for row in ids]

    def _response_ids(self, root: TensorDictBase) -> list[list[int]] | None:
        tokens = root.get("tokens", None)
        if tokens is None or tokens.get("padded", None) is True:
            return None
        responses = rows_of(tokens, "response")
        if responses is None:
            fulls, prompts = rows_of(tokens, "full"), rows_of(tokens, "prompt")
            if fulls is None or prompts is None:
                return None
            responses = [full[len(prompt) :] for full, prompt in zip(fulls, prompts, strict=True)]
        return [row.tolist() for row in responses]

    # ---------------------------------------------------------------- logs
    def _log_metric(self, name: str, value: float) -> None:
        self._metrics[name].append(float(value))

    def _log_extra(self, column: str, values: Sequence[Any]) -> None:
        self._extras[column].extend(values)

    def pop_metrics(self) -> dict[str, float]:
        """The mean of every metric that functions logged since the last call."""
        means = {name: sum(values) / len(values) for name, values in self._metrics.items()}
        self._metrics.clear()
        return means

    def pop_extras(self) -> dict[str, list[Any]]:
        """The extra columns that functions logged since the last call."""
        extras = dict(self._extras)
        self._extras = defaultdict(list)
        return extras

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """``reward``, and one entry for each function."""
        shape = (*reward_spec.shape, 1)
        reward_spec.set("reward", Unbounded(shape=shape, dtype=torch.float32))
        for call in self.calls:
            reward_spec.set(("rewards", call.name), Unbounded(shape=shape, dtype=torch.float32))
        return reward_spec


def _column(value: Any, count: int) -> list[Any] | None:
    """A column as a list with one entry per row; None for what is no column."""
    if isinstance(value, NonTensorData):
        return [value.data] * count
    if is_non_tensor(value):
        return list(value.tolist())
    if isinstance(value, Tensor) and value.shape[:1] == (count,) and value.dtype is not torch.bool:
        return [row.item() if row.numel() == 1 else row.tolist() for row in value]
    return None
