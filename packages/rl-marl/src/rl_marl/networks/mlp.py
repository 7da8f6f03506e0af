"""MultiAgentMLP: a multi-layer perceptron for a group of agents, shared or one each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_marl.networks.base import MultiAgentNetBase, one_spelling
from rl_modules.networks.mlp import MLP

__all__ = ["MultiAgentMLP"]


class MultiAgentMLP(MultiAgentNetBase):
    """A multi-layer perceptron for a group of agents: inputs ``[*B, n, F]``, outputs ``[*B, n, n_agent_outputs]``.

    With separate nets, linear layers and elementwise activations are computed for all agents at once; any other layer
    (a norm, a ``layer_class``) makes the nets run one after the other.

    Args:
        n_agent_inputs: features F of one agent's (joined) input; found at the first call where None.
        n_agent_outputs: outputs of one agent, a number or a shape.
        n_agents: agents of the group.
        centralized: whether each output depends on the inputs of all agents.
        share_params: whether all agents have one net.
        device: device of the parameters.
        depth: hidden layers, see :class:`rl_modules.MLP`.
        num_cells: features of the hidden layers, likewise.
        activation_class: activation of hidden layers.
        agent_id: append the agent's index, one-hot, to its input.
        use_td_params: accepted for compatibility; parameters are ordinary ones.
        centralised: older spelling of ``centralized``.
        **mlp_options: of :class:`rl_modules.MLP`: ``dropout``, ``norm_class``, ``layer_class``, ...

    Raises:
        TypeError: centralized or share_params is missing.

    >>> net = MultiAgentMLP(4, 2, 3, centralized=False, share_params=True, depth=2, num_cells=8)
    >>> net(torch.zeros(5, 3, 4)).shape
    torch.Size([5, 3, 2])
    >>> sum(p.numel() for p in net.parameters())
    130
    """

    def __init__(
        self,
        n_agent_inputs: int | None,
        n_agent_outputs: int | Sequence[int],
        n_agents: int,
        *,
        centralized: bool | None = None,
        share_params: bool | None = None,
        device: torch.device | str | None = None,
        depth: int | None = None,
        num_cells: int | Sequence[int] | None = None,
        activation_class: Callable[..., nn.Module] = nn.Tanh,
        agent_id: bool = False,
        use_td_params: bool = True,
        centralised: bool | None = None,
        **mlp_options: Any,
    ) -> None:
        self.n_agent_inputs, self.n_agent_outputs = n_agent_inputs, n_agent_outputs
        super().__init__(
            n_agents=n_agents,
            centralized=one_spelling(type(self).__name__, centralized, centralised, share_params),
            share_params=bool(share_params),
            agent_dim=-2,
            agent_id=agent_id,
            device=device,
            use_td_params=use_td_params,
            depth=depth,
            num_cells=num_cells,
            activation_class=activation_class,
            **mlp_options,
        )

    def _build_single_net(self, *, device: torch.device | str | None, **mlp_options: Any) -> nn.Module:
        return MLP(self.input_features(self.n_agent_inputs), self.n_agent_outputs, device=device, **mlp_options)

    def _pre_forward_check(self, inputs: Tensor) -> Tensor:
        inputs = super()._pre_forward_check(inputs)
        if self.n_agent_inputs is not None and inputs.shape[-1] != self.n_agent_inputs:
            raise SpecError(
                f"{type(self).__name__} needs {self.n_agent_inputs} features per agent (n_agent_inputs); got "
                f"{inputs.shape[-1]} in {list(inputs.shape)}"
            )
        return inputs
