"""One net per agent: all of them in batched layers where every layer has such a form, else one after the other."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_marl.networks.batched_conv import BatchedConv2d, LazyBatchedConv2d
from rl_marl.networks.batched_linear import BatchedLinear, LazyBatchedLinear
from rl_modules.networks.convnet import ConvNet, SquashDims
from rl_modules.networks.mlp import MLP

__all__ = ["BatchedNet", "SeparateNets", "separate_nets"]

# Layers without parameters that treat agents apart, whichever dimension these lie on.
_ELEMENTWISE = (nn.Identity, nn.Dropout, nn.Tanh, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU)
_ELEMENTWISE += (nn.SiLU, nn.Mish, nn.Softplus, nn.Softsign, nn.Sigmoid, nn.LogSigmoid, nn.Hardtanh)  # type: ignore[assignment]
_ELEMENTWISE += (nn.Hardswish, nn.Hardsigmoid, nn.Tanhshrink)  # type: ignore[assignment]


class BatchedNet(nn.Sequential):
    """The nets of all agents, each layer computed for all of them at once.

    ``state_dict`` has the names of a single net, each tensor with a leading agent dimension.
    """

    def agent_net(self, agent: int) -> nn.Module:
        """A copy of one agent's net."""
        layers = [layer.agent_layer() if isinstance(layer, _BATCHED) else copy.deepcopy(layer) for layer in self]
        net = nn.Sequential(*layers)
        net.load_state_dict({name: value[agent] for name, value in self.state_dict().items()})
        return net

    @torch.no_grad()
    def set_agent_net_(self, agent: int, net: nn.Module) -> None:
        """Take over the weights of one agent's net."""
        given, own = net.state_dict(), self.state_dict()
        if given.keys() != own.keys():
            raise SpecError(f"the net holds {sorted(given)}; expected {sorted(own)}, a net of the same layers")
        for name, value in given.items():
            own[name][agent].copy_(value)


class SeparateNets(nn.ModuleList):
    """The nets of all agents, called one after the other: for layers that have no batched form.

    Args:
        nets: one per agent.
        feature_dims: dims of one agent's input, 1 for vectors, 3 for images.
    """

    def __init__(self, nets: Sequence[nn.Module], feature_dims: int) -> None:
        super().__init__(nets)
        self.feature_dims = feature_dims

    def forward(self, rows: Tensor) -> Tensor:
        """Outputs ``[R, n, ...]`` of inputs ``[R, n, ...]``, or of joint inputs without the agent dimension."""
        joint = rows.ndim == self.feature_dims + 1
        return torch.stack([net(rows if joint else rows[:, agent]) for agent, net in enumerate(self)], 1)

    def agent_net(self, agent: int) -> nn.Module:
        """A copy of one agent's net."""
        return copy.deepcopy(self[agent])

    def set_agent_net_(self, agent: int, net: nn.Module) -> None:
        """Take over the weights of one agent's net."""
        self[agent].load_state_dict(net.state_dict())


def separate_nets(build: Callable[[], nn.Module], n_agents: int, feature_dims: int) -> BatchedNet | SeparateNets:
    """One net per agent, each with the initialisation that ``build`` gives it.

    Args:
        build: makes one agent's net; called once per agent.
        n_agents: how many.
        feature_dims: dims of one agent's input.

    Returns:
        A module from ``[R, n, ...]``, or a joint input without the agent dimension, to ``[R, n, ...]``.
    """
    nets = [build() for _ in range(n_agents)]
    # A subclass may do more in its forward than call its layers in turn.
    if type(nets[0]) in (MLP, ConvNet, nn.Sequential):
        layers = [_batched(list(layers)) for layers in zip(*nets, strict=True)]
        known = [layer for layer in layers if layer is not None]
        # The first layer turns a joint input into one output per agent.
        if known and len(known) == len(layers) and isinstance(known[0], _BATCHED):
            return BatchedNet(*known)
    return SeparateNets(nets, feature_dims)


_BATCHED = (BatchedLinear, BatchedConv2d)


def _batched(layers: list[nn.Module]) -> nn.Module | None:
    """The batched form of one layer of all agents, or None where there is none."""
    first = layers[0]
    kind = type(first)
    if isinstance(first, nn.LazyLinear):
        return LazyBatchedLinear(first, len(layers))
    if kind is nn.Linear:
        return BatchedLinear.stack(layers)  # type: ignore[arg-type]
    if kind in (nn.Conv2d, nn.LazyConv2d) and first.groups == 1 and first.padding_mode == "zeros":
        if isinstance(first, nn.LazyConv2d):
            return LazyBatchedConv2d(first, len(layers))
        return BatchedConv2d.stack(layers)  # type: ignore[arg-type]
    negative_dim = isinstance(first, nn.Unflatten) and isinstance(first.dim, int) and first.dim < 0
    return first if kind in _ELEMENTWISE or kind is SquashDims or negative_dim else None
