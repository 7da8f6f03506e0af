"""Target networks: frozen copies whose weights are buffers, and the pairs of tensors that an updater moves."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import NamedTuple

from tensordict.nn import TensorDictParams
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rl_core.errors import SpecError

__all__ = ["TargetPair", "frozen_copy", "target_pairs"]


class TargetPair(NamedTuple):
    """One tensor of an online network and its counterpart, held by their owners: ``.to()`` may replace the tensors."""

    source_owner: dict[str, Tensor | None]
    target_owner: dict[str, Tensor | None]
    name: str

    def tensors(self) -> tuple[Tensor, Tensor]:
        """(source, target) as they are now."""
        source, target = self.source_owner[self.name], self.target_owner[self.name]
        if source is None or target is None:
            raise SpecError(f"the tensor {self.name!r} of a network or of its target was removed after construction")
        return source, target


def frozen_copy(network: nn.Module, name: str) -> nn.Module:
    """A deep copy without parameters: each becomes a buffer, so that no optimiser, clip or count sees it.

    Args:
        network: the online network; it is left alone.
        name: its name, for the error.

    Returns:
        The copy. Parameters that were tied stay tied; ``state_dict`` has the same keys.

    Raises:
        SpecError: the network has lazy parameters that were never run.
    """
    for key, parameter in network.named_parameters():
        if is_lazy(parameter):
            raise SpecError(
                f"{name} has the lazy parameter {key!r}, whose shape is unknown: a target cannot be copied from it. "
                "Call the network once on a batch before building the loss."
            )
    target = copy.deepcopy(network)
    frozen: dict[int, Tensor] = {}
    for module in target.modules():
        for key, weight in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            value = frozen.setdefault(id(weight), weight.detach().clone())
            if isinstance(module, TensorDictParams):
                weight.requires_grad_(False)
                continue
            del module._parameters[key]
            module.register_buffer(key, value)
            setattr(module, key, value)  # modules that keep their own list of weights (nn.RNNBase) follow assignments
    return target


def target_pairs(source: nn.Module, target: nn.Module) -> Iterator[TargetPair]:
    """Every tensor of a network with its counterpart in the target, parameters and buffers, each once."""
    seen: set[int] = set()
    counterparts = dict(target.named_modules(remove_duplicate=False))
    for path, module in source.named_modules(remove_duplicate=False):
        other = counterparts[path]
        for owner in (module._parameters, module._buffers):
            for name, value in owner.items():
                if value is None or id(value) in seen:
                    continue
                seen.add(id(value))
                yield TargetPair(owner, other._buffers if name in other._buffers else other._parameters, name)
