"""MultiAgentNetBase: one net for a group of agents, or one for each, on their own inputs or on all inputs."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_marl.networks.separate import BatchedNet, SeparateNets, separate_nets

__all__ = ["MultiAgentNetBase", "one_spelling"]


class MultiAgentNetBase(nn.Module, ABC):
    """Inputs of n agents in, outputs of n agents out.

    ============  =============  ==========================================================================
    centralized   share_params   what is computed
    ============  =============  ==========================================================================
    False         True           one net, on each agent's input
    False         False          a net of its own for each agent, on its own input
    True          True           one net on all inputs joined; every agent gets its output (an expanded view)
    True          False          a net of its own for each agent, on all inputs joined
    ============  =============  ==========================================================================

    Separate nets are independent: parameters have a leading agent dimension, and each agent's part is drawn on its own.
    A decentralised net treats agents row by row, so the rows of agents that do not act disturb nobody. A centralized
    net sees them: environments write zeros there, or pass ``mask``.

    A subclass implements :meth:`_build_single_net`.

    Args:
        n_agents: agents of the group.
        centralized: whether the input is that of all agents.
        share_params: whether all agents have one net.
        agent_dim: where the agents lie, counted from the end: -2 for vectors ``[*B, n, F]``, -4 for images
            ``[*B, n, C, H, W]``.
        agent_id: append the agent's index, one-hot, to its input, so that agents with one net may differ.
        device: device of the parameters.
        use_td_params: accepted for compatibility; parameters are ordinary ones.
        **net_options: for :meth:`_build_single_net`.

    Raises:
        SpecError: n_agents or agent_dim is out of range.
    """

    def __init__(
        self,
        *,
        n_agents: int,
        centralized: bool,
        share_params: bool,
        agent_dim: int,
        agent_id: bool = False,
        device: torch.device | str | None = None,
        use_td_params: bool = True,
        **net_options: Any,
    ) -> None:
        super().__init__()
        if n_agents < 1:
            raise SpecError(f"{type(self).__name__} needs at least one agent; got n_agents={n_agents}")
        if agent_dim > -2:
            raise SpecError(f"agent_dim is counted from the end, -2 or less; got {agent_dim}")
        self.n_agents, self.agent_dim = n_agents, agent_dim
        self.centralized, self.share_params = centralized, share_params
        self.agent_id = agent_id
        self._identity: Tensor
        if agent_id:
            self.register_buffer("_identity", torch.eye(n_agents, device=device), persistent=False)

        def build() -> nn.Module:
            return self._build_single_net(device=device, **net_options)

        self.net = build() if share_params else separate_nets(build, n_agents, -agent_dim - 1)

    @abstractmethod
    def _build_single_net(self, *, device: torch.device | str | None, **net_options: Any) -> nn.Module:
        """The net of one agent, or of all: from rows ``[R, *features]`` to ``[R, *outputs]``.

        Its first features are those of one agent, or n times as many where ``self.centralized``, and ``self.n_agents``
        more where ``self.agent_id``: see :meth:`input_features`.
        """

    def input_features(self, agent_features: int | None) -> int | None:
        """How many features (or channels) a net reads, given those of one agent; None where these are unknown."""
        if agent_features is None:
            return None
        joint = agent_features * self.n_agents if self.centralized else agent_features
        return joint + self.n_agents if self.agent_id else joint

    def _pre_forward_check(self, inputs: Tensor) -> Tensor:
        """The joined inputs, checked; a subclass may check more, or reshape.

        Raises:
            SpecError: there is no dimension of agents where it should be, or it has another size.
        """
        if inputs.ndim < -self.agent_dim or inputs.shape[self.agent_dim] != self.n_agents:
            raise SpecError(
                f"{type(self).__name__} needs inputs with its {self.n_agents} agents on dim {self.agent_dim}; "
                f"got {list(inputs.shape)}"
            )
        return inputs

    def forward(self, inputs: Tensor, *more: Tensor, mask: Tensor | None = None) -> Tensor:
        """The outputs of all agents.

        Args:
            inputs: ``[*B, n, *features]``.
            *more: further inputs, joined with the first on the first feature dim.
            mask: bool ``[*B, n]``, True where the agent acts; inputs of the others are replaced by zeros.

        Returns:
            ``[*B, n, *outputs]``.

        Raises:
            SpecError: a shape does not fit.
        """
        joined = torch.cat([inputs, *more], self.agent_dim + 1) if more else inputs
        joined = self._pre_forward_check(joined)
        if mask is not None:
            joined = self._without_inactive(joined, mask)
        batch, features = joined.shape[: self.agent_dim], joined.shape[self.agent_dim + 1 :]
        if not self.share_params:
            output = self.net(self._agent_rows(joined.reshape(-1, self.n_agents, *features)))
        elif self.centralized and not self.agent_id:
            output = self.net(joined.reshape(-1, self.n_agents * features[0], *features[1:]))
            each = (self.n_agents, *output.shape[1:])
            return output.reshape(*batch, 1, *each[1:]).expand(*batch, *each)
        elif self.agent_id:
            rows = self._agent_rows(joined.reshape(-1, self.n_agents, *features))
            output = self.net(rows.flatten(0, 1)).unflatten(0, (-1, self.n_agents))
        else:
            output = self.net(joined.reshape(-1, *features))
            return output.reshape(*batch, self.n_agents, *output.shape[1:])
        return output.reshape(*batch, *output.shape[1:])

    def _agent_rows(self, rows: Tensor) -> Tensor:
        """What each agent's net reads, of inputs [R, n, *features]: [R, n, ...], or joint without the agent dim."""
        if self.centralized:
            rows = rows.flatten(1, 2)
        if not self.agent_id:
            return rows
        if self.centralized:
            rows = rows.unsqueeze(1).expand(-1, self.n_agents, *rows.shape[1:])
        identity = self._identity.to(rows.dtype).reshape(self.n_agents, self.n_agents, *[1] * (rows.ndim - 3))
        return torch.cat([rows, identity.expand(*rows.shape[:2], self.n_agents, *rows.shape[3:])], 2)

    def _without_inactive(self, inputs: Tensor, mask: Tensor) -> Tensor:
        expected = inputs.shape[: self.agent_dim + 1]
        if mask.dtype is not torch.bool or mask.shape != expected:
            raise SpecError(
                f"{type(self).__name__} takes a bool mask of shape {list(expected)}, one entry per row and agent; "
                f"got {mask.dtype} {list(mask.shape)}"
            )
        return inputs.masked_fill(~mask.reshape(*mask.shape, *[1] * (inputs.ndim - mask.ndim)), 0)

    def reset_parameters(self) -> None:
        """Draw all parameters anew; ``torch.manual_seed`` fixes the outcome."""
        for module in self.net.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()

    def get_stateful_net(self, agent: int | None = None) -> nn.Module:
        """A copy of the net of one agent, an ordinary module; the shared net where all agents have one.

        Args:
            agent: which agent, for separate nets.

        Raises:
            SpecError: nets are separate and no agent was named.
        """
        if isinstance(self.net, (BatchedNet, SeparateNets)):
            return self.net.agent_net(self._named_agent(agent))
        return copy.deepcopy(self.net)

    def from_stateful_net(self, net: nn.Module, agent: int | None = None) -> None:
        """Take over the weights of such a net, for instance one that was trained in a team of another size.

        Args:
            net: a net of the same layers.
            agent: which agent gets them, for separate nets.

        Raises:
            SpecError: nets are separate and no agent was named.
        """
        if isinstance(self.net, (BatchedNet, SeparateNets)):
            self.net.set_agent_net_(self._named_agent(agent), net)
        else:
            self.net.load_state_dict(net.state_dict())

    def _named_agent(self, agent: int | None) -> int:
        if agent is None or not 0 <= agent < self.n_agents:
            raise SpecError(
                f"this {type(self).__name__} has {self.n_agents} separate nets: name one, agent=0 to "
                f"agent={self.n_agents - 1}; got {agent}"
            )
        return agent

    def extra_repr(self) -> str:
        inputs = "the inputs of all agents" if self.centralized else "its own input"
        who = "one net shared by" if self.share_params else "a separate net for each of"
        identity = " and its index" if self.agent_id else ""
        return f"{who} {self.n_agents} agents, on {inputs}{identity}"


def one_spelling(owner: str, centralized: bool | None, centralised: bool | None, share_params: bool | None) -> bool:
    """Whether a net is centralized, from the two spellings of the argument.

    Raises:
        TypeError: none or both are given, or share_params is not.
    """
    if (centralized is None) == (centralised is None):
        raise TypeError(f"{owner} takes exactly one of centralized and centralised (an older spelling), as a bool")
    if share_params is None:
        raise TypeError(f"{owner} needs share_params: whether all agents have one net")
    return bool(centralised if centralized is None else centralized)
