"""Losses over the tokens of answers, one file a loss."""

from rl_llm.losses.cispo import CISPOLoss
from rl_llm.losses.dapo import DAPO
from rl_llm.losses.grpo import GRPOLoss
from rl_llm.losses.sft import SFTLoss

__all__ = ["DAPO", "CISPOLoss", "GRPOLoss", "SFTLoss"]
