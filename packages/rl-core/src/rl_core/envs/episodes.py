"""Complete episodes of a policy, without the bias towards short ones, and what they were worth.

Of a batch of N environments, the first episodes to finish are the short ones; taking "the first n that end" would count
those and drop the long ones that were under way. Here every environment is told beforehand how many episodes it runs:
environment ``i`` its first ``n // N``, and one more where ``i < n % N``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core.envs.base import EnvBase
from rl_core.envs.ends import any_done
from rl_core.envs.entries import put_entries
from rl_core.envs.stack_steps import stack_steps
from rl_core.errors import EnvError, KeyMissingError

__all__ = ["Episode", "episode_statistics", "run_episodes"]


@dataclass(frozen=True)
class Episode:
    """A finished episode.

    Attributes:
        total: the sum of its rewards.
        length: steps.
        data: its steps ``[T]``, where they were to be kept.
    """

    total: float
    length: int
    data: TensorDictBase | None = None


def run_episodes(
    env: Any,
    policy: Any,
    episodes: int,
    max_steps: int | None = None,
    *,
    reward_key: Any = "reward",
    reward_reduction: Literal["sum", "mean"] = "sum",
    keep_data: bool = False,
    before_step: Callable[[int], Any] | None = None,
) -> list[Episode]:
    """Run a policy for a number of complete episodes, in the order in which they finish.

    Args:
        env: an environment of any batch size. It is reset first, and not after the last episode.
        policy: any callable ``policy(td) -> td``.
        episodes: how many, over all environments.
        max_steps: an episode counts as finished after so many steps; needed where episodes may never end.
        reward_key: the reward under "next", or a list of several (of groups of agents).
        reward_reduction: how a reward with several elements (agents) becomes one number.
        keep_data: keep the steps of each episode.
        before_step: called before each step with the number of episodes that are finished; may raise to give up.

    Raises:
        EnvError: the environment has no rows.
        KeyMissingError: there is no such reward.
    """
    rows = math.prod(env.batch_size)
    if rows == 0:
        raise EnvError(f"evaluate needs at least one environment, got batch size {list(env.batch_size)}")
    read_rewards = _reward_reader(reward_key, reward_reduction)
    quota = [episodes // rows + (row < episodes % rows) for row in range(rows)]
    returns, lengths = torch.zeros(rows, dtype=torch.float64), torch.zeros(rows, dtype=torch.int64)
    history = _History(rows) if keep_data else None
    finished: list[Episode] = []
    td = env.reset()
    while True:
        if before_step is not None:
            before_step(len(finished))
        td, following = _step(env, policy, td)
        returns += read_rewards(td, rows)
        lengths += 1
        if history is not None:
            history.append(td)
        ended = _ended(env, td, rows)
        cut = torch.zeros_like(ended) if max_steps is None else (lengths >= max_steps) & ~ended
        for row in (ended | cut).nonzero().flatten().tolist():
            data = None if history is None else history.take(row, keep=bool(quota[row]))
            if quota[row]:
                quota[row] -= 1
                finished.append(Episode(returns[row].item(), int(lengths[row]), data))
            returns[row], lengths[row] = 0, 0
        if len(finished) >= episodes:
            return finished
        td = env.maybe_reset(env.step_mdp(td)) if following is None else following
        if cut.any():
            td = _reset_rows(env, td, cut)


def _step(env: Any, policy: Any, td: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase | None]:
    """The stepped TensorDict, and the root of the next step where the environment makes it at once."""
    acted = policy(td)
    if not isinstance(env, EnvBase):
        stepped, following = env.step_and_maybe_reset(acted)
        return stepped, following
    return env.step(td if acted is td else put_entries(td, acted)), None


def _ended(env: Any, td: TensorDictBase, rows: int) -> Tensor:
    """The rows whose episodes ended with this step, bool ``[rows]``."""
    if not isinstance(env, EnvBase):
        done: Tensor = td["next", "done"]
        return done.reshape(rows, -1).any(-1).cpu()
    ended = any_done(td.get("next"), env.end_groups, td.batch_dims)
    return torch.zeros(rows, dtype=torch.bool) if ended is None else ended.reshape(rows).cpu()


class _History:
    """The steps of episodes under way."""

    def __init__(self, rows: int) -> None:
        self.steps: list[TensorDictBase] = []
        self.begun = [0] * rows
        self.gone = 0  # steps that no episode under way needs any more

    def append(self, td: TensorDictBase) -> None:
        self.steps.append(td.reshape(len(self.begun)))

    def take(self, row: int, keep: bool) -> TensorDictBase | None:
        """The episode of a row, which ends here, where it is to be kept."""
        begun, self.begun[row] = self.begun[row], self.gone + len(self.steps)
        data = stack_steps([td[row] for td in self.steps[begun - self.gone :]], 0) if keep else None
        oldest = min(self.begun)
        if oldest > self.gone:
            del self.steps[: oldest - self.gone]
            self.gone = oldest
        return data


def _reward_reader(keys: Any, reduction: str) -> Callable[[TensorDictBase, int], Tensor]:
    """A function of a step and the number of rows that gives one reward per row."""
    listed = keys if isinstance(keys, list) else [keys]
    paths = [("next", *key) if isinstance(key, tuple) else ("next", key) for key in listed]

    def read(td: TensorDictBase, rows: int) -> Tensor:
        elements = torch.cat([_entry(td, path).reshape(rows, -1) for path in paths], -1).double().cpu()
        return elements.mean(-1) if reduction == "mean" else elements.sum(-1)

    return read


def _entry(td: TensorDictBase, path: tuple[str, ...]) -> Tensor:
    value: Tensor | None = td.get(path, None)
    if value is None:
        written = ", ".join(repr(name) for name in td["next"].keys(True, True))
        raise KeyMissingError(
            f"evaluate needs {path!r}; the environment writes {written} under 'next'. Name it with reward_key="
        )
    return value


def _reset_rows(env: Any, td: TensorDictBase, rows: Tensor) -> TensorDictBase:
    mask = rows.reshape(*td.batch_size, 1).to(td.device) if td.device else rows.reshape(*td.batch_size, 1)
    td.set("_reset", mask)
    fresh: TensorDictBase = env.reset(td)
    return fresh


def episode_statistics(episodes: Sequence[Episode]) -> dict[str, float]:
    """What is told of episodes.

    Returns:
        ``return_mean``, ``return_std`` (of the population), ``return_min``, ``return_max``, ``length_mean`` (steps),
        ``episodes``.

    Example:
        >>> episode_statistics([Episode(1.0, 2), Episode(3.0, 4)])["return_mean"]
        2.0
    """
    returns = torch.tensor([episode.total for episode in episodes], dtype=torch.float64)
    lengths = torch.tensor([episode.length for episode in episodes], dtype=torch.float64)
    return {
        "return_mean": returns.mean().item(),
        "return_std": returns.std(unbiased=False).item(),
        "return_min": returns.min().item(),
        "return_max": returns.max().item(),
        "length_mean": lengths.mean().item(),
        "episodes": float(len(episodes)),
    }
