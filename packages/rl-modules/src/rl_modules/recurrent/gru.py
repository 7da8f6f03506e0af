"""Gated recurrent unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_core.keys import Key
from rl_modules.policies.safe_module import Keys
from rl_modules.recurrent.module import RecurrentModule, Weights

__all__ = ["GRUModule"]


class GRUModule(RecurrentModule):
    """A GRU with two modes, steps and sequences, that give the same outputs; both as of :class:`LSTMModule`.

    Args:
        input_size: F.
        hidden_size: H.
        num_layers: number of layers.
        bias: whether layers have biases.
        batch_first: accepted for torch's signature; always True.
        dropout: probability of dropout between layers, in training.
        bidirectional: accepted for torch's signature; always False.
        python_based: accepted for compatibility; there is one implementation.
        recurrent_backend: accepted for compatibility: "auto", "pad", "scan", "triton".
        in_key: key of the input ``[*B, F]``; the state is then "recurrent_state".
        in_keys: keys of the input and the state ``[*B, layers, H]``, and of the flag if it is not "is_init".
        out_key: key of the output ``[*B, H]``.
        out_keys: keys of the output and of the state under "next".
        device: of the weights.
        dtype: of the weights.
        gru: a network to use instead of a new one; made with ``batch_first=True``.
        default_recurrent_mode: the mode outside of :class:`set_recurrent_mode`, False unless given.

    Source: Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder", arXiv 1406.1078.

    >>> GRUModule(3, 8, in_key="observation", out_key="features").out_keys
    ['features', ('next', 'recurrent_state')]
    """

    state_names = ("recurrent_state",)
    network_name = "gru"

    def __init__(
        self,
        input_size: int | None = None,
        hidden_size: int | None = None,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        python_based: bool = False,
        recurrent_backend: str = "auto",
        *,
        in_key: Key | None = None,
        in_keys: Keys | None = None,
        out_key: Key | None = None,
        out_keys: Keys | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        gru: nn.GRU | None = None,
        default_recurrent_mode: bool | None = None,
    ) -> None:
        super().__init__()
        if gru is None:
            if input_size is None or hidden_size is None:
                raise ValueError("GRUModule needs input_size and hidden_size, or a network gru=")
            gru = nn.GRU(
                input_size,
                hidden_size,
                num_layers,
                bias,
                batch_first,
                dropout,
                bidirectional,
                device=device,
                dtype=dtype,
            )
        self._set_up(gru, in_keys, out_keys, in_key, out_key, default_recurrent_mode, recurrent_backend)

    def _layer_step(self, value: Tensor, states: Sequence[Tensor], weights: Weights) -> tuple[Tensor, ...]:
        return (torch.gru_cell(value, states[0], *weights),)

    def _run_network(self, value: Any, states: list[Tensor]) -> tuple[Any, list[Tensor]]:
        output, end = self.network(value, states[0])
        return output, [end]
