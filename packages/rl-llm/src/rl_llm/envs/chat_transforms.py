"""``ChatTransformedEnv``: a chat seen through transforms; tokens follow the turns that transforms add."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensordict import TensorDictBase

from rl_core import Compose, Transform, TransformedEnv
from rl_llm.envs.chat import ChatEnv
from rl_llm.envs.priming import ResetSource
from rl_llm.envs.row_merge import ChatRows, put_entries

__all__ = ["ChatTransformedEnv"]


class ChatTransformedEnv(ChatRows, TransformedEnv):
    """A TransformedEnv around a ChatEnv, as ``ChatEnv.append_transform`` makes it.

    A transform that appends a turn to ``history.prompt`` (a tool's answer, for example) needs to know nothing of
    tokens: after all transforms ran, the new messages are encoded and put behind the tokens recorded so far. A
    transform that is a :class:`ResetSource` feeds ``reset`` with questions.

    Args:
        env: a ChatEnv.
        transform: a Transform, a Compose, or a function of a TensorDict.
    """

    base: ChatEnv

    def __init__(
        self, env: ChatEnv, transform: Transform | Callable[[TensorDictBase], TensorDictBase] | None = None
    ) -> None:
        TransformedEnv.__init__(self, env, transform)

    def _parts(self) -> list[Transform]:
        return list(self.transform) if isinstance(self.transform, Compose) else [self.transform]

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        given = tensordict
        columns: dict[str, Any] = {}
        for part in self._parts():
            if isinstance(part, ResetSource):
                given = part.prime(given, self.batch_size, columns)
        fresh = self.base._reset_raw(given, **kwargs)
        put_entries(fresh, columns)
        return self.base.in_step(self.transform._reset(given, fresh))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self.base.in_step(super()._step(tensordict))

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """There are no random actions: a turn needs a policy."""
        return self.base.rand_action(tensordict)
