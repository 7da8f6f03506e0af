"""Each buffer kit passes on a correct toy subject and fails, in the right check, on one with a planted fault."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rl_core.buffers import Block, ReplayBuffer, Sampler, Span, Storage, Writer
from rl_core.errors import CheckpointError, ReplayBufferError
from rl_core.testing import BufferKit, SamplerKit, StorageKit, WriterKit


class ToyStorage(Storage):
    """A list of flat dicts."""

    def __init__(self, max_size: int) -> None:
        self.max_size, self.rows, self.form = max_size, [], None

    def __len__(self):
        return len(self.rows)

    def prepare(self, data, row_dims=None):
        data = data.unsqueeze(0) if row_dims == 0 else data.flatten(0, data.ndim - 1) if data.ndim > 1 else data
        form = {key: (leaf.dtype, leaf.shape[1:]) for key, leaf in data.items(True, True)}
        self.form = form if self.form is None else self.form
        for key in {*form, *self.form}:
            if form.get(key) != self.form.get(key):
                raise ReplayBufferError(f"{key!r} differs")
        return Block(len(data), [row.clone() for row in data.unbind(0)])

    def write(self, block, spans):
        for start, stop, source in sorted(spans):
            self.rows[start:stop] = block.payload[source : source + stop - start]

    def get(self, index):
        for slot in index.tolist():
            if not 0 <= slot < len(self.rows):
                raise ReplayBufferError(f"slot {slot}")
        return torch.stack([self.rows[slot] for slot in index.tolist()])

    def set(self, index, data):
        for slot, row in zip(index.tolist(), data.unbind(0), strict=True):
            self.rows[slot] = row.clone()

    def empty(self):
        self.rows = []

    def state_dict(self):
        rows = torch.stack(self.rows) if self.rows else TensorDict({}, [0])
        return {"size": self.max_size, "rows": rows.to_dict(), "n": len(self.rows)}

    def load_state_dict(self, state_dict, /):
        if state_dict["size"] != self.max_size:
            raise CheckpointError("another size")
        rows = TensorDict(
            copy.deepcopy(state_dict["rows"]),
            batch_size=[state_dict["n"]],
        )
        rows.auto_batch_size_(1)
        self.rows = [row.clone() for row in rows.unbind(0)]


class ToySampler(Sampler):
    """Uniform."""

    def sample(self, storage, batch_size):
        if not len(storage):
            raise ReplayBufferError("empty")
        return torch.randint(len(storage), (batch_size,), generator=self.generator), {}


class ToyWriter(Writer):
    """A ring, step by step."""

    def __init__(self) -> None:
        self.write_count = 0

    def extend(self, steps, storage, data=None):
        first = max(0, steps - storage.max_size)
        spans = []
        for step in range(first, steps):
            place = (self.write_count + step) % storage.max_size
            spans.append(Span(place, place + 1, step))
        self.write_count += steps
        self.cursor = self.write_count % storage.max_size
        return spans

    def empty(self):
        self.write_count = self.cursor = 0

    def state_dict(self):
        return {"n": self.write_count, "cursor": self.cursor}

    def load_state_dict(self, state_dict, /):
        self.write_count, self.cursor = state_dict["n"], state_dict["cursor"]


class ToyBuffer:
    """The three together, saved with pickle (a toy may)."""

    def __init__(self, max_size: int, batch_size: int) -> None:
        self.storage, self.sampler, self.writer = ToyStorage(max_size), ToySampler(), ToyWriter()
        self.sampler.generator = torch.Generator().manual_seed(0)
        self.batch_size: int | None = batch_size

    def add(self, data):
        return self._write(data, 0)

    def extend(self, data):
        return self._write(data, None)

    def _write(self, data, dims):
        block = self.storage.prepare(data, dims)
        self.storage.write(block, self.writer.extend(block.steps, self.storage))
        return torch.zeros(block.steps, dtype=torch.int64)

    def sample(self, batch_size=None, return_info=False):
        index, _ = self.sampler.sample(self.storage, batch_size or self.batch_size)
        return self.storage.get(index)

    def update_priority(self, index, priority):
        pass

    def empty(self):
        self.storage.empty()
        self.writer.empty()

    def __len__(self):
        return len(self.storage)

    def __iter__(self):
        while True:
            yield self.sample()

    def state_dict(self):
        return {
            "storage": self.storage.state_dict(),
            "writer": self.writer.state_dict(),
            "generator": self.sampler.generator.get_state(),
        }

    def load_state_dict(self, state_dict, /):
        self.storage.load_state_dict(state_dict["storage"])
        self.writer.load_state_dict(state_dict["writer"])
        self.sampler.generator.set_state(state_dict["generator"])

    def dumps(self, path):
        path.mkdir(exist_ok=True)
        (path / "state").write_bytes(pickle.dumps(self.state_dict()))

    def loads(self, path):
        self.load_state_dict(pickle.loads((path / "state").read_bytes()))


class TestToyStorage(StorageKit):
    def make(self, max_size):
        return ToyStorage(max_size)


class TestToySampler(SamplerKit):
    def make(self):
        return ToySampler()


class TestToyWriter(WriterKit):
    def make(self):
        return ToyWriter()


class TestToyBuffer(BufferKit):
    def make(self, max_size, batch_size):
        buffer = ToyBuffer(max_size, batch_size)
        assert isinstance(buffer, ReplayBuffer)
        return buffer


def broken(cls: type, **methods: Callable[..., Any]) -> type:
    return type("Broken", (cls,), methods)


def aliasing_prepare(self, data, row_dims=None):
    return Block(len(data), list(data.unbind(0)))


def clamped_get(self, index):
    return torch.stack([self.rows[min(max(slot, 0), len(self.rows) - 1)] for slot in index.tolist()])


def one_span_only(self, block, spans):
    ToyStorage.write(self, block, spans[:1])


def forgiving_prepare(self, data, row_dims=None):
    self.form = None
    return ToyStorage.prepare(self, data, row_dims)


def sharing_load(self, state_dict, /):
    if state_dict["size"] != self.max_size:
        raise CheckpointError("another size")
    rows = TensorDict(state_dict["rows"], batch_size=[state_dict["n"]])
    self.rows = [TensorDict({"x": rows["x"][i], "next": {"y": rows["next", "y"][i]}}, []) for i in range(len(rows))]


def spans_in_the_order_given(self, block, spans):
    for start, stop, source in spans:
        self.rows[start:stop] = block.payload[source : source + stop - start]


def another_entry(self, key, index):
    return self.get(index)["x"] if key in ("x", ("next", "y")) else None


def entry_of_the_first_write(self, key, index):
    self.first = getattr(self, "first", None) or list(self.rows)
    return torch.stack([self.first[slot] for slot in index.tolist()]).get(key)


def unchecked_entry(self, key, index):
    return torch.stack([self.rows[slot % len(self.rows)] for slot in index.tolist()]).get(key)


def write_noting_the_first(self, block, spans):
    ToyStorage.write(self, block, spans)
    self.entry("x", torch.tensor([0]))


STORAGE_FAULTS = {
    "test_an_entry_is_that_of_the_rows": {"entry": another_entry},
    "test_an_entry_follows_the_rows": {"entry": entry_of_the_first_write, "write": write_noting_the_first},
    "test_an_entry_of_a_slot_that_is_not_filled_raises": {"entry": unchecked_entry},
    "test_spans_may_come_in_any_order": {"write": spans_in_the_order_given},
    "test_rows_are_copies_of_the_data": {"prepare": aliasing_prepare},
    "test_a_slot_that_is_not_filled_raises": {"get": clamped_get},
    "test_two_spans_go_to_their_places": {"write": one_span_only},
    "test_another_structure_raises_and_names_the_entry": {"prepare": forgiving_prepare},
    "test_state_of_another_capacity_raises": {
        "load_state_dict": lambda self, state, /: None,
    },
    "test_state_saved_loaded_saved_and_loaded_again_is_the_same": {"load_state_dict": sharing_load},
    "test_emptying_forgets_rows_but_not_how_to_store_them": {"empty": lambda self: None},
    "test_rows_can_be_overwritten_in_place": {"set": lambda self, index, data: None},
    "test_preparing_writes_nothing": {
        "prepare": lambda self, data, row_dims=None: self.rows.extend(data.unbind(0)) or Block(len(data), []),
    },
}


@pytest.mark.parametrize(("check", "fault"), STORAGE_FAULTS.items())
def test_the_storage_kit_fails_on_a_faulty_storage(check: str, fault: Mapping[str, Any]) -> None:
    cls = broken(ToyStorage, **fault)
    kit = type("Kit", (StorageKit,), {"make": lambda self, max_size: cls(max_size)})()
    with pytest.raises((AssertionError, IndexError)):
        getattr(kit, check)()


def beyond_the_end(self, storage, batch_size):
    ToySampler.sample(self, storage, batch_size)
    return torch.randint(len(storage) + 1, (batch_size,), generator=self.generator), {}


def never_the_last(self, storage, batch_size):
    ToySampler.sample(self, storage, batch_size)
    return torch.randint(max(1, len(storage) - 1), (batch_size,), generator=self.generator), {}


def its_own_randomness(self, storage, batch_size):
    ToySampler.sample(self, storage, batch_size)
    own = torch.Generator()
    own.seed()
    return torch.randint(len(storage), (batch_size,), generator=own), {}


SAMPLER_FAULTS = {
    "test_slots_are_int64_on_the_cpu_and_filled": {"sample": beyond_the_end},
    "test_every_row_can_come": {"sample": never_the_last},
    "test_randomness_comes_from_the_generator_only": {"sample": its_own_randomness},
    "test_an_epoch_covers_each_row_once_or_never_ends": {"ran_out": property(lambda self: True)},
    "test_an_empty_storage_raises": {"sample": lambda self, storage, n: (torch.zeros(n, dtype=torch.int64), {})},
}


@pytest.mark.parametrize(("check", "fault"), SAMPLER_FAULTS.items())
def test_the_sampler_kit_fails_on_a_faulty_sampler(check: str, fault: Mapping[str, Any]) -> None:
    cls = broken(ToySampler, **fault)
    kit = type("Kit", (SamplerKit,), {"make": lambda self: cls()})()
    with pytest.raises(AssertionError):
        getattr(kit, check)()


def test_the_sampler_kit_fails_where_an_epoch_repeats_rows() -> None:
    kit = type("Kit", (SamplerKit,), {"make": lambda self: ToySampler(), "without_replacement": True})()
    with pytest.raises(AssertionError, match="an epoch gave"):
        kit.test_an_epoch_covers_each_row_once_or_never_ends()


def keeps_the_first(self, steps, storage, data=None):
    spans = ToyWriter.extend(self, min(steps, storage.max_size), storage)
    self.write_count += steps - min(steps, storage.max_size)
    return spans


def writes_duplicates(self, steps, storage, data=None):
    spans = [Span((self.write_count + i) % storage.max_size, 0, i) for i in range(steps)]
    self.write_count += steps
    return [Span(place, place + 1, source) for place, _, source in spans]


FIXED_CURSOR = property(lambda self: 0, lambda self, value: None)


def load_without_the_cursor(self, state, /):
    self.write_count = state["n"]


WRITER_FAULTS: dict[str, Mapping[str, Any]] = {
    "test_the_cursor_is_where_time_starts_over": {"cursor": FIXED_CURSOR},
    "test_the_next_step_overwrites_the_one_at_the_cursor": {"cursor": FIXED_CURSOR},
    "test_the_cursor_survives_saving_and_starts_over_when_emptied": {"load_state_dict": load_without_the_cursor},
    "test_the_newest_rows_stay": {"extend": keeps_the_first},
    "test_places_are_legal_and_leave_no_gap": {"extend": writes_duplicates},
    "test_a_loaded_writer_goes_on_where_the_saved_one_was": {"load_state_dict": lambda self, state, /: None},
    "test_emptying_starts_over": {"empty": lambda self: None},
}


@pytest.mark.parametrize(("check", "fault"), WRITER_FAULTS.items())
def test_the_writer_kit_fails_on_a_faulty_writer(check: str, fault: Mapping[str, Any]) -> None:
    cls = broken(ToyWriter, **fault)
    kit = type("Kit", (WriterKit,), {"make": lambda self: cls()})()
    with pytest.raises(AssertionError):
        getattr(kit, check)()


def mutating_extend(self, data):
    data.set("index", torch.zeros(len(data)))
    return ToyBuffer.extend(self, data.exclude("index"))


def moves_the_cursor_first(self, data, dims):
    self.writer.extend(len(data) if dims is None else 1, self.storage)
    self.writer.write_count -= len(data) if dims is None else 1
    self.storage.rows[:1] = []
    return ToyBuffer._write(self, data, dims)


def resetting_loads(self, path):
    ToyBuffer.loads(self, path)
    self.writer.write_count = 0


def forgetful_loads(self, path):
    state = self.sampler.generator.get_state()
    ToyBuffer.loads(self, path)
    self.sampler.generator.set_state(state)


BUFFER_FAULTS: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("test_the_data_given_are_not_changed", {"extend": mutating_extend}),
    ("test_saved_loaded_saved_and_loaded_it_samples_the_same", {"loads": resetting_loads}),
    ("test_saved_loaded_saved_and_loaded_it_samples_the_same", {"loads": forgetful_loads}),
    ("test_refused_data_leave_the_buffer_as_it_was", {"_write": moves_the_cursor_first}),
    ("test_only_stored_rows_come", {"__len__": lambda self: self.writer.write_count}),
    ("test_an_empty_buffer_cannot_be_sampled", {"empty": lambda self: None}),
)


@pytest.mark.parametrize(("check", "fault"), BUFFER_FAULTS)
def test_the_buffer_kit_fails_on_a_faulty_buffer(check: str, fault: Mapping[str, Any]) -> None:
    cls = broken(ToyBuffer, **fault)
    kit = type("Kit", (BufferKit,), {"make": lambda self, max_size, batch_size: cls(max_size, batch_size)})()
    with pytest.raises(AssertionError):
        getattr(kit, check)()
