"""What the losses of language models return: a TensorDict that knows which of its entries are to be minimised."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

__all__ = ["CISPOLossOutput", "DAPOLossOutput", "GRPOLossOutput", "LLMLossOutput", "SFTLossOutput"]


class LLMLossOutput(TensorDict):
    """Losses (named ``loss_*``) and detached logs; every entry is an attribute too.

    Minimise :attr:`total_loss`. ``output.mean(reduce=True)`` is something else: the mean over all entries, logs
    included, whose gradient shrinks with each entry that is added.

    >>> output = LLMLossOutput({"loss_objective": torch.tensor(2.0), "ESS": torch.tensor(1.0)}, batch_size=[])
    >>> output.total_loss, output.ESS
    (tensor(2.), tensor(1.))
    """

    @property
    def total_loss(self) -> Tensor:
        """The sum of the ``loss_*`` entries."""
        total: Any = sum(value for name, value in self.items() if name.startswith("loss"))
        return torch.as_tensor(total)

    def backward(
        self, gradient: Any = None, retain_graph: bool | None = None, create_graph: bool = False, inputs: Any = None
    ) -> None:
        """Gradients of :attr:`total_loss`; the arguments are those of a tensor's ``backward``."""
        self.total_loss.backward(gradient, retain_graph, create_graph, inputs)

    def __getattr__(self, name: str) -> Any:
        # Reached only where the class has no such attribute. Private names are not entries: copying asks for them
        # before there is anything to look into.
        value = None if name.startswith("_") else self.get(name, None)
        if value is None:
            raise AttributeError(f"{type(self).__name__} has no attribute and no entry {name!r}")
        return value


class GRPOLossOutput(LLMLossOutput):
    """What :class:`~rl_llm.GRPOLoss` returns."""


class CISPOLossOutput(LLMLossOutput):
    """What :class:`~rl_llm.CISPOLoss` returns."""


class DAPOLossOutput(LLMLossOutput):
    """What :class:`~rl_llm.DAPO` returns."""


class SFTLossOutput(LLMLossOutput):
    """What :class:`~rl_llm.SFTLoss` returns."""
