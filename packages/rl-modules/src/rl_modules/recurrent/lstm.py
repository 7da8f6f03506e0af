"""Long short-term memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_core.keys import Key
from rl_modules.policies.safe_module import Keys
from rl_modules.recurrent.module import RecurrentModule, Weights

__all__ = ["LSTMModule"]


class LSTMModule(RecurrentModule):
    """An LSTM with two modes that give the same outputs.

    **Steps** ``[*B]`` (the default, for acting): reads input and states, writes the output and, under "next", the
    states of the next step. **Sequences** ``[*B, T]`` (``with set_recurrent_mode(True)``, for training): runs along the
    last batch dimension.

    In both, a row whose flag ``is_init`` is True starts from the zero state, whatever state is stored there. In a
    sequence, row 0 starts from the state stored at row 0 unless it is flagged; states stored elsewhere are not read,
    and no state passes from one sequence of the batch to another. A slice that begins in the middle of an episode
    thus starts from its stored state, or from zero if its first row is flagged. Slices that lie one after the other
    in one dimension need the flag on their first rows (or a reshape to ``[N, T]``).

    A sequence has its true states under "next" only at the last step of each piece between resets, zeros elsewhere.

    Args:
        input_size: F.
        hidden_size: H.
        num_layers: number of layers.
        bias: whether layers have biases.
        batch_first: accepted for torch's signature; always True.
        dropout: probability of dropout between layers, in training.
        proj_size: accepted for torch's signature; always 0.
        bidirectional: accepted for torch's signature; always False.
        python_based: accepted for compatibility; there is one implementation.
        recurrent_backend: accepted for compatibility ("auto", "pad", "scan", "triton"): sequences are packed, so that
            neither padding nor resets cost anything.
        in_key: key of the input ``[*B, F]``; the states are then "recurrent_state_h" and "recurrent_state_c".
        in_keys: keys of the input and the two states ``[*B, layers, H]``, and of the flag if it is not "is_init".
        out_key: key of the output ``[*B, H]``.
        out_keys: keys of the output and of the two states under "next".
        device: of the weights.
        dtype: of the weights.
        lstm: a network to use instead of a new one; made with ``batch_first=True``.
        default_recurrent_mode: the mode outside of :class:`set_recurrent_mode`, False unless given.

    Source: Hochreiter, Schmidhuber 1997, "Long Short-Term Memory".

    >>> from tensordict import TensorDict
    >>> module = LSTMModule(3, 8, in_key="observation", out_key="features")
    >>> module.in_keys
    ['observation', 'recurrent_state_h', 'recurrent_state_c', 'is_init']
    >>> state = torch.zeros(4, 1, 8)
    >>> data = TensorDict({"observation": torch.zeros(4, 3), "recurrent_state_h": state, "recurrent_state_c": state,
    ...                    "is_init": torch.ones(4, 1, dtype=torch.bool)}, [4])
    >>> module(data)["next", "recurrent_state_h"].shape
    torch.Size([4, 1, 8])
    """

    state_names = ("recurrent_state_h", "recurrent_state_c")
    network_name = "lstm"

    def __init__(
        self,
        input_size: int | None = None,
        hidden_size: int | None = None,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        dropout: float = 0.0,
        proj_size: int = 0,
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
        lstm: nn.LSTM | None = None,
        default_recurrent_mode: bool | None = None,
    ) -> None:
        super().__init__()
        if lstm is None:
            if input_size is None or hidden_size is None:
                raise ValueError("LSTMModule needs input_size and hidden_size, or a network lstm=")
            lstm = nn.LSTM(
                input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype
            )
        self._set_up(lstm, in_keys, out_keys, in_key, out_key, default_recurrent_mode, recurrent_backend)

    def _layer_step(self, value: Tensor, states: Sequence[Tensor], weights: Weights) -> tuple[Tensor, ...]:
        return torch.lstm_cell(value, list(states), *weights)

    def _run_network(self, value: Any, states: list[Tensor]) -> tuple[Any, list[Tensor]]:
        output, ends = self.network(value, tuple(states))
        return output, list(ends)
