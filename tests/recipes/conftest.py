"""How runs of recipes are compared: what their checkpoints hold, and their metrics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_trainers import Checkpoint, read_metrics


class _Box:
    """Takes whatever state a checkpoint has."""

    state: Any = None

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: Any) -> None:
        self.state = state_dict


@pytest.fixture
def states() -> Callable[..., dict[str, Any]]:
    """``states(folder, *names)``: those parts of a run's checkpoint."""
    return _states


@pytest.fixture
def assert_equal_runs() -> Callable[..., None]:
    """``assert_equal_runs(a, b, names)``: two runs have equal parts in their checkpoints, and equal metrics."""

    def check(a: Path, b: Path, names: tuple[str, ...]) -> None:
        _assert_same(_states(a, *names), _states(b, *names))
        ours, theirs = (read_metrics(folder / "metrics.csv") for folder in (a, b))
        assert list(ours) == list(theirs)
        for name in ours:
            if not name.startswith("time/"):
                assert np.array_equal(ours[name], theirs[name], equal_nan=True), name

    return check


def _states(folder: Path, *names: str) -> dict[str, Any]:
    boxes = {name: _Box() for name in names}
    Checkpoint(**boxes).load(folder / "checkpoint", strict=True)
    return {name: box.state for name, box in boxes.items()}


def _assert_same(a: Any, b: Any, where: str = "") -> None:
    assert type(a) is type(b), where
    if isinstance(a, dict):
        assert list(a) == list(b), where
        for key in a:
            _assert_same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            _assert_same(x, y, f"{where}[{i}]")
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, np.ndarray):
        assert (a == b).all(), where
    else:
        assert a == b, where
