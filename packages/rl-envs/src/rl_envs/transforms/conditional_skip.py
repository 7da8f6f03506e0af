"""``ConditionalSkip``: steps that do not reach the environment."""

from __future__ import annotations

from collections.abc import Callable

from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Transform, reset_rows
from rl_core.errors import EnvError
from rl_envs.transforms.masked_rows import as_rows, choose, rows_kept

__all__ = ["ConditionalSkip"]


class ConditionalSkip(Transform):
    """Leaves the environment before it as it is where a condition holds.

    A step that is skipped gives the observations and end flags of before and rewards of zero. Transforms ahead of this
    one do not see it; those after it see an ordinary step.

    Args:
        cond: a function of the TensorDict that is stepped, its action included, to a bool, or a bool tensor ``[*B]`` or
            ``[*B, 1]``. In a batch of simulators all rows must agree.

    Raises:
        EnvError: a batch of simulators would have to step some rows only.

    Example:
        >>> import torch
        >>> from rl_core import TransformedEnv
        >>> from rl_core.testing import CountingEnv
        >>> env = TransformedEnv(CountingEnv(length=9), ConditionalSkip(lambda td: td["action"] < 0))
        >>> def policy(observation): return torch.where(observation < 2, 1.0, -1.0)
        >>> env.rollout(4, policy)["next", "observation"].flatten()
        tensor([1., 2., 2., 2.])
    """

    def __init__(self, cond: Callable[[TensorDictBase], bool | Tensor]) -> None:
        super().__init__()
        self.cond = cond
        self._held: TensorDictBase | None = None
        self._skipped: Tensor | None = None

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._skipped = as_rows(self.cond(tensordict), tensordict, "the condition of ConditionalSkip")
        return tensordict

    def _instead_of_step(self, tensordict: TensorDictBase) -> TensorDictBase | None:
        skipped, self._skipped = self._skipped, None
        if skipped is None or not bool(skipped.any()):
            return None
        parent = self.parent
        if parent is None:
            return None
        still = self._still(tensordict)
        if bool(skipped.all()):
            return still
        if parent.batch_locked:
            raise EnvError(
                f"ConditionalSkip would skip {int(skipped.sum())} of the {skipped.numel()} rows of "
                f"{type(parent.base_env).__name__}, whose rows step together. Skip in each environment of a batch: "
                "SerialEnv(n, lambda: TransformedEnv(make_env(), ConditionalSkip(cond)))"
            )
        return choose(rows_kept(skipped), still, parent._step_complete(tensordict))

    def _still(self, tensordict: TensorDictBase) -> TensorDictBase:
        """What the last step or reset wrote, with no reward."""
        parent = self.parent
        assert parent is not None
        held = self._held if parent.batch_locked and self._held is not None else tensordict
        still = held.select(*parent.observation_keys, *parent.done_keys).copy()
        shape = () if parent.batch_locked else tensordict.batch_size[len(parent.batch_size) :]
        return still.update(parent.full_reward_spec.zero(shape))

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        self._held = next_tensordict.copy()
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        rows, held = reset_rows(tensordict), self._held
        fresh = tensordict_reset.copy()
        if rows is not None and held is not None and held.batch_size == fresh.batch_size:
            fresh = choose(rows_kept(~rows), held.select(*fresh.keys(True, True), strict=False), fresh)
        self._held = fresh
        return tensordict_reset

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stored data stay as they are."""
        return tensordict

    def __getstate__(self) -> dict[str, object]:
        """Without what the last step wrote."""
        return {**super().__getstate__(), "_held": None}

    @property
    def supports_rows(self) -> bool:
        """False."""
        return False
