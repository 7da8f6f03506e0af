"""Every sampler of slices on every kind of storage gives all slices that fit, and no other, whatever was written."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_buffers import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedSliceSampler,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
    native,
)

SAMPLERS = {
    "trajectories": lambda **kwargs: SliceSampler(**kwargs),
    "steps": lambda **kwargs: SliceSampler(uniform_over="steps", **kwargs),
    "epochs": lambda **kwargs: SliceSamplerWithoutReplacement(**kwargs),
    "priorities": lambda **kwargs: PrioritizedSliceSampler(8, 0.7, 0.5, **kwargs),
}
RULES = {"flags": {"end_key": ("next", "done")}, "numbers": {"traj_key": "episode"}, "found": {}}


@pytest.fixture(autouse=True, params=["native", "twin"])
def kernels(request, monkeypatch):
    if request.param == "twin":
        monkeypatch.setenv("RL_BUFFERS_NATIVE", "0")
    native.load.cache_clear()
    yield
    native.load.cache_clear()


@st.composite
def writes(draw):
    """Lanes of episodes of random lengths, how they are written, and the capacity in steps."""
    lanes = draw(st.integers(1, 3))
    total = draw(st.integers(1, 30))
    done = torch.tensor(
        draw(st.lists(st.lists(st.booleans(), min_size=total, max_size=total), min_size=lanes, max_size=lanes))
    )
    done &= torch.arange(total) % 2 == 1
    chunks = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    return done, chunks, draw(st.integers(1, 20)), draw(st.integers(1, 4))


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(writes(), st.sampled_from(sorted(RULES)), st.booleans())
@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_all_slices_that_fit_come_and_no_other(name, case, rule, in_list):
    done, chunks, capacity, length = case
    lanes, total = done.shape
    in_list = in_list and lanes == 1
    storage = ListStorage(capacity) if in_list else LazyTensorStorage(capacity * lanes, ndim=1 if lanes == 1 else 2)
    generator = torch.Generator().manual_seed(0)
    sampler = SAMPLERS[name](slice_len=length, **RULES[rule])
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=length, generator=generator)
    number = torch.cat([torch.zeros(lanes, 1, dtype=torch.int64), done[:, :-1].long()], 1).cumsum(1)
    step = torch.arange(total).expand(lanes, total)
    data = TensorDict(
        {"lane": torch.arange(lanes).unsqueeze(-1).expand(lanes, total), "step": step, "episode": number},
        [lanes, total],
    )
    data["next", "done"] = done.unsqueeze(-1)
    at, turn = 0, 0
    while at < total:
        part = data[:, at : at + chunks[turn % len(chunks)]]
        buffer.extend(part if lanes > 1 else part[0])
        at, turn = at + part.shape[1], turn + 1

    oldest = max(0, total - capacity)
    expected = {
        (lane, start)
        for lane in range(lanes)
        for start in range(oldest, total - length + 1)
        if not done[lane, start : start + length - 1].any()
    }
    if not expected:
        with pytest.raises(RuntimeError, match="episode"):
            buffer.sample()
        return
    found = set()
    episodes = lanes * (int(done.sum(1).max()) + 1)  # at most so many; an epoch has one slice of each
    for _ in range(400 * episodes if name == "epochs" else 1):
        rows = buffer.sample() if name == "epochs" else buffer.sample(1200 * length)
        slices = rows.reshape(-1, length)
        assert (slices["lane"] == slices["lane"][:, :1]).all() and (slices["step"].diff(dim=1) == 1).all()
        found |= set(zip(slices["lane"][:, 0].tolist(), slices["step"][:, 0].tolist(), strict=True))
        assert slices["next", "truncated"][:, -1].all() and not slices["next", "truncated"][:, :-1].any()
        if found == expected:
            break
    assert found == expected
