"""``Turns``: one turn of every chat of an environment at a time, numbered by dialog and policy version."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase
from tensordict.utils import is_non_tensor
from torch import Tensor

from rl_collectors.trajectories import TrajectoryCounter
from rl_core.envs.base import EnvBase
from rl_core.errors import CollectorError
from rl_core.policy import wrap_policy
from rl_llm.collectors.versions import PolicyVersions

__all__ = ["Turn", "Turns"]


class Turn(NamedTuple):
    """A turn of each of B chats.

    Attributes:
        step: [B], what the chats were, what the policy wrote, and under "next" what came of it.
        numbers: int64 [B], the dialogs' trajectory ids.
        ended: bool [B], whether it is the dialog's last one.
        version: of the policy.
    """

    step: TensorDictBase
    numbers: Tensor
    ended: Tensor
    version: int


class Turns:
    """Steps a batch of chats.

    Args:
        env: of batch size (B,).
        policy: writes a turn for each chat.
        versions: of the policy.
    """

    def __init__(self, env: EnvBase, policy: Any, versions: PolicyVersions) -> None:
        self.env, self.versions = env, versions
        self._acting = wrap_policy(policy, env)
        self.trajectories = TrajectoryCounter(env.batch_size.numel())
        self._carry: TensorDictBase | None = None
        self._added: set[str] = set()  # by the policy
        self._begun = False

    def take(self) -> Turn:
        """One more turn of every chat; where one has ended, the first of a new one.

        Raises:
            CollectorError: the policy did not write one turn for each chat.
        """
        # Ended chats begin anew only here: no question is drawn before it is asked, and none is lost at a checkpoint.
        td = self.env.reset() if self._carry is None else self.env.maybe_reset(self._carry)
        self._begun = True
        known = set(td.keys())
        td, version = self.versions.call(self._acting, td)
        if not isinstance(td, TensorDictBase) or td.batch_size != self.env.batch_size:
            got = tuple(td.batch_size) if isinstance(td, TensorDictBase) else type(td).__name__
            raise CollectorError(
                f"the policy returned {got} for the environment's chats {tuple(self.env.batch_size)}; it writes one "
                "turn for each. Several answers to a prompt are several chats: repeats=... of the environment"
            )
        self._added |= set(td.keys()) - known
        td = self.env.step(td)
        ended = td.get(("next", "done")).reshape(td.batch_size[0], -1).any(-1)
        self._carry = self._following(td)
        return Turn(td, self.trajectories.number(ended.unsqueeze(-1)).squeeze(-1), ended.cpu(), version)

    def _following(self, td: TensorDictBase) -> TensorDictBase:
        """The root of the next turn, without what the policy wrote and the environment did not take up.

        Tokens of this turn would otherwise be read as the prompt of the next one by a policy that prefers tokens.
        """
        following, written = self.env.step_mdp(td), td.get("next").keys()
        left = [name for name in self._added if name not in written]
        empty = [name for name, value in following.items() if _is_empty_group(value)]
        return following.exclude(*left, *empty)

    def restart(self) -> None:
        """Begin new dialogs in every row."""
        self._carry = None
        if self._begun:
            self.trajectories.restart()

    def state_dict(self) -> dict[str, Any]:
        """The trajectory ids and the environment's place in its data."""
        return {"begun": self._begun, "trajectories": self.trajectories.state_dict(), "env": self.env.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a :meth:`state_dict` back; ids of dialogs that were under way are not given again."""
        self._begun = bool(state_dict["begun"])
        self.trajectories.load_state_dict(state_dict["trajectories"])
        self.env.load_state_dict(state_dict["env"])
        self._carry = None

    def stamped(self, turn: Turn, with_version: bool) -> TensorDictBase:
        """The step with its numbers written into it."""
        turn.step.set(("collector", "traj_ids"), turn.numbers)
        if with_version:
            turn.step.set("policy_version", torch.full(turn.step.batch_size, turn.version))
        return turn.step


def _is_empty_group(value: Any) -> bool:
    return isinstance(value, TensorDictBase) and not is_non_tensor(value) and not len(value.keys())
