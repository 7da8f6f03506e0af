"""ReplayBufferEnsemble: parts of several buffers in one batch, priorities that find their rows, saves that go on."""

from __future__ import annotations

import pickle

import pytest
import torch
from tensordict import TensorDict

from rl_buffers import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    RoundRobinWriter,
    SamplerEnsemble,
    SamplerWithoutReplacement,
    StorageEnsemble,
    TensorDictReplayBuffer,
    WriterEnsemble,
)
from rl_core.buffers import ReplayBuffer as BufferContract
from rl_core.errors import CheckpointError, KeyMissingError, ReplayBufferError


def rows(start: int, n: int) -> TensorDict:
    return TensorDict({"x": torch.arange(start, start + n)}, [n])


def member(sampler=None, **kwargs) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(storage=LazyTensorStorage(20), sampler=sampler or RandomSampler(), **kwargs)


def filled(*members: ReplayBuffer, **kwargs) -> ReplayBufferEnsemble:
    """Buffer i has the rows 100 i .. 100 i + 9."""
    ensemble = ReplayBufferEnsemble(*members, generator=torch.Generator().manual_seed(2), **kwargs)
    for i in range(len(members)):
        ensemble[i].extend(rows(100 * i, 10))
    return ensemble


def test_every_buffer_gives_a_part_in_order():
    ensemble = filled(member(), member(), member(), sample_from_all=True, batch_size=12)
    assert isinstance(ensemble, BufferContract)
    for _ in range(5):
        batch, info = ensemble.sample(return_info=True)
        assert batch.batch_size == (3, 4)
        assert (batch["x"] // 100 == torch.arange(3).unsqueeze(-1)).all()
        assert torch.equal(batch["index"], info["index"])
        assert torch.equal(100 * batch["index"][..., 0] + batch["index"][..., 1], batch["x"])


def test_buffers_are_drawn_with_their_probabilities():
    ensemble = filled(member(), member(), p=[3.0, 1.0], num_buffer_sampled=4, batch_size=8)
    parts = torch.cat([ensemble.sample()["index"][:, 0, 0] for _ in range(500)])
    assert abs(float((parts == 0).float().mean()) - 0.75) < 0.04
    assert ensemble.sample().batch_size == (4, 2)
    uniform = filled(member(), member(), batch_size=2)
    parts = torch.cat([uniform.sample()["index"][:, 0, 0] for _ in range(500)])
    assert abs(float(parts.float().mean()) - 0.5) < 0.05


def test_priorities_reach_the_rows_they_are_for():
    prioritized = member(PrioritizedSampler(20, alpha=1.0, beta=1.0, eps=0.0))
    ensemble = filled(member(), prioritized, sample_from_all=True, batch_size=20)
    batch = ensemble.sample()
    assert batch["priority_weight"].shape == (2, 10) and bool((batch["priority_weight"][0] == 1).all())
    batch["td_error"] = (batch["x"] == 107).float().unsqueeze(-1)
    index = torch.stack([torch.ones(10, dtype=torch.int64), torch.arange(10)], -1)
    ensemble.update_priority(index, 0.0)
    batch["index"][1] = index  # every row once
    batch["td_error"][1] = (torch.arange(10) == 7).float().unsqueeze(-1)
    ensemble.update_tensordict_priority(batch)
    assert set(ensemble.sample()["x"][1].tolist()) == {107}
    stale = ensemble.sample()
    ensemble[1].extend(rows(110, 20))  # all rows are others now
    stale["td_error"] = torch.zeros(2, 10)
    ensemble.update_tensordict_priority(stale)
    assert len(set(ensemble.sample(400)["x"][1].tolist())) == 20  # the new rows kept their priorities
    with pytest.raises(KeyMissingError, match="needs 'td_error'"):
        ensemble.update_tensordict_priority(ensemble.sample())


def test_it_can_be_made_of_storages_samplers_and_writers():
    ensemble = ReplayBufferEnsemble(
        storages=StorageEnsemble(LazyTensorStorage(5), ListStorage(7)),
        samplers=SamplerEnsemble(RandomSampler(), SamplerWithoutReplacement(), sample_from_all=True),
        writers=WriterEnsemble(RoundRobinWriter(), RoundRobinWriter()),
        collate_fns=[None, lambda rows: torch.stack(rows)],
        collate_fn=lambda parts: torch.cat([part["x"] for part in parts]),
        batch_size=4,
    )
    ensemble[0].extend(rows(0, 3))
    ensemble[1].extend(rows(50, 3))
    assert sorted(ensemble.sample().tolist())[2:] >= [50] and len(ensemble) == 6
    assert ensemble.storages.max_size == 12 and len(ensemble.samplers) == len(ensemble.writers) == 2
    assert ensemble.storages[0] is ensemble[0].storage and ensemble.samplers[1] is ensemble[1].sampler
    found = ensemble.storages.get(torch.tensor([[0, 2], [0, 0]]))
    assert [int(row["x"]) for row in found] == [2, 0]


def test_tensors_are_stacked_and_transforms_see_the_whole_batch():
    buffers = [ReplayBuffer(storage=LazyTensorStorage(5)) for _ in range(2)]
    ensemble = ReplayBufferEnsemble(*buffers, sample_from_all=True)
    for i, buffer in enumerate(buffers):
        buffer.extend(torch.full((5,), float(i)))
    assert ensemble.sample(4).tolist() == [[0.0, 0.0], [1.0, 1.0]]
    other = filled(
        member(),
        member(),
        sample_from_all=True,
        batch_size=4,
        transform=lambda td: td.set("n", td["x"] * 0 + td.numel()),
    )
    assert other.sample()["n"].tolist() == [[4, 4], [4, 4]]


def test_rows_that_are_sequences_carry_their_index_at_each_step():
    buffers = [ReplayBuffer(storage=LazyTensorStorage(5), dim_extend=0) for _ in range(2)]
    ensemble = ReplayBufferEnsemble(*buffers, sample_from_all=True, batch_size=4)
    for buffer in buffers:
        buffer.extend(TensorDict({"x": torch.arange(12).reshape(4, 3)}, [4, 3]))
    batch = ensemble.sample()
    assert batch.batch_size == (2, 2, 3) and batch["index"].shape == (2, 2, 3, 2)
    assert torch.equal(batch["x"][..., 0], 3 * batch["index"][:, :, 0, 1])


def test_lanes_are_flattened_into_slots():
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20, ndim=2), sampler=PrioritizedSampler(20, alpha=1.0, beta=1.0, eps=0.0)
    )
    ensemble = ReplayBufferEnsemble(buffer, batch_size=6)
    buffer.extend(TensorDict({"x": torch.arange(8).reshape(2, 4)}, [2, 4]))
    batch = ensemble.sample()
    assert batch["index"].shape == (1, 6, 2)
    ensemble.update_priority(torch.tensor([[0, k] for k in range(8)]), torch.eye(8)[5])
    assert set(ensemble.sample()["index"][0, :, 1].tolist()) == {5}


def test_an_iteration_ends_with_the_first_buffer_that_is_used_up():
    ensemble = filled(
        member(SamplerWithoutReplacement(), batch_size=2, prefetch=2), member(), sample_from_all=True, batch_size=4
    )
    for _ in range(2):
        batches = list(ensemble)
        assert len(batches) == 5
        assert sorted(torch.cat([batch["x"][0] for batch in batches]).tolist()) == list(range(10))
    ensemble.close()


@pytest.mark.parametrize("copies", ["saves", "pickles"])
def test_a_copy_goes_on_as_the_original(copies, tmp_path):
    def new() -> ReplayBufferEnsemble:
        return ReplayBufferEnsemble(
            member(PrioritizedSampler(20, alpha=0.5, beta=0.5)),
            member(SamplerWithoutReplacement(drop_last=True), batch_size=3, prefetch=2),
            p=[0.3, 0.7],
            batch_size=6,
            generator=torch.Generator().manual_seed(5),
        )

    ensemble, other = new(), new()
    for i in range(2):
        ensemble[i].extend(rows(100 * i, 10))
    ensemble.sample()
    if copies == "saves":
        ensemble.dumps(tmp_path / "one")
        other.loads(tmp_path / "one")
        other.save(tmp_path / "two")
        third = new()
        third.load(tmp_path / "two")
        others = [other, third]
    else:
        others = [pickle.loads(pickle.dumps(ensemble))]
    expected = [ensemble.sample()["x"].tolist() for _ in range(6)]
    for copy in others:
        assert [copy.sample()["x"].tolist() for _ in range(6)] == expected
    assert ensemble.stats()["size"] == 20 and ensemble.write_count == 20
    ensemble.empty()
    assert len(ensemble) == 0
    with pytest.raises(CheckpointError, match="of 2 buffers, here are 1"):
        ReplayBufferEnsemble(member()).load_state_dict(ensemble.state_dict())


def test_what_goes_wrong_is_said_with_the_buffer_it_is_about():
    ensemble = ReplayBufferEnsemble(member(), member(), sample_from_all=True, batch_size=4)
    ensemble[0].extend(rows(0, 4))
    with pytest.raises(ReplayBufferError, match="buffer 1 of 2: the storage is empty"):
        ensemble.sample()
    with pytest.raises(ReplayBufferError, match=r"ensemble\[i\].extend"):
        ensemble.extend(rows(0, 2))
    with pytest.raises(ReplayBufferError, match=r"ensemble\[i\].add"):
        ensemble.add(rows(0, 2)[0])
    with pytest.raises(ReplayBufferError, match="a batch of 5 rows cannot be divided into 2 parts"):
        ensemble.sample(5)
    short = filled(member(SamplerWithoutReplacement()), member(), sample_from_all=True, batch_size=12)
    short.sample()
    with pytest.raises(ReplayBufferError, match=r"the buffers gave \[4, 6\] rows"):
        short.sample()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "made either of buffers, or of storages"),
        ({"storages": [ListStorage(2), ListStorage(2)], "samplers": [RandomSampler()]}, "2 storages need 2 samplers"),
        ({"storages": [ListStorage(2)], "p": [0.0]}, "one for each buffer and not all 0"),
        ({"storages": [ListStorage(2)], "p": [0.5, 0.5]}, "p are 1 numbers"),
        ({"storages": [ListStorage(2)], "p": [1.0], "sample_from_all": True}, "leave out p and num_buffer_sampled"),
        ({"storages": [ListStorage(2)], "num_buffer_sampled": 3, "batch_size": 4}, "cannot be divided into 3 parts"),
        ({"storages": [ListStorage(2)], "batch_size": 0}, "batch_size must be at least 1"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ReplayBufferError, match=message):
        ReplayBufferEnsemble(**arguments)
