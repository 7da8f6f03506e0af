"""``RandomTruncationTransform``: environments that began together do not end together."""

from __future__ import annotations

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Categorical, Columns, Composite, RowProgram, Transform, reset_rows
from rl_core.errors import EnvError, KeyMissingError
from rl_core.keys import Key, as_key, as_path, parent_path
from rl_envs.transforms.end_groups import EndKeys, groups_before, groups_in, specs_seen

__all__ = ["RandomTruncationTransform"]


class RandomTruncationTransform(Transform):
    """Truncates each episode at a horizon: ``max_horizon``, or at random one drawn at its reset.

    The first episode's horizon is drawn from ``1 ... max_horizon``, so that rows started at the same time spread out;
    that of later ones, with probability ``prob``, from ``min_horizon ... max_horizon``. Steps are counted by a
    ``StepCounter`` ahead of this transform. ``truncated |= step_count >= horizon``; ``terminated`` stays.

    Args:
        min_horizon: the shortest drawn horizon of later episodes, steps.
        max_horizon: the longest horizon, steps.
        prob: the chance that a later episode's horizon is drawn.
        first_episode_prob: the chance that the first episode's is; default 1.
        step_count_key: the count. One in a group of agents governs the end flags of that group, with a horizon for each
            agent; one at the root those of the root and of every group.
        truncated_key: the flag that is set, beside the count.
        done_key: the flag that follows, beside the count.

    Example:
        >>> from rl_core import TransformedEnv, Compose
        >>> from rl_core.testing import CountingEnv
        >>> from rl_envs import StepCounter
        >>> cut = Compose(StepCounter(), RandomTruncationTransform(2, 3, first_episode_prob=0.0))
        >>> TransformedEnv(CountingEnv(length=9), cut).rollout(9).shape
        torch.Size([3])
    """

    def __init__(
        self,
        min_horizon: int,
        max_horizon: int,
        prob: float = 0.0,
        first_episode_prob: float | None = None,
        *,
        step_count_key: Key = "step_count",
        truncated_key: Key = "truncated",
        done_key: Key = "done",
    ) -> None:
        super().__init__()
        first = 1.0 if first_episode_prob is None else first_episode_prob
        if not 1 <= min_horizon <= max_horizon:
            raise ValueError(
                f"RandomTruncationTransform got min_horizon={min_horizon} and max_horizon={max_horizon}; wanted "
                "1 <= min_horizon <= max_horizon"
            )
        if not (0.0 <= prob <= 1.0 and 0.0 <= first <= 1.0):
            raise ValueError(f"prob={prob} and first_episode_prob={first} are chances, between 0 and 1")
        self.min_horizon, self.max_horizon, self.prob, self.first_episode_prob = min_horizon, max_horizon, prob, first
        self.count_key, self.truncated_key, self.done_key = (
            as_key(as_path(key)) for key in (step_count_key, truncated_key, done_key)
        )
        self._prefix = parent_path(self.count_key)
        self._check_places()
        self._horizon: Tensor | None = None
        self._begun: Tensor | None = None
        self._groups: list[EndKeys] = []
        self._seen: int | None = None

    def _check_places(self) -> None:
        for name in ("truncated_key", "done_key"):
            key = getattr(self, name)
            if len(as_path(key)) == 1 and self._prefix:  # the default, for a count in a group
                setattr(self, name, as_key((*self._prefix, *as_path(key))))
            elif parent_path(key) != self._prefix:
                raise ValueError(
                    f"RandomTruncationTransform got {name}={key!r}, which is not beside the count {self.count_key!r}"
                )

    # ---------------------------------------------------------------- specs
    def set_container(self, owner: object) -> None:
        """Take an owner; its end flags are read at the first use."""
        super().set_container(owner)
        self._groups, self._seen, self._horizon, self._begun = [], None, None, None

    def _governed(self) -> list[EndKeys]:
        """The groups whose end flags are set, the one beside the count first."""
        seen = specs_seen(self)
        if not self._groups or seen != self._seen:
            parent = self.parent
            if parent is not None and self.count_key not in parent.observation_keys:
                raise EnvError(
                    f"RandomTruncationTransform needs the observation {self.count_key!r}; the environment has "
                    f"{', '.join(map(repr, parent.observation_keys))}. Put a StepCounter ahead of it: "
                    "Compose(StepCounter(), RandomTruncationTransform(...)), and name another count with "
                    "step_count_key=..."
                )
            self._groups, self._seen = self._inside(groups_before(self)), seen
        return self._groups

    def _inside(self, groups: list[EndKeys]) -> list[EndKeys]:
        size = len(self._prefix)
        return [group for group in groups if group.prefix[:size] == self._prefix]

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """Adds ``truncated`` where it is missing."""
        self._governed()
        for group in self._inside(groups_in(done_spec)):
            key = self._flag(group)
            if key not in done_spec:
                done_spec.set(key, Categorical(2, shape=group.shape, dtype=torch.bool))
        return done_spec

    def _flag(self, group: EndKeys) -> Key:
        return as_key((*group.prefix, as_path(self.truncated_key)[-1]))

    # ---------------------------------------------------------------- horizons
    def _renew(self, rows: Tensor | None, like: Tensor) -> None:
        """Draw horizons for some rows (bool like ``like``), or for all."""
        if self._horizon is None or self._begun is None or self._horizon.shape != like.shape:
            self._begun = torch.zeros_like(like, dtype=torch.bool)
            self._horizon, rows = torch.full_like(like, self.max_horizon, dtype=torch.int64), None
        drawn = torch.where(self._begun, self._draw(self.min_horizon, like), self._draw(1, like))
        chance = torch.where(self._begun, self.prob, self.first_episode_prob)
        fresh = torch.where(torch.rand(like.shape, device=like.device) < chance, drawn, self.max_horizon)
        asked = torch.ones_like(self._begun) if rows is None else rows
        self._horizon.copy_(torch.where(asked, fresh, self._horizon))  # in place: rows of columns read it
        self._begun |= asked

    def _draw(self, low: int, like: Tensor) -> Tensor:
        return torch.randint(low, self.max_horizon + 1, like.shape, device=like.device)

    # ---------------------------------------------------------------- TensorDicts
    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        groups = self._governed()
        count = self._count(tensordict_reset)
        rows = self._asked(tensordict)
        self._renew(None if rows is None else _fit(rows, count), count)
        for group in groups:
            tensordict_reset.set(self._flag(group), torch.zeros_like(tensordict_reset.get(group.done)))
        return tensordict_reset

    def _asked(self, tensordict: TensorDictBase | None) -> Tensor | None:
        """The rows to reset: those of the group where it has a mask of its own, else those of the root."""
        rows = reset_rows(tensordict)
        own = None if tensordict is None or not self._prefix else tensordict.get((*self._prefix, "_reset"), None)
        return rows if own is None else own

    def _count(self, tensordict: TensorDictBase) -> Tensor:
        count = tensordict.get(self.count_key, None)
        if count is None:
            raise KeyMissingError(
                f"RandomTruncationTransform needs {self.count_key!r}; the data has "
                f"{list(tensordict.keys(True, True))}. Put a StepCounter ahead of it"
            )
        return count

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        groups, count = self._governed(), self._count(next_tensordict)
        if self._horizon is None or self._horizon.shape != count.shape:
            self._renew(None, count)
        assert self._horizon is not None
        over = count >= self._horizon
        for group in groups:
            done = next_tensordict.get(group.done)
            cut = _fit(over, done)
            flag = next_tensordict.get(self._flag(group), None)
            next_tensordict.set(self._flag(group), cut.expand(done.shape) if flag is None else flag | cut)
            next_tensordict.set(group.done, done | cut)
        return next_tensordict

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stored end flags are data, and stay as they were stored."""
        return tensordict

    # ---------------------------------------------------------------- rows
    @property
    def supports_rows(self) -> bool:
        """True."""
        return True

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """ORs into the truncated rows, from which the runner completes ``done``."""
        groups = self._governed()
        count = after.tensors[self.count_key]
        flags = [(after[self._flag(group)], self._flag(group) not in before) for group in groups]
        if self._horizon is None or self._horizon.shape != count.shape[1:]:
            self._renew(None, count[0])
            self._begun = torch.zeros_like(count[0], dtype=torch.bool)  # the first reset is still to come
        assert self._horizon is not None
        horizon = self._horizon.numpy()
        counts = count.numpy()

        def step(t: int) -> None:
            over = counts[t + 1] >= horizon
            for flag, own in flags:
                row = flag[t + 1]
                cut = over.reshape(*over.shape[:-1], *(1,) * (row.ndim - over.ndim), over.shape[-1])
                if own:
                    row[...] = cut
                else:
                    row |= cut

        def reset(t: int, mask: np.ndarray | None) -> None:
            rows = None if mask is None else _fit(torch.from_numpy(mask), count[0])
            self._renew(rows, count[0])

        return RowProgram(step, reset)


def _fit(rows: Tensor, like: Tensor) -> Tensor:
    """Flags of outer rows, with the dimensions of inner ones."""
    if rows.ndim == like.ndim:
        return rows.expand(like.shape)
    core = rows.squeeze(-1) if rows.ndim and rows.shape[-1] == 1 and rows.shape != like.shape[: rows.ndim] else rows
    return core.reshape(*core.shape, *(1,) * (like.ndim - core.ndim)).expand(like.shape)
