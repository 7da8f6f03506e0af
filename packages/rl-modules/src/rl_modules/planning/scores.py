"""Scores by which a tree search, or a bandit, chooses among actions."""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
from torch import Tensor

from rl_core.keys import Key
from rl_modules.policies.base import PolicyModule

__all__ = ["EXP3Score", "MCTSScores", "PUCTScore", "UCB1TunedScore", "UCBScore"]


class PUCTScore(PolicyModule):
    r"""``wins / visits + c * prior * sqrt(total_visits) / (1 + visits)``; the first part is 0 where nothing was tried.

    Source: Silver et al. 2017, "Mastering the game of Go without human knowledge", methods, "Select".

    Args:
        c: weight of exploration.
        win_count_key: sum of the returns of each action ``[*B, n]``.
        visits_key: how often it was tried ``[*B, n]``.
        total_visits_key: visits of the node ``[*B, 1]``.
        prior_prob_key: prior probability of each action ``[*B, n]``.
        score_key: written, ``[*B, n]``.

    >>> wins = visits = torch.tensor([3.0, 0.0])
    >>> PUCTScore(c=1.0)(wins, visits, torch.tensor([4.0]), torch.tensor([0.5, 0.5]))
    tensor([1.2500, 1.0000])
    """

    def __init__(
        self,
        c: float,
        win_count_key: Key = "wins",
        visits_key: Key = "visits",
        total_visits_key: Key = "total_visits",
        prior_prob_key: Key = "prior_prob",
        score_key: Key = "score",
    ) -> None:
        super().__init__()
        self.c = c
        self._set_keys([win_count_key, visits_key, total_visits_key, prior_prob_key], [score_key])

    def _compute(self, *inputs: Tensor) -> tuple[Any, ...]:
        wins, visits, total, prior = inputs
        return (_mean(wins, visits) + self.c * prior * total.sqrt() / (1 + visits),)


class UCBScore(PolicyModule):
    """``wins / visits + c * sqrt(ln total_visits / visits)``; infinite for an action that was never tried.

    Source: Auer, Cesa-Bianchi, Fischer 2002, "Finite-time Analysis of the Multiarmed Bandit Problem", UCB1 (c is
    sqrt 2); in trees: Kocsis, Szepesvári 2006. Arguments of :class:`PUCTScore`, without a prior.
    """

    def __init__(
        self,
        c: float,
        win_count_key: Key = "wins",
        visits_key: Key = "visits",
        total_visits_key: Key = "total_visits",
        score_key: Key = "score",
    ) -> None:
        super().__init__()
        self.c = c
        self._set_keys([win_count_key, visits_key, total_visits_key], [score_key])

    def _compute(self, *inputs: Tensor) -> tuple[Any, ...]:
        wins, visits, total = inputs
        score = _mean(wins, visits) + self.c * (total.clamp_min(1).log() / visits.clamp_min(1)).sqrt()
        return (torch.where(visits > 0, score, torch.inf),)


class UCB1TunedScore(PolicyModule):
    """UCB1 whose exploration is bounded by the returns' variance; infinite for an action that was never tried.

    ``m + e * sqrt(ln N / n * min(1/4, v + sqrt(2 ln N / n)))`` with mean m and variance v of an action's returns.

    Source: Auer, Cesa-Bianchi, Fischer 2002, section 4, for returns in [0, 1].

    Args:
        win_count_key: sum of the returns of each action ``[*B, n]``.
        visits_key: how often it was tried ``[*B, n]``.
        total_visits_key: visits of the node ``[*B, 1]``.
        sum_squared_rewards_key: sum of the returns' squares ``[*B, n]``.
        score_key: written, ``[*B, n]``.
        exploration_constant: e.
    """

    def __init__(
        self,
        win_count_key: Key = "wins",
        visits_key: Key = "visits",
        total_visits_key: Key = "total_visits",
        sum_squared_rewards_key: Key = "sum_squared_rewards",
        score_key: Key = "score",
        exploration_constant: float = 1.0,
    ) -> None:
        super().__init__()
        self.exploration_constant = exploration_constant
        self._set_keys([win_count_key, visits_key, total_visits_key, sum_squared_rewards_key], [score_key])

    def _compute(self, *inputs: Tensor) -> tuple[Any, ...]:
        wins, visits, total, squares = inputs
        mean = _mean(wins, visits)
        rate = total.clamp_min(1).log() / visits.clamp_min(1)
        variance = (squares / visits.clamp_min(1) - mean.square()).clamp_min(0) + (2 * rate).sqrt()
        score = mean + self.exploration_constant * (rate * variance.clamp_max(0.25)).sqrt()
        return (torch.where(visits > 0, score, torch.inf),)


class EXP3Score(PolicyModule):
    """Probabilities ``(1 - gamma) * w / sum(w) + gamma / n`` of a bandit with adversarial returns.

    Source: Auer, Cesa-Bianchi, Freund, Schapire 2002, "The Nonstochastic Multiarmed Bandit Problem", figure 1.

    Args:
        gamma: share of uniform exploration, in (0, 1].
        weights_key: weights of the actions ``[*B, n]``, see :meth:`update_weights`.
        score_key: written, ``[*B, n]``.

    >>> score = EXP3Score(gamma=0.5)
    >>> score(torch.tensor([3.0, 1.0]))
    tensor([0.6250, 0.3750])
    """

    def __init__(self, gamma: float = 0.1, weights_key: Key = "weights", score_key: Key = "score") -> None:
        super().__init__()
        if not 0 < gamma <= 1:
            raise ValueError(f"EXP3Score needs a gamma in (0, 1]; got {gamma}")
        self.gamma = gamma
        self._set_keys([weights_key], [score_key])

    def _compute(self, *inputs: Tensor) -> tuple[Any, ...]:
        (weights,) = inputs
        return ((1 - self.gamma) * weights / weights.sum(-1, keepdim=True) + self.gamma / weights.shape[-1],)

    def update_weights(self, weights: Tensor, action: Tensor, reward: Tensor) -> Tensor:
        """The weights after a return: ``w_a * exp(gamma * reward / (p_a * n))``.

        Args:
            weights: ``[*B, n]``.
            action: int ``[*B]``, which was taken.
            reward: ``[*B]``, in [0, 1].
        """
        (probability,) = self._compute(weights)
        index = action.unsqueeze(-1)
        rate = self.gamma / weights.shape[-1] * reward.unsqueeze(-1) / probability.gather(-1, index)
        return weights.scatter(-1, index, weights.gather(-1, index) * rate.exp())


class MCTSScores(Enum):
    """The scores by name, with usual constants: ``MCTSScores.UCB.make()``."""

    PUCT = "puct"
    UCB = "ucb"
    UCB1_TUNED = "ucb1_tuned"
    EXP3 = "exp3"

    def make(self) -> PolicyModule:
        """A new module."""
        if self is MCTSScores.PUCT:
            return PUCTScore(c=5.0)
        if self is MCTSScores.UCB:
            return UCBScore(c=2.0**0.5)
        return UCB1TunedScore() if self is MCTSScores.UCB1_TUNED else EXP3Score(gamma=0.1)


def _mean(wins: Tensor, visits: Tensor) -> Tensor:
    return wins / visits.clamp_min(1)
