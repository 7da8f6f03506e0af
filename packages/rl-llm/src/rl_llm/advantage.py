"""Group advantages of answers as they enter a replay buffer: rows wait until their group is complete."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase, is_tensor_collection
from torch import Tensor

from rl_core.errors import KeyMissingError, ReplayBufferError, SpecError
from rl_core.keys import Key, as_key
from rl_core.losses.keys import missing_key, quoted
from rl_core.transforms import Transform
from rl_llm.functional.advantage import BASELINES, group_advantage
from rl_llm.functional.returns import TRAJECTORY_RETURNS, trajectory_return

__all__ = ["MCAdvantage"]


class Trajectory(NamedTuple):
    """One dialog.

    Attributes:
        rows: its turns, each a TensorDict without batch dimensions.
        rewards: float64 [T], the reward of each turn.
        places: where its turns lie in the batch that they came in.
        copied: whether the rows are copies, not views of that batch.
    """

    rows: list[TensorDictBase]
    rewards: Tensor
    places: list[int]
    copied: bool = False


class MCAdvantage(Transform):
    r"""Compares each answer with the other answers to its prompt, when the last of them arrives.

    .. math:: A_i = (G_i - \mathrm{mean}_j G_j) / (\mathrm{std}_j G_j + \epsilon), \qquad G_i = \sum_k r_{i,k}

    As the transform of a replay buffer it takes whole trajectories. ``extend`` keeps them back until their group has
    ``grpo_size`` of them, and then writes the group's rows with their advantage, [1] each; until then nothing is
    written. Samples pass unchanged. Every turn of a trajectory has the advantage of the trajectory.

    Called on a batch, outside of a buffer, it needs complete groups and returns the batch with the advantage, row by
    row in their order (without the groups that were dropped).

    Groups are told apart by ``group_key``, and by the prompt's text where the data have none: prompts that occur twice
    in a data set, or in two epochs, then fall into one group. A group that waits is dropped when more than
    ``max_pending_groups`` wait; the oldest goes first. Groups that wait are not part of a buffer's saved state.

    Args:
        grpo_size: answers per group.
        prompt_key: the prompt, text.
        rewards_key: [*B, ...]; what lies beyond a row (per-token rewards) is added up.
        advantage_key: written, [*B, 1].
        done_key: bool [*B, ...], True in the last turn of a trajectory.
        verbose: print each completed group.
        group_key: the group, int64 or text.
        baseline: "std", "mean" or "leave_one_out", see ``functional.group_advantage``.
        epsilon: added to the standard deviation.
        trajectory_return: "sum", "mean" or "max" of a trajectory's rewards. None: each turn's own reward is compared
            with those of all turns of the group, as TorchRL does by default; early turns of the best trajectory can
            then have negative advantages.
        keep_return_bounds: (low, high): groups whose mean return is not strictly between are dropped.
        drop_dead_groups: drop groups whose returns are all alike: no gradient comes from them (DAPO's dynamic
            sampling).
        max_pending_groups: how many incomplete groups may wait.

    Raises:
        SpecError: an option is not admitted.

    Shao et al., 2024, DeepSeekMath, section 4.1.2, arXiv 2402.03300; dropping: Yu et al., 2025, arXiv 2503.14476.

    >>> from tensordict import TensorDict
    >>> reward = torch.tensor([[1.0], [0.0], [0.0], [0.0]])
    >>> step = {"reward": reward, "done": torch.ones(4, 1, dtype=torch.bool)}
    >>> batch = TensorDict({"group_id": torch.zeros(4, dtype=torch.int64), "next": step}, [4])
    >>> MCAdvantage(4, baseline="mean")(batch)["advantage"].squeeze(-1)
    tensor([ 0.7500, -0.2500, -0.2500, -0.2500])
    """

    def __init__(
        self,
        grpo_size: int,
        prompt_key: Key = "query",
        rewards_key: Key = ("next", "reward"),
        advantage_key: Key = "advantage",
        done_key: Key = ("next", "done"),
        verbose: bool = False,
        *,
        group_key: Key = "group_id",
        baseline: str = "std",
        epsilon: float = 1e-4,
        trajectory_return: str | None = "sum",
        keep_return_bounds: Sequence[float] | None = None,
        drop_dead_groups: bool = False,
        max_pending_groups: int = 1024,
    ) -> None:
        super().__init__()
        _check_options(grpo_size, baseline, trajectory_return, keep_return_bounds, max_pending_groups)
        self.grpo_size = grpo_size
        self.prompt_key, self.group_key = as_key(prompt_key), as_key(group_key)
        self.rewards_key, self.done_key = as_key(rewards_key), as_key(done_key)
        self.advantage_key = as_key(advantage_key)
        self.verbose = verbose
        self.baseline, self.epsilon = baseline, epsilon
        self.trajectory_return = trajectory_return
        self.keep_return_bounds = None if keep_return_bounds is None else tuple(keep_return_bounds)
        self.drop_dead_groups = drop_dead_groups
        self.max_pending_groups = max_pending_groups
        self._pending: OrderedDict[Hashable, list[Trajectory]] = OrderedDict()
        self._counts = dict.fromkeys(("completed", "dead", "dropped", "evicted", "evicted_trajectories"), 0)
        self._lock = threading.Lock()  # a buffer runs its transform before it takes its own lock

    # ---------------------------------------------------------------- data
    def inv(self, tensordict: TensorDictBase) -> TensorDictBase | None:
        """Rows on their way into a buffer.

        Args:
            tensordict: whole trajectories: [T] turns, one trajectory after another; or [N, T], trajectories side by
                side. It is left as it is.

        Returns:
            The rows of the groups that are complete now, [M]; None where there are none, and nothing is written.

        Raises:
            ReplayBufferError: the last turn of a trajectory is missing.
            KeyMissingError: an entry is missing.
        """
        with self._lock:
            whole = self._whole_groups(tensordict)
        if whole is not None:
            return whole
        arrived = self._trajectories(tensordict)
        with self._lock:
            complete = self._completed(arrived, self._pending)
            written = [row for group in complete for row in self._with_advantage(group)]
            self._evict()
            self._hold_copies()
        return _stacked(written) if written else None

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """A batch of complete groups with its advantages; in a buffer the sample itself.

        Raises:
            ReplayBufferError: a group is not complete.
        """
        if self._owner is not None:
            return tensordict
        groups: OrderedDict[Hashable, list[Trajectory]] = OrderedDict()
        for name, trajectory in self._trajectories(tensordict):
            groups.setdefault(name, []).append(trajectory)
        wrong = {name: len(group) for name, group in groups.items() if len(group) % self.grpo_size}
        if wrong:
            name, size = next(iter(wrong.items()))
            raise ReplayBufferError(
                f"MCAdvantage called on a batch needs groups of {self.grpo_size} trajectories; group {name!r} has "
                f"{size} ({len(wrong)} of {len(groups)} groups are incomplete). A buffer's transform waits for them."
            )
        with self._lock:
            arrived = [(name, trajectory) for name, group in groups.items() for trajectory in group]
            whole = list(self._completed(arrived, {}))
        rows = [
            pair
            for group in whole
            for pair in zip([p for t in group for p in t.places], self._with_advantage(group), strict=True)
        ]
        if not rows:
            return tensordict.reshape(-1)[:0]
        return _stacked([row for _, row in sorted(rows, key=lambda pair: pair[0])])

    def get_stats(self) -> dict[str, float]:
        """How many groups there were so far.

        Returns:
            ``completed``; of these ``dead`` (returns all alike), ``dead_share`` and ``dropped`` (by the bounds, or as
            dead); ``pending`` and ``pending_trajectories``, which wait; ``evicted`` and ``evicted_trajectories``.
        """
        with self._lock:
            completed = self._counts["completed"]
            return {
                **self._counts,
                "dead_share": self._counts["dead"] / completed if completed else 0.0,
                "pending": len(self._pending),
                "pending_trajectories": sum(len(group) for group in self._pending.values()),
            }

    # ---------------------------------------------------------------- groups
    def _whole_groups(self, tensordict: TensorDictBase) -> TensorDictBase | None:
        """The batch with its advantages where it is complete groups of single turns side by side, in one go.

        That is what a collector of single-turn chats with ``group_repeats=True`` yields; row by row it costs as much as
        sampling the answers. None where the batch is anything else.
        """
        groups, done = tensordict.get(self.group_key, None), tensordict.get(self.done_key, None)
        selective = self._pending or self.verbose or self.keep_return_bounds is not None or self.drop_dead_groups
        if selective or tensordict.ndim != 1 or not (isinstance(groups, Tensor) and isinstance(done, Tensor)):
            return None
        count = len(tensordict)
        if not count or count % self.grpo_size or groups.numel() != count:
            return None
        names = groups.reshape(-1, self.grpo_size)
        alone = len(names[:, 0].unique()) == len(names) and bool((names == names[:, :1]).all())
        if not alone or not bool(done.reshape(count, -1).any(-1).all()):
            return None
        returns = self._number(tensordict, self.rewards_key).reshape(count, -1).sum(-1)
        result = group_advantage(returns, groups.flatten().cpu(), baseline=self.baseline, epsilon=self.epsilon)
        by_group = returns.reshape(-1, self.grpo_size)
        self._counts["completed"] += len(by_group)
        self._counts["dead"] += int((by_group == by_group[:, :1]).all(-1).sum())
        values = result.advantage.to(torch.get_default_dtype()).unsqueeze(-1)
        return tensordict.copy().set(self.advantage_key, values.to(groups.device))

    def _completed(
        self, arrived: list[tuple[Hashable, Trajectory]], pending: dict[Hashable, list[Trajectory]]
    ) -> list[list[Trajectory]]:
        """The groups that are complete with these trajectories and are to be kept; the others stay in ``pending``."""
        kept = []
        for name, trajectory in arrived:
            group = pending.setdefault(name, [])
            group.append(trajectory)
            if len(group) == self.grpo_size:
                del pending[name]
                if self._is_kept(name, group):
                    kept.append(group)
        return kept

    def _evict(self) -> None:
        """Drop the groups that have waited longest, where too many wait."""
        while len(self._pending) > self.max_pending_groups:
            _, evicted = self._pending.popitem(last=False)
            self._counts["evicted"] += 1
            self._counts["evicted_trajectories"] += len(evicted)

    def _is_kept(self, name: Hashable, group: list[Trajectory]) -> bool:
        returns = torch.stack([self._returns(trajectory)[0] for trajectory in group])
        mean, dead = float(returns.mean()), bool((returns == returns[0]).all())
        bounds = self.keep_return_bounds
        kept = (bounds is None or bounds[0] < mean < bounds[1]) and not (dead and self.drop_dead_groups)
        self._counts["completed"] += 1
        self._counts["dead"] += dead
        self._counts["dropped"] += not kept
        if self.verbose:
            print(f"MCAdvantage: group {name!r}: mean return {mean:.4g}, {'kept' if kept else 'dropped'}")
        return kept

    def _returns(self, trajectory: Trajectory) -> Tensor:
        """The return at each turn, float64 [T]."""
        mode = "sum" if self.trajectory_return is None else self.trajectory_return
        return trajectory_return(trajectory.rewards, torch.zeros(len(trajectory.rows), dtype=torch.int64), mode)

    def _with_advantage(self, group: list[Trajectory]) -> list[TensorDictBase]:
        """The rows of a complete group, shallow copies with the advantage."""
        if self.trajectory_return is None:
            compared = torch.cat([trajectory.rewards for trajectory in group])
        else:
            compared = torch.stack([self._returns(trajectory)[0] for trajectory in group])
        one_group = torch.zeros(compared.numel(), dtype=torch.int64)
        advantage = group_advantage(compared, one_group, baseline=self.baseline, epsilon=self.epsilon).advantage
        if self.trajectory_return is not None:
            advantage = advantage.repeat_interleave(torch.tensor([len(trajectory.rows) for trajectory in group]))
        rows = [row for trajectory in group for row in trajectory.rows]
        values = advantage.to(torch.get_default_dtype()).unsqueeze(-1)
        return [
            row.copy().set(self.advantage_key, value if row.device is None else value.to(row.device))
            for row, value in zip(rows, values, strict=True)
        ]

    def _hold_copies(self) -> None:
        """Let what waits be no view of the caller's memory, which a collector may fill anew."""
        for group in self._pending.values():
            for n, trajectory in enumerate(group):
                if not trajectory.copied:
                    group[n] = trajectory._replace(rows=[row.clone() for row in trajectory.rows], copied=True)

    # ---------------------------------------------------------------- trajectories
    def _trajectories(self, tensordict: TensorDictBase) -> list[tuple[Hashable, Trajectory]]:
        """Whole trajectories, each with the name of its group."""
        if tensordict.ndim == 0:
            tensordict = tensordict.unsqueeze(0)
        found, place = [], 0
        for lane in _lanes(tensordict):
            rows = list(lane.unbind(0))
            rewards = torch.stack([self._number(row, self.rewards_key).sum() for row in rows]) if rows else None
            begin = 0
            for end, row in enumerate(rows, 1):
                if not bool(self._number(row, self.done_key).any()):
                    continue
                assert rewards is not None
                places = list(range(place + begin, place + end))
                found.append((self._group_of(rows[begin]), Trajectory(rows[begin:end], rewards[begin:end], places)))
                begin = end
            if begin < len(rows):
                raise ReplayBufferError(
                    f"MCAdvantage takes whole trajectories, but the last {len(rows) - begin} of {len(rows)} turns end "
                    f"without {quoted(self.done_key)}. Let the collector yield completed trajectories "
                    "(yield_completed_trajectories=True), or set done in the last turn."
                )
            place += len(rows)
        return found

    def _number(self, row: TensorDictBase, key: Key) -> Tensor:
        value = row.get(key, None)
        if value is None:
            raise missing_key("MCAdvantage", key, row, "The environment writes it; name it in the constructor.")
        value = value.detach().double()
        if not bool(value.isfinite().all()):
            raise SpecError(f"MCAdvantage: {quoted(key)} is {value.flatten().tolist()[:8]}; it must be finite")
        return value.cpu()

    def _group_of(self, row: TensorDictBase) -> Hashable:
        """What tells this row's group from others: the group id, or else the prompt."""
        for key in (self.group_key, self.prompt_key):
            value = row.get(key, None)
            if value is None:
                continue
            if isinstance(value, Tensor):
                return (key, *value.flatten().tolist())
            text = value.tolist() if is_tensor_collection(value) else value
            return (key, str(text))
        raise KeyMissingError(
            f"MCAdvantage needs {quoted(self.group_key)} or {quoted(self.prompt_key)} to tell groups apart; the data "
            f"have {', '.join(repr(key) for key in row.keys(True, True)) or 'nothing'}. Name them with group_key=... "
            "or prompt_key=..."
        )

    # ---------------------------------------------------------------- copies
    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._lock = threading.Lock()


def _lanes(tensordict: TensorDictBase) -> list[TensorDictBase]:
    """The parts [T] of a batch [*B, T]; rows of a lazy stack may differ in T."""
    if tensordict.ndim == 1:
        return [tensordict]
    return [lane for part in tensordict.unbind(0) for lane in _lanes(part)]


def _stacked(rows: list[TensorDictBase]) -> TensorDictBase:
    """Rows as one batch: dense where they have one shape, a lazy stack otherwise."""
    return LazyStackedTensorDict.maybe_dense_stack(rows)


def _check_options(
    grpo_size: int, baseline: str, mode: str | None, bounds: Sequence[float] | None, max_pending_groups: int
) -> None:
    if grpo_size < 1:
        raise SpecError(f"grpo_size must be at least 1, got {grpo_size}")
    if baseline not in BASELINES:
        raise SpecError(f"baseline is one of {', '.join(map(repr, BASELINES))}; got {baseline!r}")
    if mode is not None and mode not in TRAJECTORY_RETURNS:
        raise SpecError(f"trajectory_return is None or one of {', '.join(map(repr, TRAJECTORY_RETURNS))}; got {mode!r}")
    if bounds is not None and (len(bounds) != 2 or not bounds[0] < bounds[1]):
        raise SpecError(f"keep_return_bounds is a pair (low, high) with low < high; got {bounds!r}")
    if max_pending_groups < 1:
        raise SpecError(f"max_pending_groups must be at least 1, got {max_pending_groups}")
