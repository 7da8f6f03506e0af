"""What users do with a buffer: write, sample, iterate, index, and the errors that tell them what went wrong."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
from tensordict import TensorDict

from rl_buffers import (
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
)
from rl_core import Transform
from rl_core.buffers import Sampler
from rl_core.errors import KeyMissingError, ReplayBufferError


def rows(*values: float) -> TensorDict:
    return TensorDict({"x": torch.tensor(values, dtype=torch.float32)}, batch_size=[len(values)])


def stored(buffer: ReplayBuffer) -> list[float]:
    return buffer[:]["x"].tolist()


def ring(max_size: int = 5, **kwargs) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(storage=LazyTensorStorage(max_size), **kwargs)


# ------------------------------------------------------------------------------------------------------ the ring
def test_data_longer_than_the_capacity_keep_the_last_rows_at_their_places():
    buffer = ring(5)
    index = buffer.extend(rows(0, 1, 2, 3, 4, 5, 6, 7))
    assert stored(buffer) == [5, 6, 7, 3, 4]
    assert index.tolist() == [-1, -1, -1, 3, 4, 0, 1, 2]
    assert buffer.writer.cursor == 3 and buffer.write_count == 8


def test_a_write_over_the_edge_goes_on_at_the_start():
    buffer = ring(5)
    buffer.extend(rows(0, 1, 2))
    assert buffer.extend(rows(3, 4, 5)).tolist() == [3, 4, 0]
    assert stored(buffer) == [5, 1, 2, 3, 4]


def test_add_gives_the_slot_of_the_row():
    buffer = ring(2)
    assert [buffer.add(rows(k)[0]) for k in range(3)] == [0, 1, 0]
    assert stored(buffer) == [2, 1]


def test_emptying_starts_at_slot_0():
    buffer = ring(5)
    buffer.extend(rows(0, 1, 2))
    buffer.empty()
    assert len(buffer) == 0 and buffer.write_count == 0 and buffer.extend(rows(7)).tolist() == [0]


# ------------------------------------------------------------------------------------------------------ iteration
def test_the_usage_of_every_ppo_script_gives_each_row_once_per_epoch():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(1000), sampler=SamplerWithoutReplacement(), batch_size=50)
    data = TensorDict({"x": torch.arange(1000.0)}, [1000])
    orders = []
    for _ in range(3):
        buffer.extend(data)
        batches = [sample["x"].tolist() for sample in buffer]
        assert [len(batch) for batch in batches] == [50] * 20
        orders.append([x for batch in batches for x in batch])
        assert sorted(orders[-1]) == list(range(1000))
    assert orders[0] != orders[1] != orders[2]


def test_iterating_again_without_new_data_draws_a_new_permutation():
    buffer = ring(100, sampler=SamplerWithoutReplacement(), batch_size=10)
    buffer.extend(rows(*range(100)))
    first, second = ([x for sample in buffer for x in sample["x"].tolist()] for _ in range(2))
    assert sorted(first) == sorted(second) and first != second


def test_an_iteration_left_in_the_middle_does_not_shorten_the_next():
    buffer = ring(10, sampler=SamplerWithoutReplacement(), batch_size=4)
    buffer.extend(rows(*range(10)))
    for _ in buffer:
        break
    assert sum(len(sample) for sample in buffer) == 10


def test_next_gives_the_batches_of_an_epoch_then_none_then_another_epoch():
    buffer = ring(10, sampler=SamplerWithoutReplacement(), batch_size=5)
    buffer.extend(rows(*range(10)))
    given = [buffer.next() for _ in range(6)]
    assert [batch is None for batch in given] == [False, False, True] * 2
    assert sorted(torch.cat([given[3]["x"], given[4]["x"]]).tolist()) == list(range(10))


def test_iteration_without_a_batch_size_says_what_is_missing():
    with pytest.raises(ReplayBufferError, match="pass batch_size= to the buffer"):
        iter(ring())


# ------------------------------------------------------------------------------------------------------ samples
def test_a_sample_carries_the_slots_of_its_rows():
    buffer = ring(10, batch_size=6)
    buffer.extend(rows(*range(100, 110)))
    sample = buffer.sample()
    assert sample["index"].shape == (6,) and (sample["x"] == sample["index"] + 100).all()


def test_a_sample_can_be_stored_again():
    buffer, other = ring(10, batch_size=6), ring(10, batch_size=6)
    buffer.extend(rows(*range(10)))
    other.extend(buffer.sample())
    other.extend(rows(1, 2))
    assert len(other) == 8


def test_info_comes_beside_the_sample_where_it_is_asked_for():
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), batch_size=3)
    buffer.extend(rows(*range(10)))
    sample, info = buffer.sample(return_info=True)
    assert "index" not in sample and torch.equal(sample["x"].long(), info["index"])


def test_equal_seeds_of_torch_give_equal_samples():
    buffer = ring(100, batch_size=20)
    buffer.extend(rows(*range(100)))
    torch.manual_seed(3)
    first = buffer.sample()["x"]
    torch.manual_seed(3)
    assert torch.equal(buffer.sample()["x"], first)


def test_a_generator_is_the_only_source_of_randomness():
    buffer = ring(100, batch_size=20, generator=torch.Generator().manual_seed(0))
    buffer.extend(rows(*range(100)))
    state = torch.get_rng_state()
    first = buffer.sample()["x"]
    assert torch.equal(torch.get_rng_state(), state)
    buffer.set_rng(torch.Generator().manual_seed(0))
    assert torch.equal(buffer.sample()["x"], first)


def test_gradients_do_not_enter_the_rows():
    buffer = ring(4, batch_size=2)
    weight = torch.ones(3, requires_grad=True)
    buffer.extend(TensorDict({"x": weight * 2}, [3]))
    assert not buffer.sample()["x"].requires_grad


def test_nested_entries_keep_their_place_and_batch_size():
    data = TensorDict(
        {"agents": TensorDict({"obs": torch.arange(24.0).reshape(4, 3, 2)}, [4, 3]), "done": torch.zeros(4, 1).bool()},
        [4],
    )
    buffer = ring(8, batch_size=5)
    buffer.extend(data)
    sample = buffer.sample()
    assert sample["agents"].batch_size == (5, 3) and sample["agents", "obs"].shape == (5, 3, 2)
    assert torch.equal(sample["agents", "obs"], data["agents", "obs"][sample["index"]])
    assert sample["done"].dtype == torch.bool


def test_plain_tensors_can_be_rows():
    buffer = ReplayBuffer(storage=LazyTensorStorage(6), batch_size=4)
    buffer.extend(torch.arange(12.0).reshape(6, 2))
    buffer.add(torch.tensor([50.0, 51.0]))
    assert buffer.sample().shape == (4, 2) and buffer[0].tolist() == [50.0, 51.0]


def test_a_collate_function_sees_the_rows():
    buffer = ReplayBuffer(storage=ListStorage(6), batch_size=3, collate_fn=lambda items: "-".join(sorted(items)))
    buffer.extend(["a", "a"])
    assert buffer.sample() == "a-a-a"


# ------------------------------------------------------------------------------------------ batches of two dimensions
def test_a_rollout_of_two_dimensions_becomes_rows():
    buffer = ring(20, batch_size=4)
    index = buffer.extend(TensorDict({"x": torch.arange(6.0).reshape(2, 3)}, [2, 3]))
    assert index.tolist() == list(range(6)) and stored(buffer) == [0, 1, 2, 3, 4, 5]
    assert buffer.sample().batch_size == (4,)


def test_dim_extend_0_keeps_sequences_as_rows():
    buffer = ring(20, batch_size=4, dim_extend=0)
    buffer.extend(TensorDict({"x": torch.arange(6.0).reshape(2, 3)}, [2, 3]))
    sample = buffer.sample()
    assert len(buffer) == 2 and sample.batch_size == sample["index"].shape == (4, 3)
    assert torch.equal(sample["x"][:, 0].long(), sample["index"][:, 0] * 3)


def test_sequences_that_were_added_one_by_one_can_be_extended():
    buffer = ring(20, batch_size=4)
    buffer.add(TensorDict({"x": torch.arange(3.0)}, [3]))
    buffer.extend(TensorDict({"x": torch.arange(12.0).reshape(2, 2, 3)}, [2, 2, 3]))
    assert len(buffer) == 5 and buffer[4]["x"].tolist() == [9.0, 10.0, 11.0]


# ------------------------------------------------------------------------------------------------------ indexing
def test_rows_can_be_read_by_int_slice_mask_list_and_key():
    buffer = ring(5)
    buffer.extend(rows(10, 11, 12, 13))
    assert buffer[1]["x"] == 11 and buffer[-1]["x"] == 13
    assert buffer[1:3]["x"].tolist() == [11, 12] and buffer[::-1]["x"].tolist() == [13, 12, 11, 10]
    assert buffer[[3, 0]]["x"].tolist() == [13, 10]
    assert buffer[torch.tensor([True, False, False, True])]["x"].tolist() == [10, 13]
    assert buffer["x"].tolist() == [10, 11, 12, 13]


def test_rows_can_be_overwritten():
    buffer = ring(5)
    buffer.extend(rows(10, 11, 12, 13))
    buffer[1] = rows(21)[0]
    buffer[2:] = rows(22, 23)
    assert stored(buffer) == [10, 21, 22, 23]
    with pytest.raises(ReplayBufferError, match="2 slots were named, the data have"):
        buffer[2:] = rows(1, 2, 3)


def test_a_slot_without_a_row_is_an_error():
    buffer = ring(5)
    buffer.extend(rows(10, 11))
    for wrong in (2, -3, [0, 7]):
        with pytest.raises(ReplayBufferError, match=r"holds no row: filled are 0 to 1"):
            buffer[wrong]
    with pytest.raises(ReplayBufferError, match=r"a bool mask of shape \[2\]"):
        buffer[torch.tensor([True])]


# ------------------------------------------------------------------------------------------------------ errors
def test_data_without_a_known_entry_are_refused_by_name():
    buffer = ring()
    buffer.extend(TensorDict({"x": torch.zeros(2), "next": TensorDict({"r": torch.zeros(2)}, [2])}, [2]))
    with pytest.raises(ReplayBufferError, match=r"the data lack \('next', 'r'\).*the data have 'x'"):
        buffer.extend(rows(1, 2))


def test_data_with_a_new_entry_are_refused_with_the_cure():
    buffer = ring()
    buffer.extend(rows(1))
    with pytest.raises(ReplayBufferError, match=r"the data have 'y', .*data\.exclude\('y'\)"):
        buffer.extend(TensorDict({"x": torch.zeros(1), "y": torch.zeros(1)}, [1]))
    assert len(buffer) == 1 and buffer.writer.cursor == 1


def test_another_dtype_or_shape_is_refused_with_both():
    buffer = ring()
    buffer.extend(rows(1))
    with pytest.raises(ReplayBufferError, match=r"'x' is float64 \[\].*have float32 \[\].*\.to\(torch\.float32\)"):
        buffer.extend(TensorDict({"x": torch.zeros(1, dtype=torch.float64)}, [1]))
    with pytest.raises(ReplayBufferError, match=r"'x' is float32 \[2\].*have float32 \[\]"):
        buffer.extend(TensorDict({"x": torch.zeros(1, 2)}, [1]))


def test_a_row_given_to_extend_and_a_batch_given_to_add_name_the_other_method():
    buffer = ring()
    buffer.extend(rows(1))
    with pytest.raises(ReplayBufferError, match="use add for a single row"):
        buffer.extend(rows(1)[0])
    with pytest.raises(ReplayBufferError, match="use extend for several steps"):
        buffer.add(rows(1, 2))


def test_tensors_and_tensordicts_do_not_mix():
    buffer = ReplayBuffer(storage=LazyTensorStorage(4))
    buffer.extend(rows(1))
    with pytest.raises(ReplayBufferError, match="the data are a tensor, the rows of this buffer are TensorDicts"):
        buffer.extend(torch.zeros(2))
    with pytest.raises(ReplayBufferError, match=r"takes a TensorDict or a tensor, got list.*ListStorage"):
        buffer.extend([1, 2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prefetch": 3}, "prefetch=3 needs a batch size"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"dim_extend": 1}, "dim_extend must be storage.ndim - 1 = 0, got 1"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ReplayBufferError, match=message):
        ReplayBuffer(storage=LazyTensorStorage(4), **arguments)


def test_sampling_needs_rows_and_a_batch_size():
    buffer = ring()
    with pytest.raises(ReplayBufferError, match="needs a batch size of at least 1, got None"):
        buffer.sample()
    with pytest.raises(ReplayBufferError, match="the storage is empty"):
        buffer.sample(2)


def test_the_default_storage_warns_before_it_silently_drops_rows():
    buffer = ReplayBuffer()
    buffer.extend(list(range(1000)))
    with pytest.warns(UserWarning, match="holds 1000 rows and now overwrites the oldest"):
        buffer.add(1000)


# ------------------------------------------------------------------------------------------------------ priorities
class LastPriorities(RandomSampler):
    uses_priorities = True

    def __init__(self) -> None:
        self.seen: list[tuple[list[int], list[float]]] = []

    def sample(self, storage, batch_size):
        index, _ = super().sample(storage, batch_size)
        return index, {"priority_weight": torch.ones(batch_size), "total": 3.0}

    def update_priority(self, index, priority):
        self.seen.append((index.tolist(), priority.tolist()))


def test_priorities_reach_the_sampler_from_every_side():
    sampler = LastPriorities()
    buffer = ring(5, sampler=sampler, batch_size=3)
    buffer.extend(TensorDict({"x": torch.zeros(2), "td_error": torch.tensor([0.5, 1.5])}, [2]))
    buffer.update_priority([1, 0], 2.0)
    sample = buffer.sample()
    sample["td_error"] = torch.tensor([1.0, 2.0, 3.0])
    buffer.update_tensordict_priority(sample)
    assert sampler.seen == [
        ([0, 1], [0.5, 1.5]),
        ([1, 0], [2.0, 2.0]),
        (sample["index"].tolist(), [1.0, 2.0, 3.0]),
    ]
    assert sample["priority_weight"].shape == (3,) and "total" not in sample


def test_priorities_are_those_of_the_rows_that_a_transform_lets_through():
    class OddRows(Transform):
        def inv(self, tensordict):
            return tensordict[tensordict["x"] % 2 == 1]

    sampler = LastPriorities()
    buffer = ring(5, sampler=sampler, transform=OddRows())
    index = buffer.extend(TensorDict({"x": torch.arange(4), "td_error": torch.arange(4.0)}, [4]))
    assert index.tolist() == [0, 1] and sampler.seen == [([0, 1], [1.0, 3.0])]


def test_a_missing_priority_is_named_with_the_cure():
    buffer = ring(5, sampler=LastPriorities(), priority_key="error")
    with pytest.raises(KeyMissingError, match=r"needs 'error'.*priority_key="):
        buffer.update_tensordict_priority(TensorDict({"index": torch.zeros(1)}, [1]))


def test_priorities_are_ignored_where_the_sampler_has_none():
    buffer = ring(5, batch_size=2)
    buffer.extend(rows(1))
    buffer.update_priority(0, 1.0)
    buffer.update_tensordict_priority(buffer.sample())


# ------------------------------------------------------------------------------------------------------ parts
def test_parts_can_be_replaced():
    buffer = ring(6, batch_size=6)
    buffer.extend(rows(0, 1, 2))
    buffer.set_sampler(SamplerWithoutReplacement())
    assert sorted(buffer.sample()["x"].tolist()) == [0, 1, 2]
    full = LazyTensorStorage(4)
    other = ReplayBuffer(storage=full)
    other.extend(rows(5, 6))
    buffer.set_storage(full)
    assert sorted(buffer.sample()["x"].tolist()) == [5, 6] and buffer.extend(rows(7)).tolist() == [2]


def test_a_buffer_can_be_copied_and_pickled():
    buffer = ring(6, batch_size=4, generator=torch.Generator().manual_seed(1))
    buffer.extend(rows(0, 1, 2))
    for twin in (pickle.loads(pickle.dumps(buffer)), copy.deepcopy(buffer)):
        assert stored(twin) == [0, 1, 2]
        twin.extend(rows(3))
        assert len(buffer) == 3 and len(twin) == 4


def test_a_sampler_of_a_third_party_needs_one_method():
    class First(Sampler):
        def sample(self, storage, batch_size):
            return torch.zeros(batch_size, dtype=torch.int64), {}

    buffer = ring(5, sampler=First(), batch_size=2)
    buffer.extend(rows(4, 5))
    assert buffer.sample()["x"].tolist() == [4, 4]


def test_threads_never_see_half_a_row():
    buffer = ring(64, batch_size=32)
    make = lambda k: TensorDict({name: torch.full((16, 50), float(k)) for name in "abc"}, [16])  # noqa: E731
    buffer.extend(make(0))
    faults: list[str] = []

    def write() -> None:
        for k in range(200):
            buffer.extend(make(k))

    def read() -> None:
        for _ in range(200):
            sample = buffer.sample()
            values = torch.cat([sample[name] for name in "abc"], -1)
            if not (values == values[:, :1]).all():
                faults.append("mixed row")

    threads = [threading.Thread(target=target) for target in (write, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
