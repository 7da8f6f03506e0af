"""Saves that are damaged, cut off or refused by the disk: a clear error, and the old state in memory and on disk."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import tempfile
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from rl_buffers import (
    CompressedListStorage,
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    TrajectoryStorage,
    io,
)
from rl_core.errors import CheckpointError


def rows(*values: float) -> TensorDict:
    x = torch.tensor(values, dtype=torch.float32)
    following = TensorDict({"x": x + 1, "reward": x.unsqueeze(-1)}, [len(values)])
    return TensorDict({"x": x, "next": following}, [len(values)])


def make(storage=LazyTensorStorage, sampler=RandomSampler, writer=None) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(
        storage=storage(8), sampler=sampler(), writer=None if writer is None else writer(), batch_size=3,
        generator=torch.Generator().manual_seed(5),
    )  # fmt: skip


def prioritized() -> PrioritizedSampler:
    return PrioritizedSampler(8, alpha=0.7, beta=0.5)


@pytest.mark.parametrize(
    "parts",
    [
        {"storage": LazyMemmapStorage, "sampler": SamplerWithoutReplacement},
        {"storage": lambda size: LazyTensorStorage(size, shared=True)},
        {"storage": lambda size: TrajectoryStorage(size, keys=["x"])},
        {"storage": LazyStackStorage},
        {"storage": CompressedListStorage},
        {"storage": LazyMemmapStorage, "sampler": prioritized},
        {"writer": TensorDictMaxValueWriter},
        {"writer": TensorDictMaxValueWriter, "storage": ListStorage},
    ],
)
def test_every_part_saved_loaded_saved_and_loaded_goes_on_as_if_nothing_had_happened(parts, tmp_path):
    original, first, second = (make(**parts) for _ in range(3))
    for k in range(10):
        original.add(rows(k)[0])
    original.sample()
    original.update_priority(torch.arange(8), torch.arange(1.0, 9.0))
    original.save(tmp_path / "one")
    first.load(tmp_path / "one")
    first.dump(tmp_path / "two")
    for file in (tmp_path / "one").iterdir():
        file.unlink()
    second.loads(tmp_path / "two")
    for buffer in (original, first, second):
        buffer.add(rows(20)[0])
    draws = [[buffer.sample()["x"].tolist() for _ in range(5)] for buffer in (original, first, second)]
    assert draws[0] == draws[1] == draws[2]
    found = [torch.stack([row["next", "x"] for row in buffer[:].unbind(0)]) for buffer in (original, first, second)]
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def saved(tmp_path: Path) -> Path:
    buffer = make()
    buffer.extend(rows(1, 2, 3))
    buffer.dumps(tmp_path / "saved")
    return tmp_path / "saved"


def changed_json(folder: Path, change) -> None:
    state = json.loads((folder / "state.json").read_text())
    change(state)
    (folder / "state.json").write_text(json.dumps(state))


def zero_a_page(folder: Path) -> None:
    data = bytearray((folder / "tensors.bin").read_bytes())
    data[0:4] = b"\1\2\3\4"
    (folder / "tensors.bin").write_bytes(data)


DAMAGES = {
    "a byte": zero_a_page,
    "an entry": lambda folder: changed_json(folder, lambda state: state["tree"].pop("writer")),
    "a whole tree": lambda folder: changed_json(folder, lambda state: state.update(tree=[1, 2])),
    "no tree": lambda folder: changed_json(folder, lambda state: state.pop("tree")),
    "the format": lambda folder: changed_json(folder, lambda state: state.update(format="new")),
    "steps": lambda folder: changed_json(folder, lambda state: state["tree"]["storage"].update(steps=5)),
    "a shape": lambda folder: changed_json(
        folder, lambda state: state["tree"]["storage"]["tensors"][0]["$tensor"].update(shape=[700])
    ),
    "a dtype": lambda folder: changed_json(
        folder, lambda state: state["tree"]["storage"]["tensors"][0]["$tensor"].update(dtype="save")
    ),
    "leaves": lambda folder: changed_json(folder, lambda state: state["tree"]["storage"]["tensors"].pop()),
    "generator": lambda folder: changed_json(folder, lambda state: state["tree"].update(generator=7)),
    "the last bytes": lambda folder: (folder / "tensors.bin").write_bytes((folder / "tensors.bin").read_bytes()[:-8]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_save_is_an_error_and_the_buffer_stays_as_it_was(damage, tmp_path):
    folder = saved(tmp_path)
    DAMAGES[damage](folder)
    buffer, twin = make(), make()
    for each in (buffer, twin):
        each.extend(rows(7, 8, 9, 10))
    with pytest.raises(CheckpointError):
        buffer.loads(folder)
    assert torch.equal(buffer[:]["x"], twin[:]["x"]) and buffer.write_count == 4
    assert torch.equal(buffer.sample()["x"], twin.sample()["x"])
    assert buffer.add(rows(1)[0]) == 4


def in_a_fork(action) -> None:
    process = multiprocessing.get_context("fork").Process(target=action)
    process.start()
    process.join(60)
    assert process.exitcode == 0


def test_a_full_disk_is_an_error_and_the_save_before_stays(tmp_path):
    folder = saved(tmp_path)

    def save_on_a_full_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        large = ReplayBuffer(storage=LazyTensorStorage(100_000))
        large.extend(torch.zeros(100_000, 3))
        with pytest.raises(
            CheckpointError, match=r"cannot be written: .*The previous state there, if any, is untouched"
        ):
            large.dumps(folder)

    in_a_fork(save_on_a_full_disk)
    loaded = make()
    loaded.loads(folder)
    assert loaded[:]["x"].tolist() == [1, 2, 3] and [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_a_folder_that_cannot_be_written_is_an_error():
    def without_rights() -> None:
        if os.geteuid() == 0:
            os.setuid(65534)  # root may write anywhere
        with pytest.raises(CheckpointError, match="Permission denied"):
            make().dumps(Path(folder) / "saved")

    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o555)
        in_a_fork(without_rights)


@pytest.mark.parametrize("exchange", [True, False])
def test_an_existing_save_is_replaced_with_and_without_an_exchange_of_folders(exchange, tmp_path, monkeypatch):
    if not exchange:
        monkeypatch.setattr(io, "_exchange", lambda one, other: False)
    folder = saved(tmp_path)
    buffer = make()
    buffer.extend(rows(4))
    buffer.dumps(folder)
    other = make()
    other.loads(folder)
    assert len(other) == 1 and [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_folders_change_places_at_once_where_the_system_can(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    if io._exchange(tmp_path / "one", tmp_path / "two"):
        assert (tmp_path / "one" / "two").exists() and (tmp_path / "two" / "one").exists()
    assert not io._exchange(tmp_path / "one", tmp_path / "missing")


def test_the_rows_are_written_from_where_they_lie(tmp_path):
    """A save makes no copy of the columns: what is handed to the file is their own memory."""
    buffer, seen = make(), []
    buffer.extend(rows(*range(8)))
    write = io._append
    io._append = lambda value, file: (seen.append(value.data_ptr()), write(value, file))[1]
    try:
        buffer.dumps(tmp_path / "saved")
    finally:
        io._append = write
    assert {column.data_ptr() for column in buffer.storage._columns} <= set(seen)


def test_hooks_see_the_state_on_its_way_out_and_in(tmp_path):
    buffer, other = make(), make()
    buffer.extend(rows(1, 2))
    order = []

    def halve(state):
        order.append("halve")
        tensors = [tensor.to(torch.float16) for tensor in state["storage"]["tensors"]]
        return {**state, "storage": {**state["storage"], "tensors": tensors}}

    def restore(state):
        order.append("restore")
        tensors = [tensor.float() for tensor in state["storage"]["tensors"]]
        return {**state, "storage": {**state["storage"], "tensors": tensors}}

    buffer.register_save_hook(halve)
    buffer.register_save_hook(lambda state: order.append("look"))
    other.register_load_hook(restore)
    buffer.dumps(tmp_path / "saved")
    with pytest.raises(CheckpointError, match=r"is torch\.float16"):
        make().loads(tmp_path / "saved")
    other.loads(tmp_path / "saved")
    assert (
        order == ["halve", "look", "restore"] and other[:]["x"].tolist() == [1, 2] and buffer[:]["x"].tolist() == [1, 2]
    )
