"""What a policy is worth: returns of complete episodes, without the bias towards short ones."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Literal

import torch
from tensordict.nn import InteractionType, set_interaction_type

from rl_core.envs.episodes import episode_statistics, run_episodes
from rl_core.evaluation_mode import evaluation_mode
from rl_core.policy_state import with_carried_state

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
        env: an environment; of any batch size. It is reset first, and not after the last episode.
        policy: any callable ``policy(td) -> td``; a module is put into eval mode for the time. A recurrent one carries
            its state: the environment gets what it lacks for that.
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
    env = with_carried_state(env, policy)
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(set_interaction_type(exploration_type))
        stack.enter_context(evaluation_mode(policy))
        if seed is not None:
            stack.enter_context(torch.random.fork_rng(devices=[]))
            env.set_seed(seed)
        finished = run_episodes(
            env, policy, episodes, max_steps, reward_key=reward_key, reward_reduction=reward_reduction
        )
    return episode_statistics(finished)
