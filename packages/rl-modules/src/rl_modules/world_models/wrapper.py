"""A world model as a chain: a transition model, then a reward model."""

from __future__ import annotations

from typing import Any

from torch import nn

from rl_modules.policies.sequential import SafeSequential

__all__ = ["WorldModelWrapper"]


class WorldModelWrapper(SafeSequential):
    """A transition model followed by a reward model, as ``DreamerEnv`` and the Dreamer losses take them.

    Args:
        transition_model: from state and action to the next state (and, for the losses, all beliefs about it).
        reward_model: from the next state to the reward.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> from rl_modules import SafeModule
    >>> model = WorldModelWrapper(
    ...     SafeModule(lambda state, action: state + action, ["state", "action"], ["state"]),
    ...     SafeModule(lambda state: -state.abs(), ["state"], ["reward"]),
    ... )
    >>> model(TensorDict({"state": torch.zeros(2, 1), "action": torch.ones(2, 1)}, [2]))["reward"].squeeze(-1)
    tensor([-1., -1.])
    """

    def __init__(self, transition_model: nn.Module, reward_model: nn.Module) -> None:
        super().__init__(transition_model, reward_model)

    def get_transition_model_operator(self) -> Any:
        """The transition model."""
        return self[0]

    def get_reward_operator(self) -> Any:
        """The reward model."""
        return self[1]
