"""A policy's weights as named tensors: read from whatever a user hands over, written into a module in place.

Tensors are copied into the parameters and buffers that are there already, cast to their dtype and device, so that a
module keeps its parameters through any number of updates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import CollectorError

__all__ = ["load_weights", "named_weights", "write_weights"]


def named_weights(source: Any, strategy: str = "state_dict") -> dict[str, Tensor]:
    """The weights of a module, of a state dict, or of a TensorDict of parameters, by their names; no copies.

    Args:
        source: what holds them.
        strategy: of a module, "state_dict" reads parameters and persistent buffers, "tensordict" all buffers.

    Raises:
        TypeError: the source is nothing of the kind, or holds something else than tensors.
    """
    if isinstance(source, nn.Module):
        if strategy == "tensordict":
            found: Mapping[str, Any] = dict([*source.named_parameters(), *source.named_buffers()])
        else:
            found = {name: value for name, value in source.state_dict().items() if isinstance(value, Tensor)}
    elif isinstance(source, TensorDictBase):
        found = dict(source.flatten_keys(".").items())
    elif isinstance(source, Mapping):
        found = source
    else:
        raise TypeError(
            f"weights are a module, a state_dict or a TensorDict of parameters, got {type(source).__name__}"
        )
    for name, value in found.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"the weight {name!r} is a {type(value).__name__}, not a tensor")
    return {name: value.detach() for name, value in found.items()}


@torch.no_grad()
def write_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into a module's own tensors.

    Args:
        module: every parameter and persistent buffer of it must be given; other buffers may be.
        weights: name -> tensor, of any floating dtype and any device.

    Raises:
        CollectorError: a name is missing or unknown, or a shape differs; nothing is written then.
    """
    targets = dict([*module.named_parameters(), *module.named_buffers()])
    state = {name: value for name, value in module.state_dict(keep_vars=True).items() if isinstance(value, Tensor)}
    targets.update(state)  # tied parameters have one name among named_parameters, all of them in the state dict
    missing = [name for name in state if name not in weights and not _given_by_a_tie(state, name, weights)]
    unknown = [name for name in weights if name not in targets]
    if missing or unknown:
        raise CollectorError(
            f"the weights do not fit {type(module).__name__}: "
            + "; ".join(
                f"{what} {', '.join(map(repr, names[:5]))}{' ...' if len(names) > 5 else ''}"
                for what, names in (("they lack", missing), ("it has no", unknown))
                if names
            )
            + ". Send the weights of a policy of the same class and sizes"
        )
    for name, value in weights.items():
        if targets[name].shape != value.shape:
            raise CollectorError(
                f"the weight {name!r} has shape {tuple(value.shape)}, that of {type(module).__name__} "
                f"{tuple(targets[name].shape)}; nothing was written"
            )
    for name, value in weights.items():
        if targets[name] is not value:
            targets[name].copy_(value)


def _given_by_a_tie(state: Mapping[str, Tensor], name: str, weights: Mapping[str, Tensor]) -> bool:
    """Whether the tensor is given under another of its names."""
    return any(other in weights and state[other] is state[name] for other in state)


def load_weights(module: nn.Module, source: Any) -> None:
    """Copy the weights of ``source`` into a module in place; see :func:`named_weights`, :func:`write_weights`."""
    write_weights(module, named_weights(source))
