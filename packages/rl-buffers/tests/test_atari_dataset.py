"""DQN's replay memories: stacks by index, padding, rings, checkpoints that do not go on, damaged files."""

from __future__ import annotations

import gzip
import io
import os
import urllib.request

import numpy as np
import pytest
import torch

from rl_buffers import AtariDQNExperienceReplay, DatasetError
from rl_core.errors import CheckpointError, ReplayBufferError

# A frame is a 2x2 picture of one number. Three rows of zeros, an episode of frames 1..4 that terminates, three rows of
# zeros, frames 11..12 that do not.
FRAMES = [0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 11, 12]
TERMINAL = [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]


def write(folder, number=0, frames=FRAMES, terminal=TERMINAL, add_count=None, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.array(frames, np.uint8)[:, None, None].repeat(2, 1).repeat(2, 2)
    columns = {
        "observation": pixels,
        "action": np.array(frames, np.int32),
        "reward": np.array(frames, np.float32) * 10,
        "terminal": np.array(terminal, np.uint8),
        **changes,
    }
    for name, value in columns.items():
        save(folder / f"$store$_{name}_ckpt.{number}.gz", value)
    if add_count is not None:
        save(folder / f"add_count_ckpt.{number}.gz", np.array(add_count))
    return folder


def save(path, value) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        np.save(file, value, allow_pickle=True)


def load(tmp_path, **kwargs) -> AtariDQNExperienceReplay:
    return AtariDQNExperienceReplay(tmp_path / "run", root=tmp_path / "root", **{"frame_stack": 3, **kwargs})


def stacks(rows, key) -> list[list[int]]:
    assert (rows[key] == rows[key][..., :1, :1]).all()
    return rows[key][..., 0, 0].tolist()


def ends(dataset, name: str) -> list[int]:
    return dataset[:]["next", name].flatten().nonzero().flatten().tolist()


def test_stacks_hold_frames_of_one_episode_with_zeros_before_it(tmp_path):
    write(tmp_path / "run")
    dataset = load(tmp_path)
    rows = dataset[:]
    assert rows["observation"].shape == (5, 3, 2, 2) and rows["observation"].dtype == torch.uint8
    assert stacks(rows, "observation") == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [0, 0, 11]]
    assert stacks(rows, ("next", "observation")) == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [2, 3, 4], [0, 11, 12]]
    assert rows["action"].tolist() == [1, 2, 3, 4, 11] and rows["action"].dtype == torch.int64
    assert rows["next", "reward"].flatten().tolist() == [10, 20, 30, 40, 110]
    assert (ends(dataset, "terminated"), ends(dataset, "truncated"), ends(dataset, "done")) == ([3], [4], [3, 4])
    assert rows["collector", "traj_ids"].tolist() == [0, 0, 0, 0, 1]
    dropped = dataset.report.dropped
    assert dropped["padding of zeros before an episode"] == 6 and sum(dropped.values()) == 7
    assert dataset.report.repeated == 1 and dataset.report.cut == 1 and dataset.metadata == {"checkpoints": [0]}


def test_the_last_row_of_a_checkpoint_may_repeat_its_frames(tmp_path):
    write(tmp_path / "run")
    rows = load(tmp_path, missing_last="repeat")[:]
    assert stacks(rows, ("next", "observation"))[-1] == [0, 11, 12] and rows["action"].tolist()[-1] == 12


def test_frames_are_kept_once(tmp_path):
    write(tmp_path / "run")
    load(tmp_path)
    (file,) = (tmp_path / "root").rglob("frames.pixels.bin")
    assert file.stat().st_size == len(FRAMES) * 4
    assert not list((tmp_path / "root").rglob("*observation*"))


def test_a_checkpoint_does_not_go_on_in_the_next_one(tmp_path):
    write(tmp_path / "run" / "replay_logs", 0)
    write(tmp_path / "run" / "replay_logs", 2, frames=[13, 14, 15], terminal=[0, 0, 1])
    dataset = load(tmp_path)
    assert stacks(dataset[:], "observation")[4:] == [[0, 0, 11], [0, 0, 13], [0, 13, 14], [13, 14, 15]]
    assert stacks(dataset[:], ("next", "observation"))[4] == [0, 11, 12]
    assert dataset[:]["collector", "traj_ids"].tolist()[4:] == [1, 2, 2, 2]
    assert load(tmp_path, checkpoints=[2])[:]["action"].tolist() == [13, 14, 15]


def test_a_ring_is_read_from_its_oldest_row(tmp_path):
    write(tmp_path / "run", frames=[5, 6, 1, 2, 3, 4], terminal=[0, 1, 0, 0, 0, 0], add_count=8)
    rows = load(tmp_path)[:]
    assert rows["action"].tolist() == [1, 2, 3, 4, 5, 6]
    assert stacks(rows, "observation")[-1] == [4, 5, 6] and stacks(rows, ("next", "observation"))[0] == [0, 1, 2]


def test_rows_that_were_never_written_are_not_read(tmp_path):
    write(tmp_path / "run", frames=[1, 2, 3, 0, 0, 0], terminal=[0, 0, 1, 0, 0, 0], add_count=3)
    assert load(tmp_path)[:]["action"].tolist() == [1, 2, 3]


def test_three_black_frames_at_most_count_as_padding(tmp_path):
    write(tmp_path / "run", frames=[0, 0, 0, 0, 7, 8], terminal=[0, 0, 0, 0, 0, 1])
    assert stacks(load(tmp_path)[:], "observation") == [[0, 0, 0], [0, 0, 7], [0, 7, 8]]


def test_more_frames_than_one_piece_are_read_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr("rl_buffers.datasets.gzip_arrays._ROWS", 2)
    write(tmp_path / "run", frames=[5, 6, 7, 1, 2, 3, 4], terminal=[0, 0, 1, 0, 0, 0, 0], add_count=17)
    assert stacks(load(tmp_path)[:], "observation")[-1] == [5, 6, 7]


def test_slices_and_samples_keep_stacks_and_rows_together(tmp_path):
    write(tmp_path / "run")
    dataset = load(tmp_path, batch_size=4, slice_len=2)
    batch = dataset.sample()
    assert torch.equal(batch["observation"][:, -1, 0, 0].long(), batch["action"])
    ids = batch["collector", "traj_ids"].view(2, 2)
    assert (ids[:, 0] == ids[:, 1]).all()
    assert torch.equal(dataset.storage.entry("observation", torch.tensor([2])), dataset[2:3]["observation"])
    whole = load(tmp_path, batch_size=2, num_slices=1, replacement=False, strict_len=True)
    assert whole.sample()["action"].shape == (2,)


def test_rows_are_for_reading_and_slots_are_checked(tmp_path):
    write(tmp_path / "run")
    dataset = load(tmp_path)
    for action in (lambda: dataset.extend(dataset[:]), dataset.empty):
        with pytest.raises(ReplayBufferError, match="for reading"):
            action()
    with pytest.raises(ReplayBufferError):
        dataset[5]
    with pytest.raises(ReplayBufferError):
        dataset.storage.entry("observation", torch.tensor([5]))


def test_it_is_saved_and_loaded_with_its_frames(tmp_path):
    write(tmp_path / "run")
    dataset = load(tmp_path)
    dataset.dumps(tmp_path / "saved")
    write(tmp_path / "run", frames=[x and x + 1 for x in FRAMES])
    other = load(tmp_path)
    other.loads(tmp_path / "saved")
    assert torch.equal(other[:]["observation"], dataset[:]["observation"]) and other[0]["action"] == 1
    with pytest.raises(CheckpointError, match="stacks of 3"):
        load(tmp_path, frame_stack=2).loads(tmp_path / "saved")


def test_the_second_time_files_are_not_read_unless_they_change(tmp_path):
    write(tmp_path / "run")
    assert [load(tmp_path).origin, load(tmp_path).origin, load(tmp_path, frame_stack=4).origin] == ["files"] + [
        "cache"
    ] * 2
    write(tmp_path / "run", add_count=7)
    changed = load(tmp_path)
    assert changed.origin == "files" and len(changed) == 4


# ---------------------------------------------------------------------------------------------------- faults
@pytest.mark.parametrize("name", ["observation", "action", "reward", "terminal"])
@pytest.mark.parametrize("damage", ["truncated", "no gzip", "no array", "absent"])
def test_a_damaged_file_is_named_and_nothing_is_left(tmp_path, name, damage):
    path = write(tmp_path / "run") / f"$store$_{name}_ckpt.0.gz"
    if damage == "truncated":
        noise = np.random.default_rng(0).integers(0, 255, (12, 64, 64), np.uint8)  # more than the compressor's window
        save(path, noise if name == "observation" else np.arange(12))
        os.truncate(path, path.stat().st_size - 20)
    elif damage == "no gzip":
        path.write_bytes(b"something else")
    elif damage == "no array":
        path.write_bytes(gzip.compress(b"something else"))
    else:
        path.unlink()
    with pytest.raises(DatasetError, match=rf"store\$_{name}_ckpt.0.gz") as caught:
        load(tmp_path, checkpoints=[0])
    assert ("it has $store$" if damage == "absent" else "Remove it and fetch it again") in str(caught.value)
    assert not [file for file in (tmp_path / "root").rglob("*") if file.is_file()]


def test_pickled_objects_are_not_read(tmp_path):
    for name in ("action", "observation"):
        folder = write(tmp_path / "run")
        save(folder / f"$store$_{name}_ckpt.0.gz", np.array([{}] * 12, dtype=object))
        with pytest.raises(DatasetError, match=rf"{name}_ckpt.0.gz cannot be read"):
            load(tmp_path)


def test_columns_of_different_lengths_are_an_error(tmp_path):
    write(tmp_path / "run", reward=np.zeros(11, np.float32))
    with pytest.raises(DatasetError, match=r"different lengths: .*'reward': 11.*'observation': 12"):
        load(tmp_path)


def test_padded_episodes_and_stacks_of_nothing_are_refused(tmp_path):
    write(tmp_path / "run")
    with pytest.raises(DatasetError, match="slice_len"):
        load(tmp_path, split_trajs=True)
    with pytest.raises(ReplayBufferError, match="at least one frame"):
        load(tmp_path, frame_stack=0)


def test_files_that_are_not_there_are_named_with_address_and_place(tmp_path):
    with pytest.raises(
        DatasetError, match=r"atari-replay-datasets/dqn/Pong/1/replay_logs.*checkpoints=\[0\]"
    ) as caught:
        AtariDQNExperienceReplay("Pong/1", root=tmp_path)
    assert str(tmp_path / "Pong" / "1") in str(caught.value)
    with pytest.raises(DatasetError, match=r"lacks .*observation_ckpt.3.gz"):
        AtariDQNExperienceReplay("Pong/1", root=tmp_path, checkpoints=[3], download=False)


class Answer(io.BytesIO):
    headers: dict[str, str] = {}


def test_files_of_the_checkpoints_asked_for_are_downloaded(tmp_path, monkeypatch):
    remote, asked = write(tmp_path / "remote"), []

    def urlopen(url, timeout):
        asked.append(url)
        data = (remote / url.rpartition("/")[2].replace("%24", "$")).read_bytes()
        return Answer(data)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    dataset = AtariDQNExperienceReplay("Pong/1", root=tmp_path / "root", checkpoints=[0])
    assert len(dataset) == 5 and len(asked) == 4 and "Pong/1/replay_logs/%24store%24_observation_ckpt.0.gz" in asked[0]
