"""Saving and loading: exact continuation, one step to replace, and clear errors for damaged or foreign folders."""

from __future__ import annotations

import json

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
    io,
)
from rl_core.errors import CheckpointError


def rows(*values: float) -> TensorDict:
    return TensorDict(
        {"x": torch.tensor(values, dtype=torch.float32), "flag": torch.tensor(values, dtype=torch.float32) > 3},
        batch_size=[len(values)],
    )


def make(max_size=8, sampler=SamplerWithoutReplacement, storage=LazyTensorStorage) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(
        storage=storage(max_size), sampler=sampler(), batch_size=3, generator=torch.Generator().manual_seed(5)
    )


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
@pytest.mark.parametrize("sampler", [RandomSampler, SamplerWithoutReplacement])
def test_ten_rows_in_a_ring_of_eight_are_saved_loaded_saved_and_loaded(storage, sampler, tmp_path):
    original, first, second = (make(8, sampler, storage) for _ in range(3))
    for k in range(10):
        original.add(rows(k)[0])
    original.sample()
    original.dumps(tmp_path / "one")
    first.loads(tmp_path / "one")
    first.dumps(tmp_path / "two")
    for file in (tmp_path / "one").iterdir():
        file.unlink()
    second.loads(tmp_path / "two")
    assert len(second) == 8 and second.writer.cursor == 2 and second.write_count == 10
    expected = [original.sample()["x"].tolist() for _ in range(5)]
    assert [first.sample()["x"].tolist() for _ in range(5)] == expected
    assert [second.sample()["x"].tolist() for _ in range(5)] == expected
    assert second.add(rows(99)[0]) == 2


def test_only_filled_rows_are_written(tmp_path):
    buffer = make(100_000)
    buffer.extend(rows(1, 2, 3))
    buffer.dumps(tmp_path / "saved")
    assert (tmp_path / "saved" / "tensors.bin").stat().st_size < 10_000


def test_an_empty_buffer_can_be_saved_and_loaded(tmp_path):
    make().dumps(tmp_path / "saved")
    loaded = make()
    loaded.extend(rows(1, 2))
    loaded.loads(tmp_path / "saved")
    assert len(loaded) == 0


def test_a_save_replaces_the_one_before_and_leaves_nothing_beside_it(tmp_path):
    buffer = make()
    for k in range(3):
        buffer.extend(rows(k))
        buffer.dumps(tmp_path / "saved")
    loaded = make()
    loaded.loads(tmp_path / "saved")
    assert len(loaded) == 3 and [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_a_save_that_fails_keeps_the_one_before(tmp_path):
    buffer = ReplayBuffer(storage=ListStorage(4), batch_size=2)
    buffer.add("good")
    buffer.dumps(tmp_path / "saved")
    buffer.add(object())
    with pytest.raises(CheckpointError, match=r"ReplayBuffer/storage/items/1/value is a object"):
        buffer.dumps(tmp_path / "saved")
    loaded = ReplayBuffer(storage=ListStorage(4), batch_size=2)
    loaded.loads(tmp_path / "saved")
    assert loaded[:] == ["good"] and [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_a_folder_that_is_no_save_is_not_overwritten(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(CheckpointError, match="is no saved state: choose another path"):
        make().dumps(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_a_place_below_a_file_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        make().dumps(tmp_path / "file" / "saved")


def saved(tmp_path):
    buffer = make()
    buffer.extend(rows(1, 2, 3))
    buffer.dumps(tmp_path / "saved")
    return tmp_path / "saved"


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="nowhere holds no readable state"):
        make().loads(tmp_path / "nowhere")


def test_a_truncated_file_is_detected(tmp_path):
    folder = saved(tmp_path)
    data = (folder / "tensors.bin").read_bytes()
    (folder / "tensors.bin").write_bytes(data[:-5])
    with pytest.raises(CheckpointError, match="the copy is incomplete"):
        make().loads(folder)


def test_damaged_json_is_detected(tmp_path):
    folder = saved(tmp_path)
    (folder / "state.json").write_text('{"format": 1, "ki')
    with pytest.raises(CheckpointError, match="holds no readable state"):
        make().loads(folder)


def test_a_newer_format_is_refused(tmp_path):
    folder = saved(tmp_path)
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**state, "format": io.FORMAT + 1}))
    with pytest.raises(CheckpointError, match="upgrade rl-buffers"):
        make().loads(folder)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: make(sampler=RandomSampler), "a SamplerWithoutReplacement as sampler, this buffer a RandomSampler"),
        (lambda: make(max_size=9), "8 steps, this one has ndim=1 and 9 steps"),
        (lambda: make(storage=ListStorage), "of a LazyTensorStorage"),
    ],
)
def test_a_buffer_of_other_parts_refuses_the_state(other, message, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        other().loads(saved(tmp_path))


def test_trees_of_every_kind_survive(tmp_path):
    tree = {
        "tensors": [torch.tensor(3), torch.zeros(0, 4), torch.ones(2, 3, dtype=torch.bfloat16), torch.tensor([True])],
        "scalars": (1, 2.5, float("inf"), True, None, "tëxt"),
        "keys": {1: "one", ("a", "b"): 2, "$odd": 3},
    }
    io.save_tree(tmp_path / "tree", tree, "test")
    loaded = io.load_tree(tmp_path / "tree", "test")
    assert loaded["scalars"] == tree["scalars"] and loaded["keys"] == tree["keys"]
    for got, want in zip(loaded["tensors"], tree["tensors"], strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape and torch.equal(got, want)


def test_changing_a_loaded_buffer_does_not_change_the_files(tmp_path):
    folder = saved(tmp_path)
    before = (folder / "tensors.bin").read_bytes()
    loaded = make()
    loaded.loads(folder)
    loaded.extend(rows(*range(8)))
    assert (folder / "tensors.bin").read_bytes() == before


@pytest.mark.parametrize("size", [1, 7, 8, 63, 64, 65, 200, 1000])
@pytest.mark.parametrize("start", [0, 1])
def test_the_checksum_does_not_depend_on_the_pieces_that_are_written(tmp_path, monkeypatch, size, start):
    leaf = torch.randint(0, 256, (size + start,), generator=torch.Generator().manual_seed(size)).to(torch.uint8)[start:]
    io.save_tree(tmp_path / "whole", {"leaf": leaf}, "test")
    monkeypatch.setattr(io, "_PIECE", 16)
    monkeypatch.setattr(io, "_BATCH", 64)
    io.save_tree(tmp_path / "pieces", {"leaf": leaf}, "test")
    assert (tmp_path / "whole/state.json").read_text() == (tmp_path / "pieces/state.json").read_text()
    words = [int.from_bytes(bytes(leaf[i : i + 8].tolist()), "little") for i in range(0, size, 8)]
    saved = json.loads((tmp_path / "pieces/state.json").read_text())["tree"]["leaf"]["$tensor"]["sum"]
    assert saved == sum(words) % 2**63
    assert torch.equal(io.load_tree(tmp_path / "pieces", "test")["leaf"], leaf)
