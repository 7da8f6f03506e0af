"""What the recurrent modules share: keys, the two modes, resets, and checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_core import CarriedState, StateCarrier, Transform, Unbounded, recurrent_burn_in, recurrent_mode
from rl_core.errors import PolicyError
from rl_core.keys import Key, as_key, as_keys, as_path, join
from rl_modules.policies.base import PolicyModule
from rl_modules.policies.safe_module import Keys
from rl_modules.recurrent.pieces import Pieces, run_chunks, run_packed
from rl_modules.recurrent.primers import get_primers_from_module

__all__ = ["RecurrentModule", "Weights"]

Weights: TypeAlias = "tuple[Tensor, Tensor, Tensor | None, Tensor | None]"
"""Of one layer: input to hidden, hidden to hidden, and the two biases."""

_BACKENDS = ("auto", "pad", "scan", "triton")


class RecurrentModule(StateCarrier, PolicyModule):
    """Base of :class:`LSTMModule` and :class:`GRUModule`.

    A subclass gives the network, the step of one layer, and the names of its states.
    """

    state_names: ClassVar[tuple[str, ...]]
    network_name: ClassVar[str]

    def _set_up(
        self,
        network: nn.RNNBase,
        in_keys: Keys | None,
        out_keys: Keys | None,
        in_key: Key | None,
        out_key: Key | None,
        default_recurrent_mode: bool | None,
        recurrent_backend: str,
    ) -> None:
        name = str(type(self).__name__)
        if recurrent_backend not in _BACKENDS:
            raise ValueError(f"{name}: recurrent_backend is one of {_BACKENDS}; got {recurrent_backend!r}")
        if network.bidirectional:
            raise ValueError(f"{name} acts step by step and cannot look ahead; bidirectional must be False")
        if network.proj_size:
            raise ValueError(f"{name} has no projections; proj_size must be 0, got {network.proj_size}")
        if not network.batch_first:
            raise ValueError(f"{name} reads [*B, T, F]: build the network with batch_first=True")
        self._states, self._init_key, keys = _resolve_keys(name, self.state_names, in_keys, out_keys, in_key, out_key)
        self._set_keys(*keys)
        self.default_recurrent_mode = bool(default_recurrent_mode)
        setattr(self, self.network_name, network)

    # ---------------------------------------------------------------- what a subclass defines
    def _layer_step(self, value: Tensor, states: Sequence[Tensor], weights: Weights) -> tuple[Tensor, ...]:
        """One step of one layer: the new states ``[N, H]``, the output first."""
        raise NotImplementedError

    def _run_network(self, value: Any, states: list[Tensor]) -> tuple[Any, list[Tensor]]:
        """The network over ``[P, T, F]`` or a PackedSequence, from and to states ``[layers, P, H]``."""
        raise NotImplementedError

    # ---------------------------------------------------------------- carried state
    @property
    def network(self) -> nn.RNNBase:
        """The torch network that holds the weights."""
        found = self._modules[self.network_name]
        assert isinstance(found, nn.RNNBase)
        return found

    def carried_state(self) -> CarriedState:
        """One state ``[layers, hidden]`` for each state key, zero at the start."""
        network = self.network
        shape = (network.num_layers, network.hidden_size)
        weights = (*network.parameters(), *network.buffers())  # a frozen target has buffers in place of parameters
        dtype = weights[0].dtype
        return CarriedState({key: Unbounded(shape=shape, dtype=dtype) for key in self._states}, [self._init_key])

    def reads_sequences(self) -> bool:
        """Whether the last batch dimension is time: what :class:`set_recurrent_mode` says, else the default."""
        mode = recurrent_mode()
        return self.default_recurrent_mode if mode is None else mode

    def make_tensordict_primer(self) -> Transform:
        """The transform that writes this module's initial state at resets (``TensorDictPrimer``, from rl-envs).

        Collectors and rollouts add it by themselves where the environment has none, and ``InitTracker`` with it.
        """
        return get_primers_from_module(self)

    # ---------------------------------------------------------------- computing
    def _compute(self, *inputs: Tensor) -> tuple[Any, ...]:
        value, *states, is_init = inputs
        batch = value.shape[:-1]
        network = self.network
        if value.shape[-1] != network.input_size:
            raise PolicyError(
                f"{type(self).__name__} has input_size={network.input_size}; {self.in_keys[0]!r} has shape "
                f"{list(value.shape)}"
            )
        wanted = (*batch, network.num_layers, network.hidden_size)
        for key, state in zip(self._states, states, strict=True):
            if state.shape != wanted:
                raise PolicyError(
                    f"{type(self).__name__} got the state {key!r} of shape {list(state.shape)} beside "
                    f"{self.in_keys[0]!r} of shape {list(value.shape)}; it must be {list(wanted)}"
                )
        if is_init.numel() != batch.numel() or is_init.dtype != torch.bool:
            raise PolicyError(
                f"{type(self).__name__} got {self._init_key!r} of shape {list(is_init.shape)} and dtype "
                f"{is_init.dtype}; it must be bool {[*batch, 1]}"
            )
        if not self.reads_sequences():
            return self._step(value, states, is_init, batch)
        if not batch:
            raise PolicyError(
                f"{type(self).__name__} reads sequences [*B, T] in recurrent mode; {self.in_keys[0]!r} of shape "
                f"{list(value.shape)} has no time dimension. Leave set_recurrent_mode(True) for single steps"
            )
        burn_in = recurrent_burn_in() if torch.is_grad_enabled() else 0
        if 0 < burn_in < batch[-1]:
            return self._behind_burn_in(burn_in, value, states, is_init, batch)
        return self._sequences(value, states, is_init, batch)

    def _behind_burn_in(
        self, steps: int, value: Tensor, states: list[Tensor], is_init: Tensor, batch: torch.Size
    ) -> tuple[Any, ...]:
        """The same numbers, without gradient through the first steps of each sequence and the state they leave."""
        time = len(batch) - 1
        parts = [entry.split([steps, batch[-1] - steps], time) for entry in (value, is_init, *states)]
        (first, rest), (first_flags, rest_flags), *pairs = parts
        with torch.no_grad():
            before = self._sequences(first, [pair[0] for pair in pairs], first_flags, first.shape[:-1])
        begun = [
            torch.cat([state.narrow(time, steps - 1, 1), stored.narrow(time, 1, stored.shape[time] - 1)], time)
            for state, (_, stored) in zip(before[1:], pairs, strict=True)
        ]
        behind = self._sequences(rest, begun, rest_flags, rest.shape[:-1])
        return tuple(torch.cat(pair, time) for pair in zip(before, behind, strict=True))

    def _step(self, value: Tensor, states: list[Tensor], is_init: Tensor, batch: torch.Size) -> tuple[Any, ...]:
        """One step of every row, from zero where a row is flagged."""
        network = self.network
        rows = value.reshape(-1, network.input_size)
        keep = is_init.reshape(-1, 1, 1)
        layers = [
            state.reshape(-1, network.num_layers, network.hidden_size).masked_fill(keep, 0.0).unbind(1)
            for state in states
        ]
        new: list[tuple[Tensor, ...]] = []
        for index in range(network.num_layers):
            if index and network.dropout and network.training:
                rows = F.dropout(rows, network.dropout, True)
            new.append(self._layer_step(rows, [layer[index] for layer in layers], _weights(network, index)))
            rows = new[-1][0]
        written = [
            torch.stack(parts, 1).reshape(state.shape)
            for parts, state in zip(zip(*new, strict=True), states, strict=True)
        ]
        return rows.reshape(*batch, -1), *written

    def _sequences(self, value: Tensor, states: list[Tensor], is_init: Tensor, batch: torch.Size) -> tuple[Any, ...]:
        """All rows of all sequences, from the stored state or zero at their starts."""
        network, steps = self.network, batch[-1]
        count = batch.numel()
        flags = is_init.reshape(-1, steps)
        rows = value.reshape(count, network.input_size)
        flat = [state.reshape(count, network.num_layers, network.hidden_size) for state in states]
        if bool(flags[:, 1:].any()):
            pieces = Pieces(flags)
            last = pieces.last
            # cuDNN runs packed sequences best, a CPU dense blocks, as soon as there is a backward pass
            run = run_chunks if torch.is_grad_enabled() and not rows.is_cuda else run_packed
            output, ends = run(self._run_network, rows, self._begin(flat, pieces.first, flags), pieces)
        else:
            first = torch.arange(0, count, steps, device=rows.device)
            last = first + (steps - 1)
            output, ends = self._run_network(
                rows.reshape(-1, steps, network.input_size), self._begin(flat, first, flags)
            )
            output = output.reshape(count, -1)
        written = [
            torch.zeros_like(state).index_copy(0, last, final.transpose(0, 1)).reshape(*batch, *state.shape[1:])
            for state, final in zip(flat, ends, strict=True)
        ]
        return output.reshape(*batch, -1), *written

    def _begin(self, flat: list[Tensor], first: Tensor, flags: Tensor) -> list[Tensor]:
        """States ``[layers, P, H]`` before the first rows: those stored there, zero where a row is flagged."""
        reset = flags.flatten().index_select(0, first).reshape(-1, 1, 1)
        return [state.index_select(0, first).masked_fill(reset, 0.0).transpose(0, 1).contiguous() for state in flat]


def _weights(network: nn.RNNBase, layer: int) -> Weights:
    names = [f"weight_ih_l{layer}", f"weight_hh_l{layer}"]
    ih, hh = (getattr(network, name) for name in names)
    if not network.bias:
        return ih, hh, None, None
    return ih, hh, getattr(network, f"bias_ih_l{layer}"), getattr(network, f"bias_hh_l{layer}")


def _resolve_keys(
    name: str,
    state_names: Sequence[str],
    in_keys: Keys | None,
    out_keys: Keys | None,
    in_key: Key | None,
    out_key: Key | None,
) -> tuple[list[Key], Key, tuple[list[Key], list[Key]]]:
    """State keys, flag key, and the module's (in_keys, out_keys)."""
    if (in_keys is None) == (in_key is None):
        raise ValueError(f"{name} takes either in_key or in_keys, the input's key or those of input and states")
    if (out_keys is None) == (out_key is None):
        raise ValueError(f"{name} takes either out_key or out_keys, the output's key or those of output and states")
    states: list[Key] = list(state_names)
    init: Key = "is_init"
    if in_keys is None:
        assert in_key is not None
        source = as_key(in_key)
    else:
        source, *rest = as_keys(in_keys)
        if len(rest) not in (len(states), len(states) + 1):
            raise ValueError(
                f"{name} needs in_keys=[input, {', '.join(state_names)}] (and the flag if it is not 'is_init'); "
                f"got {in_keys}"
            )
        states, init = rest[: len(states)], (rest[len(states)] if len(rest) > len(states) else init)
    following = [join("next", state) for state in states]
    if out_keys is None:
        assert out_key is not None
        target = as_key(out_key)
    else:
        target, *given = as_keys(out_keys)
        given = [key if as_path(key)[0] == "next" else join("next", key) for key in given]
        if given != following:
            raise ValueError(
                f"{name} writes the states it will read at the next step: with the in_keys {[source, *states]} its "
                f"out_keys are {[target, *following]}; got {out_keys}"
            )
    return states, init, ([source, *states, init], [target, *following])
