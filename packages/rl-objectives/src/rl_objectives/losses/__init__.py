"""Losses, one file a family."""

from rl_objectives.losses.ppo import ClipPPOLoss, PPOLoss

__all__ = ["ClipPPOLoss", "PPOLoss"]
