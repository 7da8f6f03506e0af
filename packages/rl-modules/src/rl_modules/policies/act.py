"""A policy that writes a chunk of actions at once, trained as the decoder of a variational autoencoder."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.keys import Key, as_keys
from rl_modules.policies.base import PolicyModule
from rl_modules.policies.safe_module import Keys

__all__ = ["ACTActor", "ChunkCoder"]


@runtime_checkable
class ChunkCoder(Protocol):
    """What an :class:`ACTActor` needs of its network, such as ``ACTNetwork``."""

    latent_dim: int
    """Numbers in the style z, Z."""

    def encode(self, action: Tensor, padding: Tensor | None, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Mean and log-variance of z, ``[*B, Z]``, of chunks ``[*B, T, A]`` with padding bool ``[*B, T]``, if any."""
        ...

    def decode(self, latent: Tensor, *inputs: Tensor) -> Tensor:
        """Chunks ``[*B, T, A]`` of z ``[*B, Z]``."""
        ...


class ACTActor(PolicyModule):
    r"""Decodes a chunk of actions from observations and a style, which is the prior's mean, 0, when it acts.

    .. math:: (a_t, ..., a_{t + T - 1}) = \pi_\theta(s_t, z = 0)

    ``ACTLoss`` trains it with styles that an encoder finds in demonstrated chunks. To take the actions of a chunk in an
    environment, wrap it: ``TemporalEnsemble`` asks it at each step and averages what it said of that step,
    ``MultiStepActorWrapper`` takes the actions one after the other. Call ``eval()`` before it acts: the network may
    have dropout.

    Args:
        network: a :class:`ChunkCoder`: it has ``latent_dim``, ``encode`` and ``decode``.
        in_keys: the observations: a vector ``[*B, F]``, then whatever else the network reads.
        out_keys: the chunk of actions.

    Raises:
        SpecError: the network is no such one.

    Zhao et al., 2023, Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware, algorithm 2,
    arXiv 2304.13705.

    >>> import torch
    >>> from rl_modules import ACTNetwork
    >>> net = ACTNetwork(3, 2, 5, n_embd=8, n_head=2, n_inner=16, n_encoder_layer=1, n_decoder_layer=1)
    >>> ACTActor(net)(torch.zeros(7, 3)).shape
    torch.Size([7, 5, 2])
    """

    def __init__(self, network: nn.Module, *, in_keys: Keys | None = None, out_keys: Keys | None = None) -> None:
        super().__init__()
        if not isinstance(network, ChunkCoder):
            raise SpecError(
                f"ACTActor needs a network with latent_dim, encode and decode, such as ACTNetwork; got "
                f"{type(network).__name__}"
            )
        keys: list[Key] = ["observation"] if in_keys is None else list(as_keys(in_keys))
        self._set_keys(keys, ["action"] if out_keys is None else as_keys(out_keys))
        self.network = network

    def encode(self, action: Tensor, padding: Tensor | None, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Mean and log-variance ``[*B, Z]`` of the style of a chunk.

        Args:
            action: ``[*B, T, A]``.
            padding: bool ``[*B, T]``, True for actions that are not to be read; None: all are.
            *inputs: the observations, ``[*B, ...]``.
        """
        return self.network.encode(action, padding, *inputs)

    def decode(self, latent: Tensor, *inputs: Tensor) -> Tensor:
        """A chunk ``[*B, T, A]``.

        Args:
            latent: the style, ``[*B, Z]``.
            *inputs: the observations, ``[*B, ...]``.
        """
        return self.network.decode(latent, *inputs)

    def _compute(self, *inputs: Tensor) -> tuple[Any, ...]:
        vector = inputs[0]
        return (self.network.decode(vector.new_zeros(*vector.shape[:-1], self.network.latent_dim), *inputs),)
