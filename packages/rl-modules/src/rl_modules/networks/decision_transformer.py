"""The decision transformer, a causal model over returns-to-go, observations and actions, and its plain actor."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_modules.networks.causal_transformer import CausalTransformer

__all__ = ["DTActor", "DTConfig", "DecisionTransformer", "as_config"]


@dataclass(frozen=True, kw_only=True)
class DTConfig:
    """The size of a decision transformer."""

    n_embd: int = 256
    """Features of a token."""
    n_layer: int = 4
    """Number of blocks."""
    n_head: int = 4
    """Attention heads; divides ``n_embd``."""
    n_inner: int = 1024
    """Hidden features of the perceptrons."""
    activation: str = "relu"
    """Of the perceptrons: "relu", "gelu", "silu" or "tanh"."""
    n_positions: int = 1024
    """The longest window; where time steps are given, one more than the largest of them."""
    resid_pdrop: float = 0.1
    """Dropout of embeddings and of what a block adds."""
    attn_pdrop: float = 0.1
    """Dropout of attention weights."""


def as_config(config: DTConfig | Mapping[str, Any] | None, default: DTConfig) -> DTConfig:
    """A configuration from one, from a mapping of some of its fields, or the default.

    Raises:
        ValueError: a field is unknown.
    """
    if config is None or isinstance(config, DTConfig):
        return config or default
    known = [field.name for field in dataclasses.fields(DTConfig)]
    unknown = [name for name in config if name not in known]
    if unknown:
        raise ValueError(f"A decision transformer has no setting {unknown}; it has {known}.")
    return dataclasses.replace(default, **config)


class DecisionTransformer(nn.Module):
    """Features of each step of a trajectory, from the steps before, its observation and the return still wanted.

    A step becomes three tokens, in this order: return-to-go, observation, action. Each is embedded linearly, the
    embedding of the step's position is added to all three, and a causal transformer runs over them. The output is that
    of the observation's token: it has seen the step's return-to-go and observation, and actions of earlier steps only.

    Args:
        state_dim: features of an observation.
        action_dim: features of an action.
        config: a :class:`DTConfig`, or a mapping of some of its fields.
        device: device of the parameters.

    Raises:
        ValueError: a field of the configuration is unknown or does not fit.

    Chen et al., 2021, Decision Transformer: Reinforcement Learning via Sequence Modeling, section 3, arXiv 2106.01345.

    >>> config = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_inner": 32}
    >>> model = DecisionTransformer(state_dim=3, action_dim=2, config=config)
    >>> model(torch.zeros(5, 10, 3), torch.zeros(5, 10, 2), torch.zeros(5, 10, 1)).shape
    torch.Size([5, 10, 16])
    """

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        config: DTConfig | Mapping[str, Any] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        sizes = as_config(config, self.default_config())
        self.state_dim, self.action_dim, self.config = state_dim, action_dim, sizes
        self.embed_return = nn.Linear(1, sizes.n_embd)
        self.embed_state = nn.Linear(state_dim, sizes.n_embd)
        self.embed_action = nn.Linear(action_dim, sizes.n_embd)
        self.embed_position = nn.Embedding(sizes.n_positions, sizes.n_embd)
        nn.init.normal_(self.embed_position.weight, std=0.02)
        self.embed_norm = nn.LayerNorm(sizes.n_embd)
        self.dropout = nn.Dropout(sizes.resid_pdrop)
        self.transformer = CausalTransformer(
            sizes.n_embd,
            sizes.n_layer,
            sizes.n_head,
            sizes.n_inner,
            sizes.activation,
            sizes.resid_pdrop,
            sizes.attn_pdrop,
        )
        if device is not None:
            self.to(device)

    @classmethod
    def default_config(cls) -> DTConfig:
        """The sizes in use unless others are given."""
        return DTConfig()

    @property
    def hidden_size(self) -> int:
        """Features of the output."""
        return self.config.n_embd

    def forward(
        self,
        observation: Tensor,
        action: Tensor,
        return_to_go: Tensor,
        timesteps: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """The features of each step.

        Args:
            observation: ``[*B, T, state_dim]``.
            action: ``[*B, T, action_dim]``, the action taken at each step; the last one is never looked at.
            return_to_go: ``[*B, T, 1]``, the sum of rewards wanted from the step on.
            timesteps: integers ``[*B, T]`` or ``[*B, T, 1]``, each step's index in its episode; None: its index in
                the window.
            mask: bool ``[*B, T]``, True for steps that count; None: all do. Outputs elsewhere are finite and without
                meaning.

        Returns:
            ``[*B, T, n_embd]``.

        Raises:
            SpecError: two shapes do not fit together, or there are more steps than positions.
        """
        batch = observation.shape[:-1]
        self._check(observation, action, return_to_go, timesteps, mask)
        length = batch[-1]
        position = self._positions(timesteps, length, observation.device)
        parts = (self.embed_return(return_to_go), self.embed_state(observation), self.embed_action(action))
        tokens = torch.stack([part + position for part in parts], -2).reshape(-1, 3 * length, self.hidden_size)
        tokens = self.dropout(self.embed_norm(tokens))
        seen = None if mask is None else mask.reshape(-1, length).repeat_interleave(3, -1)
        hidden = self.transformer(tokens, seen)
        output: Tensor = hidden[:, 1::3].reshape(*batch, self.hidden_size)
        return output

    def _positions(self, timesteps: Tensor | None, length: int, device: torch.device) -> Tensor:
        """The embedding of each step's position, ``[*B, T, H]`` or ``[T, H]``."""
        if timesteps is None:
            return self.embed_position.weight[:length]
        steps = timesteps.squeeze(-1) if timesteps.shape[-1:] == (1,) and length != 1 else timesteps
        position: Tensor = self.embed_position(steps)
        return position

    def _check(
        self, observation: Tensor, action: Tensor, return_to_go: Tensor, timesteps: Tensor | None, mask: Tensor | None
    ) -> None:
        batch = observation.shape[:-1]
        found = {"observation": observation, "action": action, "return_to_go": return_to_go}
        wanted = {"observation": self.state_dim, "action": self.action_dim, "return_to_go": 1}
        for name, value in found.items():
            if value.shape != (*batch, wanted[name]) or value.ndim < 2:
                raise SpecError(
                    f"{type(self).__name__}: {name} must be [*B, T, {wanted[name]}] with the observation's leading "
                    f"shape {list(batch)}; got {list(value.shape)}"
                )
        if mask is not None and (mask.dtype is not torch.bool or mask.shape != batch):
            raise SpecError(
                f"{type(self).__name__}: mask must be bool {list(batch)}; got {mask.dtype} {list(mask.shape)}"
            )
        if timesteps is None and batch[-1] > self.config.n_positions:
            raise SpecError(
                f"{type(self).__name__}: a window of {batch[-1]} steps has more positions than "
                f"n_positions={self.config.n_positions}; shorten it, or raise n_positions"
            )
        if timesteps is not None and timesteps.shape not in (batch, (*batch, 1)):
            raise SpecError(f"{type(self).__name__}: timesteps must be {list(batch)}; got {list(timesteps.shape)}")


class DTActor(nn.Module):
    """The action of each step of a trajectory, as a point: the head of a decision transformer.

    The output is not bounded: give it to a ``ProbabilisticActor`` as ``param`` of a ``TanhDelta`` (or ``Delta``).

    Args:
        state_dim: features of an observation.
        action_dim: features of an action, A.
        transformer_config: a :class:`DTConfig`, or a mapping of some of its fields.
        device: device of the parameters.

    Chen et al., 2021, arXiv 2106.01345.

    >>> from rl_modules import ProbabilisticActor, SafeModule, TanhDelta
    >>> net = DTActor(3, 2, {"n_embd": 16, "n_layer": 1, "n_head": 1, "n_inner": 32})
    >>> actor = ProbabilisticActor(
    ...     SafeModule(net, in_keys=["observation", "action", "return_to_go"], out_keys=["param"]),
    ...     in_keys=["param"],
    ...     distribution_class=TanhDelta,
    ... )
    >>> actor(torch.zeros(5, 10, 3), torch.zeros(5, 10, 2), torch.zeros(5, 10, 1))[1].shape
    torch.Size([5, 10, 2])
    """

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        transformer_config: DTConfig | Mapping[str, Any] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        config = as_config(transformer_config, self.default_config())
        self.transformer = DecisionTransformer(state_dim, action_dim, config, device)
        self.action_layer = nn.Linear(config.n_embd, action_dim, device=device)

    @classmethod
    def default_config(cls) -> DTConfig:
        """The sizes in use unless others are given."""
        return DTConfig(n_embd=512, n_layer=4, n_head=4, n_inner=2048)

    def forward(
        self,
        observation: Tensor,
        action: Tensor,
        return_to_go: Tensor,
        timesteps: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """``[*B, T, A]``; the arguments are those of :meth:`DecisionTransformer.forward`."""
        hidden = self.transformer(observation, action, return_to_go, timesteps, mask)
        output: Tensor = self.action_layer(hidden)
        return output
