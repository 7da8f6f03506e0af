"""Transforms in a buffer: forward at sampling, inverse at writing, in eval mode."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_buffers import LazyTensorStorage, TensorDictReplayBuffer
from rl_core.transforms import Transform


class Scale(Transform):
    """Times a factor on the way out, divided on the way in."""

    def __init__(self, factor: float) -> None:
        super().__init__(in_keys=["x"], in_keys_inv=["x"])
        self.register_buffer("factor", torch.tensor(factor))

    def _apply_transform(self, value):
        return value * self.factor

    def _inv_apply_transform(self, value):
        return value / self.factor


def rows(*values: float) -> TensorDict:
    return TensorDict({"x": torch.tensor(values)}, batch_size=[len(values)])


def buffer(**kwargs) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=4, **kwargs)


def test_a_transform_acts_on_samples_and_its_inverse_on_writes():
    scaled, data = buffer(transform=Scale(2.0)), rows(8.0)
    scaled.extend(data)
    assert scaled[:]["x"].tolist() == [4.0] and scaled.sample()["x"].tolist() == [8.0] * 4
    assert data["x"].tolist() == [8.0]


def test_invert_swaps_the_two_directions():
    scaled, data = buffer(), rows(8.0)
    scaled.append_transform(Scale(2.0), invert=True)
    scaled.extend(data)
    assert scaled[:]["x"].tolist() == [16.0] and scaled.sample()["x"].tolist() == [8.0] * 4
    assert data["x"].tolist() == [8.0]


def test_a_plain_function_acts_on_samples_only():
    shifted = buffer(transform=lambda td: td.set("x", td["x"] + 1))
    shifted.extend(rows(8.0))
    assert shifted[:]["x"].tolist() == [8.0] and shifted.sample()["x"].tolist() == [9.0] * 4


def test_transforms_run_in_their_order():
    both = buffer(transform=lambda td: td.set("x", td["x"] + 1))
    both.append_transform(lambda td: td.set("x", td["x"] * 10))
    both.insert_transform(0, lambda td: td.set("x", td["x"] * 0))
    both.extend(rows(8.0))
    assert both.sample()["x"].tolist() == [10.0] * 4


def test_a_transform_is_put_into_eval_mode():
    transform = Scale(2.0)
    buffer(transform=transform)
    assert not transform.training


def test_a_function_cannot_be_inverted():
    with pytest.raises(TypeError, match="invert=True needs a Transform"):
        buffer().append_transform(lambda td: td, invert=True)


def test_the_state_of_a_transform_is_saved_with_the_buffer(tmp_path):
    first, second = buffer(transform=Scale(2.0)), buffer(transform=Scale(3.0))
    first.extend(rows(8.0))
    first.dumps(tmp_path / "saved")
    second.loads(tmp_path / "saved")
    assert second.sample()["x"].tolist() == [8.0] * 4


def test_an_inverse_that_returns_nothing_writes_nothing():
    class Withhold(Transform):
        def inv(self, tensordict):
            return None

    silent = buffer(transform=Withhold())
    assert silent.extend(rows(1.0)).shape == (0,) and silent.add(rows(1.0)[0]) is None and len(silent) == 0


class Pairs(Transform):
    """Holds rows back until there are two."""

    def __init__(self) -> None:
        super().__init__()
        self.held = []

    def inv(self, tensordict):
        self.held += list(tensordict.unbind(0))
        if len(self.held) < 2:
            return None
        rows, self.held = torch.stack(self.held), []
        return rows


def test_a_transform_may_hold_rows_back_wherever_it_stands_in_the_chain():
    held = buffer(transform=Scale(2.0))
    held.append_transform(Pairs())
    assert held.extend(rows(1.0)).tolist() == [] and len(held) == 0
    assert held.extend(rows(3.0)).tolist() == [0, 1]
    assert held[:]["x"].tolist() == [0.5, 1.5]
    held.append_transform(Scale(1.0))
    assert held.extend(rows(5.0)).tolist() == [] and len(held) == 2
