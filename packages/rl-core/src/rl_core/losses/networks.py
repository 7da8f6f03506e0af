"""Calling a keyed network on the tensors it reads, with no container where the network allows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from rl_core.errors import KeyMissingError, SpecError
from rl_core.keys import Key, as_key, join
from rl_core.losses.keys import missing_key, quoted
from rl_core.policy import tensor_call

__all__ = ["call_on_tensors", "check_keyed", "distribution_on_tensors", "read_inputs"]


def check_keyed(network: nn.Module, owner: str, name: str) -> None:
    """Raise unless the network says which entries it reads.

    Raises:
        SpecError: it has no ``in_keys``.
    """
    if not isinstance(network, nn.Module) or not hasattr(network, "in_keys"):
        raise SpecError(
            f"{owner} needs {name} to be a module with in_keys; got {type(network).__name__}. Wrap a plain network: "
            'TensorDictModule(net, in_keys=["observation"], out_keys=[...]).'
        )


def read_inputs(network: nn.Module, batch: TensorDictBase, owner: str, *, under: Key | None = None) -> list[Tensor]:
    """The tensors a network reads from a batch.

    Args:
        network: a module with ``in_keys``.
        batch: where they lie.
        owner: who asks, for the error.
        under: read them under this key, e.g. ``"next"``.

    Returns:
        One tensor per in_key, in their order.

    Raises:
        KeyMissingError: one is absent.
    """
    inputs = []
    for key in network.in_keys:  # type: ignore[union-attr]
        full = key if under is None else join(under, key)
        value = batch.get(full, None)
        if value is None:
            cure = f"It is an in_key of {type(network).__name__}: rename there, or let the environment write it."
            raise missing_key(owner, full, batch, cure)
        inputs.append(value)
    return inputs


def call_on_tensors(
    network: nn.Module,
    inputs: Sequence[Tensor],
    out_key: Key,
    batch_size: Sequence[int],
    *,
    weights: dict[str, Tensor] | None = None,
) -> Tensor:
    """One output of a keyed network, computed from bare tensors.

    Args:
        network: a module with ``in_keys`` and ``out_keys``. Its container-free form is used if it has one.
        inputs: one tensor per in_key.
        out_key: which output is wanted.
        batch_size: the leading shape of all inputs.
        weights: tensors to use in place of the network's own, by parameter name.

    Returns:
        The output.

    Raises:
        KeyMissingError: the network does not write ``out_key``.
    """
    out_keys: Any = network.out_keys
    if out_key not in out_keys:
        out_keys = [as_key(key) for key in out_keys]
        if out_key not in out_keys:
            raise KeyMissingError(
                f"{type(network).__name__} writes {', '.join(map(quoted, out_keys))}, not {quoted(out_key)}. "
                "Rename its output, or name the one that is meant with set_keys(...)."
            )
    bare = tensor_call(network) if weights is None else None
    if bare is not None:
        return bare(*inputs)[out_keys.index(out_key)]
    batch = _small_batch(network, inputs, batch_size)
    if weights is not None:
        written: Any = torch.func.functional_call(network, weights, (batch,))
    else:
        written = network(batch)
    return written.get(out_key)


def distribution_on_tensors(actor: nn.Module, inputs: Sequence[Tensor], batch_size: Sequence[int]) -> Any:
    """The action distribution of a stochastic policy, computed from bare tensors.

    Args:
        actor: a module with ``get_dist(tensordict)`` or ``get_dist_tensors(*inputs)``.
        inputs: one tensor per in_key.
        batch_size: the leading shape of all inputs.

    Returns:
        A torch Distribution (or what has its ``log_prob``).
    """
    direct = getattr(actor, "get_dist_tensors", None)
    if direct is not None:
        return direct(*inputs)
    return actor.get_dist(_small_batch(actor, inputs, batch_size))  # type: ignore[operator]


def _small_batch(network: nn.Module, inputs: Sequence[Tensor], batch_size: Sequence[int]) -> TensorDict:
    """A fresh TensorDict of the inputs: what the network writes stays in it."""
    batch = TensorDict({}, batch_size=batch_size)
    for key, value in zip(network.in_keys, inputs, strict=True):  # type: ignore[arg-type]
        batch.set(key, value)
    return batch
