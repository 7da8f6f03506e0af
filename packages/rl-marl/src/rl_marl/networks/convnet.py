"""MultiAgentConvNet: a convolutional net for a group of agents, shared or one each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_marl.networks.base import MultiAgentNetBase, one_spelling
from rl_modules.networks.convnet import ConvNet

__all__ = ["MultiAgentConvNet"]


class MultiAgentConvNet(MultiAgentNetBase):
    """A convolutional net for a group of agents: images ``[*B, n, C, H, W]`` in, features ``[*B, n, F]`` out.

    Inputs are joined on the channels. With separate nets, convolutions and elementwise activations are computed for
    all agents at once; a norm makes the nets run one after the other.

    Args:
        n_agents: agents of the group.
        centralized: whether each output depends on the images of all agents.
        share_params: whether all agents have one net.
        device: device of the parameters.
        in_features: channels C of one agent's (joined) images; found at the first call where None.
        num_cells: channels of each layer, or of all of them, see :class:`rl_modules.ConvNet`.
        kernel_sizes: kernel of each layer, or of all of them.
        strides: stride of each layer, or of all of them.
        paddings: padding of each layer, or of all of them.
        activation_class: activation after each convolution.
        agent_id: append the agent's index as n one-hot channels.
        use_td_params: accepted for compatibility; parameters are ordinary ones.
        centralised: older spelling of ``centralized``.
        **conv_options: of :class:`rl_modules.ConvNet`: ``depth``, ``norm_class``, ``aggregator_class``, ...

    Raises:
        TypeError: centralized or share_params is missing.

    >>> net = MultiAgentConvNet(3, centralized=False, share_params=False, in_features=1, num_cells=[4], kernel_sizes=3)
    >>> net(torch.zeros(5, 3, 1, 9, 9)).shape
    torch.Size([5, 3, 64])
    """

    def __init__(
        self,
        n_agents: int,
        centralized: bool | None = None,
        share_params: bool | None = None,
        *,
        device: torch.device | str | None = None,
        in_features: int | None = None,
        num_cells: int | Sequence[int] | None = None,
        kernel_sizes: int | Sequence[Any] = 5,
        strides: int | Sequence[Any] = 2,
        paddings: int | Sequence[Any] = 0,
        activation_class: Callable[..., nn.Module] = nn.ELU,
        agent_id: bool = False,
        use_td_params: bool = True,
        centralised: bool | None = None,
        **conv_options: Any,
    ) -> None:
        self.in_features = in_features
        super().__init__(
            n_agents=n_agents,
            centralized=one_spelling(type(self).__name__, centralized, centralised, share_params),
            share_params=bool(share_params),
            agent_dim=-4,
            agent_id=agent_id,
            device=device,
            use_td_params=use_td_params,
            num_cells=num_cells,
            kernel_sizes=kernel_sizes,
            strides=strides,
            paddings=paddings,
            activation_class=activation_class,
            **conv_options,
        )

    def _build_single_net(self, *, device: torch.device | str | None, **conv_options: Any) -> nn.Module:
        return ConvNet(self.input_features(self.in_features), device=device, **conv_options)

    def _pre_forward_check(self, inputs: Tensor) -> Tensor:
        inputs = super()._pre_forward_check(inputs)
        if self.in_features is not None and inputs.shape[-3] != self.in_features:
            raise SpecError(
                f"{type(self).__name__} needs {self.in_features} channels per agent (in_features); got "
                f"{inputs.shape[-3]} in {list(inputs.shape)}"
            )
        return inputs
