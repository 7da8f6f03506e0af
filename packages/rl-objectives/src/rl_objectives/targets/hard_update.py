"""The periodic copy of weights."""

from __future__ import annotations

from typing import Any

from rl_core.errors import SpecError
from rl_core.losses.module import LossModule
from rl_objectives.targets.updater import TargetNetUpdater

__all__ = ["HardUpdate"]


class HardUpdate(TargetNetUpdater):
    """Copies the online networks into their targets at every ``value_network_update_interval``-th step.

    Args:
        loss: a loss with target networks.
        value_network_update_interval: steps from one copy to the next, exactly: 3 copies at steps 3, 6, 9.

    Raises:
        SpecError: the interval is no whole number of at least 1 step, or the loss has no target.

    Mnih et al., 2015, Human-level control through deep reinforcement learning, algorithm 1 (C steps).
    """

    def __init__(self, loss: LossModule, *, value_network_update_interval: float = 1000) -> None:
        if value_network_update_interval < 1 or not float(value_network_update_interval).is_integer():
            raise SpecError(
                "value_network_update_interval is a whole number of steps and at least 1 step; got "
                f"{value_network_update_interval}"
            )
        super().__init__(loss)
        self.value_network_update_interval = int(value_network_update_interval)
        self._steps = 0

    def step(self) -> None:
        """Count, and copy when the interval is full."""
        self._steps += 1
        if self._steps == self.value_network_update_interval:
            self._steps = 0
            self.init_()

    def state_dict(self) -> dict[str, Any]:
        """The steps since the last copy."""
        return {"steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the steps since the last copy."""
        self._steps = int(state["steps"])
