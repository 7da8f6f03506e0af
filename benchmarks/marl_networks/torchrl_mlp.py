"""TorchRL: MultiAgentMLP, one net for all agents or one each."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from _pass import AGENTS, CELLS, FEATURES, OUTPUTS, one_pass
from torchrl.modules import MultiAgentMLP


def build(rows: int, backward: bool, share_params: bool) -> Callable[[], object]:
    """One repetition is one pass over ``rows`` rows of three agents."""
    warnings.simplefilter("ignore")
    net = MultiAgentMLP(
        FEATURES, OUTPUTS, AGENTS, centralized=False, share_params=share_params, depth=2, num_cells=CELLS
    )
    return one_pass(net, rows, backward)
