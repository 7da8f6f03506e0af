"""What a policy is worth: returns of complete episodes, without the bias towards short ones.

Of a batch of N environments, the first episodes to finish are the short ones; taking "the first n that end" would count
those and drop the long ones that were under way. Here every environment is told beforehand how many episodes it runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, set_interaction_type
from torch import Tensor, nn

from rl_core.errors import EnvError, KeyMissingError

__all__ = ["evaluate"]


def evaluate(
    env: Any,
    policy: Any,
    episodes: int = 10,
    max_steps: int | None = None,
    exploration_type: InteractionType = InteractionType.DETERMINISTIC,
    *,
    seed: int | None = None,
    reward_key: Any = "reward",
    reward_reduction: Literal["sum", "mean"] = "sum",
) -> dict[str, float]:
    """Run a policy for a number of episodes.

    Environment ``i`` of N runs its first ``episodes // N`` episodes, and one more where ``i < episodes % N``.

    Args:
        env: an environment; of any batch size. It is reset, and left in the middle of an episode.
        policy: any callable ``policy(td) -> td``; a module is put into eval mode for the time.
        episodes: how many, over all environments.
        max_steps: an episode counts as finished after so many steps; needed where episodes may never end.
        exploration_type: how a stochastic policy picks its actions; the mode by default.
        seed: seeds the environment first, so that episodes repeat; torch's global generator is left as it was.
        reward_key: the reward under "next", or a list of several (of groups of agents).
        reward_reduction: how a reward with several elements (agents) becomes one number.

    Returns:
        ``return_mean``, ``return_std`` (of the population), ``return_min``, ``return_max``, ``length_mean`` (steps),
        ``episodes``.

    Example:
        A made-up environment with two rows whose episodes last 2 and 3 steps, with reward 1 a step:

        >>> from tensordict import TensorDict
        >>> class Rows:
        ...     batch_size, lengths = torch.Size([2]), torch.tensor([2, 3])
        ...     def reset(self, td=None):
        ...         return TensorDict({"t": torch.zeros(2, dtype=torch.int64)}, [2])
        ...     def step_and_maybe_reset(self, td):
        ...         t = td["t"] + 1
        ...         td["next"] = TensorDict({"reward": torch.ones(2, 1), "done": (t == self.lengths)[:, None]}, [2])
        ...         return td, TensorDict({"t": t % self.lengths}, [2])
        >>> evaluate(Rows(), lambda td: td, episodes=3)["length_mean"]  # 2, 3 and 2
        2.3333333333333335
    """
    if episodes < 1:
        raise ValueError(f"evaluate needs at least one episode, got episodes={episodes}")
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(set_interaction_type(exploration_type))
        stack.enter_context(_eval_mode(policy))
        if seed is not None:
            stack.enter_context(torch.random.fork_rng(devices=[]))
            env.set_seed(seed)
        finished = _run_episodes(env, policy, episodes, max_steps, _reward_reader(reward_key, reward_reduction))
    returns = torch.tensor([value for value, _ in finished], dtype=torch.float64)
    lengths = torch.tensor([length for _, length in finished], dtype=torch.float64)
    return {
        "return_mean": returns.mean().item(),
        "return_std": returns.std(unbiased=False).item(),
        "return_min": returns.min().item(),
        "return_max": returns.max().item(),
        "length_mean": lengths.mean().item(),
        "episodes": float(len(finished)),
    }


def _run_episodes(
    env: Any, policy: Any, episodes: int, max_steps: int | None, read_rewards: Callable[[TensorDictBase, int], Tensor]
) -> list[tuple[float, int]]:
    """``(return, length)`` of each episode, in the order in which they finish."""
    rows = math.prod(env.batch_size)
    if rows == 0:
        raise EnvError(f"evaluate needs at least one environment, got batch size {list(env.batch_size)}")
    quota = [episodes // rows + (row < episodes % rows) for row in range(rows)]
    returns = torch.zeros(rows, dtype=torch.float64)
    lengths = torch.zeros(rows, dtype=torch.int64)
    finished: list[tuple[float, int]] = []
    td = env.reset()
    while len(finished) < episodes:
        td, td_next = env.step_and_maybe_reset(policy(td))
        returns += read_rewards(td, rows)
        lengths += 1
        ended = td["next", "done"].reshape(rows, -1).any(-1).cpu()
        if max_steps is not None:
            cut = (lengths >= max_steps) & ~ended
            if cut.any():
                td_next = _reset_rows(env, td_next, cut)
                ended |= cut
        for row in ended.nonzero().flatten().tolist():
            if quota[row]:
                quota[row] -= 1
                finished.append((returns[row].item(), int(lengths[row])))
            returns[row], lengths[row] = 0, 0
        td = td_next
    return finished


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


@contextmanager
def _eval_mode(policy: Any) -> Iterator[None]:
    if not isinstance(policy, nn.Module):
        yield
        return
    training = {module: module.training for module in policy.modules()}
    policy.eval()
    try:
        yield
    finally:
        for module, was_training in training.items():
            module.training = was_training
