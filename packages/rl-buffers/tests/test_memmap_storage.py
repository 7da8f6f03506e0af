"""LazyMemmapStorage: where its files are, who may write them, when they go, and a disk that refuses."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from rl_buffers import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer
from rl_core.errors import ReplayBufferError


def rows(*values: float) -> TensorDict:
    x = torch.tensor(values, dtype=torch.float32)
    return TensorDict({"x": x, "next": {"done": (x > 2).unsqueeze(-1)}}, [len(values)])


def make(folder: Path | None = None, size: int = 8, **kwargs) -> ReplayBuffer:
    return ReplayBuffer(storage=LazyMemmapStorage(size, scratch_dir=folder, **kwargs), batch_size=3)


def in_a_fork(action) -> None:
    """Run `action` in a forked process; its assertions count."""
    process = multiprocessing.get_context("fork").Process(target=action)
    process.start()
    process.join(60)
    assert process.exitcode == 0


def test_there_is_one_file_of_raw_values_per_leaf(tmp_path):
    buffer = make(tmp_path / "rows")
    buffer.extend(rows(1, 2, 3))
    assert (tmp_path / "rows/rows/next/done.memmap").stat().st_size == 8
    raw = torch.frombuffer(bytearray((tmp_path / "rows/rows/x.memmap").read_bytes()), dtype=torch.float32)
    assert raw.tolist() == [1, 2, 3, 0, 0, 0, 0, 0] and buffer.storage.scratch_dir == tmp_path / "rows"


def test_names_of_entries_do_not_lead_out_of_the_folder(tmp_path):
    buffer = make(tmp_path / "rows")
    buffer.extend(TensorDict({"../up": torch.ones(2), "a/b": torch.zeros(2), "..": {"x": torch.ones(2)}}, [2]))
    assert [path.name for path in tmp_path.iterdir()] == ["rows"] and buffer[1]["../up"] == 1


def test_rows_without_a_value_are_stored():
    buffer = make()
    buffer.extend(TensorDict({"x": torch.zeros(3, 0), "y": torch.arange(3)}, [3]))
    assert buffer[:]["x"].shape == (3, 0) and buffer[:]["y"].tolist() == [0, 1, 2]


def test_a_temporary_folder_goes_with_the_storage():
    buffer = make()
    buffer.extend(rows(1))
    folder = buffer.storage.scratch_dir
    assert folder.is_dir()
    del buffer
    gc.collect()
    assert not folder.exists()


def test_closing_removes_it_at_once():
    storage = LazyMemmapStorage(4)
    folder = storage.scratch_dir
    storage.close()
    assert not folder.exists()
    storage.close()


def test_a_named_folder_stays_unless_it_is_to_be_removed(tmp_path):
    for name, cleanup in (("stays", None), ("goes", True)):
        buffer = make(tmp_path / name, auto_cleanup=cleanup)
        buffer.extend(rows(1))
        buffer.storage.close()
    assert (tmp_path / "stays/rows/x.memmap").exists() and not (tmp_path / "goes/rows").exists()


def test_a_temporary_folder_goes_at_the_end_of_the_process(tmp_path):
    code = (
        "import torch, rl_buffers as b; s = b.ReplayBuffer(storage=b.LazyMemmapStorage(4)); s.extend(torch.zeros(2));"
        "print(s.storage.scratch_dir)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() and not Path(done.stdout.strip()).exists()


def test_a_temporary_folder_goes_at_the_end_of_a_worker_process(tmp_path):
    kept = []

    def leave() -> None:
        kept.append(LazyMemmapStorage(4))
        (tmp_path / "where").write_text(str(kept[0].scratch_dir))

    in_a_fork(leave)
    assert not Path((tmp_path / "where").read_text()).exists()


def test_a_forked_process_that_ends_leaves_the_files_of_its_parent():
    buffer = make()
    buffer.extend(rows(1))
    in_a_fork(gc.collect)
    assert buffer.storage.scratch_dir.exists()


def test_files_of_another_storage_are_not_overwritten_unless_told(tmp_path):
    buffer = make(tmp_path / "rows")
    buffer.extend(rows(1, 2))
    buffer.storage.close()
    with pytest.raises(ReplayBufferError, match=r"holds the rows of another storage.*existsok=True"):
        make(tmp_path / "rows")
    other = make(tmp_path / "rows", existsok=True)
    other.extend(rows(5))
    assert len(other) == 1 and other[0]["x"] == 5


def test_two_storages_do_not_write_to_one_folder(tmp_path):
    buffer = make(tmp_path / "rows")
    with pytest.raises(ReplayBufferError, match=rf"process {os.getpid()} writes to a storage in .*rows already"):
        make(tmp_path / "rows", existsok=True)
    buffer.extend(rows(1))


def test_two_processes_do_not_write_to_one_folder(tmp_path):
    buffer = make(tmp_path / "rows")
    buffer.extend(rows(1))
    parent = os.getpid()

    def second() -> None:
        with pytest.raises(ReplayBufferError, match=f"process {parent} writes to a storage in"):
            LazyMemmapStorage(8, scratch_dir=tmp_path / "rows", existsok=True)

    in_a_fork(second)
    assert buffer[0]["x"] == 1


def test_a_forked_process_and_a_pickled_copy_read_the_rows_and_cannot_write_them():
    buffer = make()
    buffer.extend(rows(1, 2))

    def read_only(copy: ReplayBuffer) -> None:
        assert copy[:]["x"].tolist() == [1, 2]
        for change in (lambda: copy.extend(rows(7)), lambda: copy.__setitem__(0, rows(7)[0]), copy.empty):
            with pytest.raises(ReplayBufferError, match=r"maps the rows of .* for reading"):
                change()

    in_a_fork(lambda: read_only(buffer))
    read_only(pickle.loads(pickle.dumps(buffer)))
    assert buffer[:]["x"].tolist() == [1, 2]


def test_a_pickled_storage_is_small():
    buffer = make(size=100_000)
    buffer.extend(rows(1, 2))
    assert len(pickle.dumps(buffer)) < 10_000


@pytest.mark.parametrize("make", [LazyMemmapStorage, lambda size: LazyTensorStorage(size, shared=True)])
def test_a_full_disk_is_an_error_at_the_first_write_and_leaves_no_file(make):
    def on_a_full_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        buffer = ReplayBuffer(storage=make(1_000_000))
        with pytest.raises(ReplayBufferError, match=r"The rows need 11\.4 MiB\. Choose another scratch_dir"):
            buffer.extend(torch.zeros(2, 3))
        assert not list(buffer.storage.folder.path.rglob("*.memmap"))
        ReplayBuffer(storage=make(10)).extend(torch.zeros(2, 3))

    in_a_fork(on_a_full_disk)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    def without_rights() -> None:
        if os.geteuid() == 0:
            os.setuid(65534)  # root may write anywhere
        with pytest.raises(ReplayBufferError, match=r"cannot hold a storage's rows: \[Errno 13\] Permission denied"):
            LazyMemmapStorage(8, scratch_dir=Path(folder) / "rows")

    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o555)
        in_a_fork(without_rights)


def test_a_place_below_a_file_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ReplayBufferError, match="cannot hold a storage's rows"):
        LazyMemmapStorage(3, scratch_dir=tmp_path / "file" / "rows")


def test_another_device_is_refused():
    with pytest.raises(ReplayBufferError, match="mapped into main memory, not onto cuda"):
        LazyMemmapStorage(3, device="cuda")


def test_what_one_kind_of_storage_saved_another_loads(tmp_path):
    on_disk, in_memory = make(), ReplayBuffer(storage=LazyTensorStorage(8), batch_size=3)
    on_disk.extend(rows(1, 2, 3))
    on_disk.dumps(tmp_path / "saved")
    in_memory.loads(tmp_path / "saved")
    in_memory.extend(rows(4))
    in_memory.dumps(tmp_path / "saved")
    on_disk.loads(tmp_path / "saved")
    assert on_disk[:]["x"].tolist() == [1, 2, 3, 4]


def test_a_state_of_another_structure_replaces_the_files():
    buffer, other = make(), ReplayBuffer(storage=LazyTensorStorage(8))
    buffer.extend(rows(1, 2, 3))
    other.extend(torch.arange(5))
    buffer.load_state_dict(other.state_dict())
    assert buffer[:].tolist() == [0, 1, 2, 3, 4]
