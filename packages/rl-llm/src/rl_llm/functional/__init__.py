"""Ratios, clips, weights, divergences, advantages and means over tokens, on plain tensors: no keys and no module.

Token tensors are ``[*B, L]``; position t belongs to token t. A mask is bool ``[*B, L]``, True where the policy
generated the token. What stands elsewhere, NaN included, is never used.
"""

from rl_llm.functional.advantage import GroupAdvantage, group_advantage
from rl_llm.functional.aggregation import aggregate, count_items, masked_token_mean
from rl_llm.functional.grpo import (
    cispo_gain,
    clipped_gain,
    clipped_ratio,
    sequence_log_ratio,
    sequence_mean_log_ratio,
    token_log_ratio,
)
from rl_llm.functional.importance import ImportanceWeights, importance_weights
from rl_llm.functional.kl import kl_estimate, kl_tokens
from rl_llm.functional.returns import discounted_returns, trajectory_index, trajectory_return

__all__ = [
    "GroupAdvantage",
    "ImportanceWeights",
    "aggregate",
    "cispo_gain",
    "clipped_gain",
    "clipped_ratio",
    "count_items",
    "discounted_returns",
    "group_advantage",
    "importance_weights",
    "kl_estimate",
    "kl_tokens",
    "masked_token_mean",
    "sequence_log_ratio",
    "sequence_mean_log_ratio",
    "token_log_ratio",
    "trajectory_index",
    "trajectory_return",
]
