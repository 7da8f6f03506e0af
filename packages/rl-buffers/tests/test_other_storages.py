"""TensorStorage, LazyStackStorage and CompressedListStorage: what each does that a LazyTensorStorage does not."""

from __future__ import annotations

import pickle
import sys
import types
import zlib

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict

from rl_buffers import (
    CompressedListStorage,
    ImmutableDatasetWriter,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    RoundRobinWriter,
    TensorDictReplayBuffer,
    TensorStorage,
)
from rl_core.errors import CheckpointError, ReplayBufferError


# ------------------------------------------------------------------------------------------------- TensorStorage
def dataset(n: int = 6) -> TensorDict:
    return TensorDict({"x": torch.arange(n), "next": TensorDict({"y": 10 * torch.arange(n)}, [n])}, [n])


def test_a_dataset_is_wrapped_without_a_copy_and_full():
    data = dataset()
    buffer = TensorDictReplayBuffer(storage=TensorStorage(data), batch_size=4)
    assert len(buffer) == 6 and buffer.storage.max_size == 6
    sample = buffer.sample()
    assert torch.equal(sample["next", "y"], 10 * sample["x"])
    data["x"][3] = 99
    assert buffer[3]["x"] == 99


def test_a_write_goes_to_the_data_themselves():
    data = dataset()
    buffer = TensorDictReplayBuffer(storage=TensorStorage(data), batch_size=4)
    assert buffer.extend(dataset(2) + 50).tolist() == [0, 1]
    assert data["x"].tolist() == [50, 51, 2, 3, 4, 5]


def test_a_dataset_with_an_immutable_writer_cannot_be_written_to():
    data = dataset()
    buffer = TensorDictReplayBuffer(storage=TensorStorage(data), writer=ImmutableDatasetWriter(), batch_size=4)
    for write in (lambda: buffer.extend(dataset(2)), lambda: buffer.add(dataset(1)[0])):
        with pytest.raises(ReplayBufferError, match=r"rows were to be written to a dataset.*RoundRobinWriter"):
            write()
    assert torch.equal(buffer[:]["x"], dataset()["x"])
    buffer.set_writer(RoundRobinWriter())
    buffer.add(dataset(1)[0] + 7)
    assert data["x"][0] == 7


def test_an_immutable_writer_takes_the_rows_of_a_new_storage_and_is_saved():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(6), writer=ImmutableDatasetWriter())
    buffer.set_storage(TensorStorage(dataset()))
    assert buffer.write_count == 6 and buffer.writer.cursor == 0
    other = ImmutableDatasetWriter()
    other.load_state_dict(buffer.writer.state_dict())
    assert other.write_count == 6
    other.empty()
    assert other.write_count == 0


def test_part_of_the_data_and_lanes_can_be_wrapped():
    assert len(TensorStorage(dataset(), 4)) == 4
    storage = TensorStorage(torch.arange(12).reshape(4, 3), ndim=2)
    assert storage.lane_shape == (3,) and len(storage) == 12 and storage.get(torch.tensor([4])).tolist() == [4]
    assert ReplayBuffer(storage=storage)[:].tolist() == torch.arange(12).reshape(4, 3).T.tolist()


def test_text_is_wrapped_too():
    storage = TensorStorage(TensorDict({"x": torch.arange(2), "name": ["a", "b"]}, [2]))
    assert storage.get(torch.tensor([1]))[0]["name"] == "b"


@pytest.mark.parametrize(
    ("data", "kwargs"), [(torch.zeros(0, 2), {}), (torch.zeros(4), {"max_size": 5}), (torch.zeros(4), {"ndim": 2})]
)
def test_data_that_hold_no_such_rows_are_refused(data, kwargs):
    with pytest.raises(ReplayBufferError, match="a TensorStorage with ndim="):
        TensorStorage(data, **kwargs)


def test_a_wrapped_dataset_takes_a_state_of_its_structure_only():
    storage, other = TensorStorage(dataset()), LazyTensorStorage(6)
    storage.load_state_dict(TensorStorage(dataset() + 1).state_dict())
    assert storage.get(torch.arange(6))["x"].tolist() == [1, 2, 3, 4, 5, 6]
    other.prepare(torch.zeros(2))
    with pytest.raises(CheckpointError, match="another structure than the data that this TensorStorage wraps"):
        storage.load_state_dict(other.state_dict())
    assert storage.get(torch.arange(6))["x"].tolist() == [1, 2, 3, 4, 5, 6]


# ----------------------------------------------------------------------------------------------- LazyStackStorage
def ragged(*lengths: int) -> list[TensorDict]:
    return [TensorDict({"tokens": torch.full((n,), n), "reward": torch.tensor([float(n)])}, []) for n in lengths]


def test_a_batch_of_ragged_rows_is_a_lazy_stack_of_copies():
    buffer = TensorDictReplayBuffer(storage=LazyStackStorage(10), batch_size=20)
    buffer.extend(ragged(2, 3, 5))
    sample = buffer.sample()
    assert isinstance(sample, LazyStackedTensorDict) and sample["reward"].shape == (20, 1)
    padded = sample.get("tokens", as_padded_tensor=True, padding_value=-1)
    assert torch.equal((padded >= 0).sum(-1), sample["reward"].squeeze(-1).long())
    for row in sample.unbind(0):
        row["tokens"].zero_()
    assert buffer[2]["tokens"].tolist() == [5] * 5 and sample["index"].shape == (20,)


def test_rows_of_one_shape_come_as_a_lazy_stack_too():
    buffer = ReplayBuffer(storage=LazyStackStorage(10), batch_size=2)
    buffer.extend(ragged(2, 2))
    assert isinstance(buffer.sample(), LazyStackedTensorDict)


def test_a_lazy_stack_refuses_what_it_cannot_stack():
    buffer = ReplayBuffer(storage=LazyStackStorage(10), batch_size=2)
    buffer.add("text")
    with pytest.raises(ReplayBufferError, match="gives stacks of TensorDicts, a row is a str"):
        buffer.sample()
    with pytest.raises(ReplayBufferError, match="stack_dim=1"):
        LazyStackStorage(10, stack_dim=1)


def test_lists_keep_rows_on_a_device():
    storage = ListStorage(3, device="meta")
    assert [row.device.type for row in storage.prepare(torch.zeros(2, 3)).payload] == ["meta", "meta"]


# ------------------------------------------------------------------------------------------ CompressedListStorage
def frames(n: int = 3) -> TensorDict:
    pixels = torch.arange(n).reshape(n, 1, 1, 1).expand(n, 3, 40, 40).to(torch.uint8)
    following = TensorDict({"half": torch.arange(n).to(torch.bfloat16)}, [n])
    return TensorDict({"pixels": pixels, "empty": torch.zeros(n, 0), "next": following, "name": [*"abc"][:n]}, [n])


def test_compressed_rows_come_back_exactly_and_small(tmp_path):
    data, storage = frames(), CompressedListStorage(5)
    buffer = ReplayBuffer(storage=storage)
    buffer.extend(data)
    assert storage.compressed_bytes < data["pixels"].nbytes / 20
    buffer.dumps(tmp_path / "saved")
    again = ReplayBuffer(storage=CompressedListStorage(5))
    again.loads(tmp_path / "saved")
    for each in (buffer, again, pickle.loads(pickle.dumps(buffer))):
        rows = each[:]
        assert all(torch.equal(rows[key], data[key]) for key in ("pixels", "empty", ("next", "half")))
        assert [row["name"] for row in rows.unbind(0)] == ["a", "b", "c"]


def test_any_tree_of_tensors_is_compressed(tmp_path):
    row = {"a": [torch.arange(3), 5], 7: (torch.tensor(2.5), "text"), "z": torch.tensor([1 + 2j]).conj()}
    buffer, again = (ReplayBuffer(storage=CompressedListStorage(5)) for _ in range(2))
    buffer.add(row)
    buffer.dumps(tmp_path / "saved")
    again.loads(tmp_path / "saved")
    for each in (buffer, again):
        (found,) = each.storage.get(torch.tensor([0]))
        assert found["a"][0].tolist() == [0, 1, 2] and found["a"][1] == 5 and found["z"].tolist() == [1 - 2j]
        assert found[7][0].item() == 2.5 and found[7][1] == "text"


def test_functions_of_bytes_can_be_given():
    storage = CompressedListStorage(3, compression_fn=lambda data: b"!" + data, decompression_fn=lambda data: data[1:])
    buffer = ReplayBuffer(storage=storage)
    buffer.extend(torch.arange(6).reshape(3, 2))
    assert storage.compressed_bytes == 3 * 17 and buffer[2].tolist() == [4, 5]
    with pytest.raises(ReplayBufferError, match="come together"):
        CompressedListStorage(3, compression_fn=zlib.compress)


def test_an_unknown_codec_is_an_error():
    with pytest.raises(ReplayBufferError, match="'lz4' is not known: use 'zlib', 'zstd'"):
        CompressedListStorage(3, codec="lz4")


def test_zstd_without_its_library_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.delitem(sys.modules, "rl_buffers.storages.zstd", raising=False)
    with pytest.raises(ReplayBufferError, match=r"pip install 'rl-buffers\[zstd\]'"):
        CompressedListStorage(3, codec="zstd")


def test_zstd_is_called_through_its_library(monkeypatch):
    class Stub:
        """The two classes of zstandard that are used, on top of zlib."""

        def __init__(self, level: int = 0) -> None:
            self.level = level

        def compress(self, data: bytes) -> bytes:
            return bytes([self.level]) + zlib.compress(data)

        def decompress(self, data: bytes) -> bytes:
            return zlib.decompress(data[1:])

    module = types.ModuleType("zstandard")
    module.ZstdCompressor = module.ZstdDecompressor = Stub
    monkeypatch.setitem(sys.modules, "zstandard", module)
    monkeypatch.delitem(sys.modules, "rl_buffers.storages.zstd", raising=False)
    storage = CompressedListStorage(3, codec="zstd", compression_level=9)
    ReplayBuffer(storage=storage).extend(torch.arange(3))
    assert storage._items[0].block[0] == 9 and storage.get(torch.tensor([2]))[0].item() == 2
    monkeypatch.delitem(sys.modules, "rl_buffers.storages.zstd")


def test_a_state_of_another_codec_is_refused():
    one = CompressedListStorage(3)
    other = CompressedListStorage(3, compression_fn=zlib.compress, decompression_fn=zlib.decompress)
    with pytest.raises(CheckpointError, match="compressed with 'zlib', this storage uses 'custom'"):
        other.load_state_dict(one.state_dict())
