"""LeRobot datasets: parquet files in their layout, episodes without a last observation, keys, damaged files."""

from __future__ import annotations

import json
import os
import sys
import types

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rl_buffers import DatasetError, LeRobotExperienceReplay
from rl_buffers.datasets import parquet
from rl_core.errors import PluginNotInstalledError

# Episode 0: four frames, the last one done; episode 1: one done; episode 2: two, not done.
EPISODE = [0, 0, 0, 0, 1, 2, 2]
FRAME = [0, 1, 2, 3, 0, 0, 1]
STATE = [0.0, 1.0, 2.0, 3.0, 10.0, 20.0, 21.0]


def columns(**changes) -> dict:
    found = {
        "observation.state": [[x, -x] for x in STATE],
        "action": [[float(i)] for i in range(7)],
        "timestamp": [0.1 * frame for frame in FRAME],
        "frame_index": FRAME,
        "episode_index": EPISODE,
        "index": list(range(7)),
        "next.reward": [float(i) for i in range(7)],
        "next.done": [False, False, False, True, True, False, False],
    }
    return {name: value for name, value in {**found, **changes}.items() if value is not None}


def load(options=None, **changes) -> LeRobotExperienceReplay:
    return LeRobotExperienceReplay.from_columns(columns(**changes), **(options or {}))


def states(dataset) -> list[tuple[float, float]]:
    rows = dataset[:]
    now, after = rows["observation", "state"][:, 0], rows["next", "observation", "state"][:, 0]
    return list(zip(now.tolist(), after.tolist(), strict=True))


def ends(dataset, name: str) -> list[int]:
    return dataset[:]["next", name].flatten().nonzero().flatten().tolist()


def write(folder, table=None, per_episode=True, info=None):
    """A dataset of version 2 (a file per episode), or 3 (one file)."""
    table = pa.table(columns()) if table is None else table
    (folder / "meta").mkdir(parents=True)
    (folder / "data" / "chunk-000").mkdir(parents=True)
    (folder / "meta" / "info.json").write_text(json.dumps({"codebase_version": "v2.1", "fps": 10, **(info or {})}))
    if per_episode:
        for episode in sorted(set(EPISODE)):
            part = table.filter(pa.compute.equal(table["episode_index"], episode))
            pq.write_table(part, folder / "data" / "chunk-000" / f"episode_{episode:06d}.parquet")
    else:
        pq.write_table(table, folder / "data" / "chunk-000" / "file-000.parquet")
    return folder


def test_frames_become_transitions_without_the_last_of_an_unfinished_episode():
    dataset = load()
    assert states(dataset) == [(0, 1), (1, 2), (2, 3), (3, 3), (10, 10), (20, 21)]
    assert (ends(dataset, "terminated"), ends(dataset, "truncated"), ends(dataset, "done")) == ([3, 4], [5], [3, 4, 5])
    report = dataset.report
    assert (report.episodes, report.terminated, report.cut, report.repeated) == (3, 2, 1, 2)
    assert sum(report.dropped.values()) == 1 and any("'next.done' counts as a termination" in n for n in report.notes)
    rows = dataset[:]
    assert rows["action"].flatten().tolist() == [0, 1, 2, 3, 4, 5]
    assert rows["next", "reward"].tolist() == [[0], [1], [2], [3], [4], [5]]
    assert rows["collector", "traj_ids"].tolist() == [0, 0, 0, 0, 1, 2] and rows["frame_index"].tolist() == FRAME[:6]


def test_the_last_frame_may_repeat_its_observation():
    dataset = load({"missing_last": "repeat"})
    assert states(dataset)[-1] == (21, 21) and ends(dataset, "truncated") == [6] and dataset.report.repeated == 3


def test_time_limits_are_told_from_terminations_where_the_files_do():
    truncated = [False, False, False, True, False, False, False]
    dataset = load({"missing_last": "repeat"}, **{"next.truncated": truncated})
    assert (ends(dataset, "terminated"), ends(dataset, "truncated")) == ([4], [3, 6])
    assert (dataset.report.terminated, dataset.report.truncated, dataset.report.cut) == (1, 1, 1)


def test_demonstrations_without_flags_and_rewards_are_cut_and_have_no_reward():
    dataset = load(None, **{"next.done": None, "next.reward": None})
    assert states(dataset) == [(0, 1), (1, 2), (2, 3), (20, 21)] and ends(dataset, "truncated") == [2, 3]
    assert ("next", "reward") not in dataset[:].keys(True) and dataset.report.cut == 2
    assert any("no 'next.reward'" in note for note in dataset.report.notes)


def test_missing_frames_split_an_episode():
    dataset = load(None, frame_index=[0, 1, 3, 4, 0, 0, 1])
    assert states(dataset)[:3] == [(0, 1), (2, 3), (3, 3)] and ends(dataset, "truncated")[0] == 0
    assert any("missing at 1 places" in note for note in dataset.report.notes)


def test_rows_in_any_order_are_sorted():
    order = np.random.default_rng(0).permutation(7)
    shuffled = {name: np.asarray(value)[order] for name, value in columns().items()}
    assert torch.equal(LeRobotExperienceReplay.from_columns(shuffled)[:]["index"], load()[:]["index"])


def test_keys_may_be_named_and_columns_left_out():
    key_map = {"observation.state": "observation", "index": None, "next.reward": ("next", "r")}
    rows = load({"key_map": key_map})[:]
    assert rows["next", "observation"].shape == (6, 2) and "index" not in rows and rows["next", "r"].shape == (6, 1)
    with pytest.raises(DatasetError, match=r"key_map names \['obs'\].*observation.state"):
        load({"key_map": {"obs": "observation"}})
    with pytest.raises(DatasetError, match="two columns are to stand at"):
        load({"key_map": {"observation.state": "action"}})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"episode_index": None}, "lacks 'episode_index'.*timestamp"),
        ({"observation.state": None}, "lacks .*'observation'"),
        ({"action": [[0.0]] * 6}, "different numbers of rows"),
        ({"action": [[0.0]] * 6 + [[0.0, 1.0]]}, "different shapes"),
        ({"frame_index": [0, 1, 1, 2, 0, 0, 1]}, "frame 1 of episode 0 is there twice"),
    ],
)
def test_columns_that_do_not_fit_are_errors(changes, text):
    with pytest.raises(DatasetError, match=text):
        load(None, **changes)


# ---------------------------------------------------------------------------------------------------- files
@pytest.mark.parametrize("per_episode", [True, False])
def test_files_of_both_layouts_give_the_same_rows_and_are_read_once(tmp_path, per_episode, monkeypatch):
    write(tmp_path / "root" / "me" / "pusht", per_episode=per_episode)
    first = LeRobotExperienceReplay("me/pusht", root=tmp_path / "root", batch_size=2)
    assert states(first) == states(load()) and first.metadata == {"codebase_version": "v2.1", "fps": 10}
    monkeypatch.setattr(parquet, "read_columns", None)
    second = LeRobotExperienceReplay("me/pusht", root=tmp_path / "root")
    assert (second.origin, states(second)) == ("cache", states(first))


def test_slices_are_parts_of_episodes(tmp_path):
    write(tmp_path / "data")
    dataset = LeRobotExperienceReplay(tmp_path / "data", root=tmp_path / "root", batch_size=4, slice_len=2)
    ids = dataset.sample()["collector", "traj_ids"].view(2, 2)
    assert (ids[:, 0] == ids[:, 1]).all()
    with pytest.raises(DatasetError, match="not both"):
        LeRobotExperienceReplay(
            tmp_path / "data", root=tmp_path / "root", slice_len=2, sampler=dataset.sampler, replacement=False
        )


def test_images_texts_and_videos_are_left_out_and_reported(tmp_path):
    image = pa.array([{"bytes": b"", "path": "x.png"}] * 7)
    table = pa.table({**columns(), "observation.image": image, "task": ["push"] * 7})
    info = {"features": {"observation.images.top": {"dtype": "video"}}, "total_frames": 10}
    write(tmp_path / "data", table, per_episode=False, info=info)
    dataset = LeRobotExperienceReplay(tmp_path / "data", root=tmp_path / "root")
    assert dataset.report.left_out["observation.images.top"] == "it is a video"
    assert "images" in dataset.report.left_out["observation.image"] and "task" in dataset.report.left_out
    assert any("7 of the 10 frames" in note for note in dataset.report.notes)
    with pytest.raises(DatasetError, match="decode_video=False"):
        LeRobotExperienceReplay(tmp_path / "data", root=tmp_path / "root", decode_video=True)


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.list_(pa.float32(), 2), pa.large_list(pa.float64())])
def test_all_kinds_of_lists_become_dimensions(tmp_path, kind):
    table = pa.table({**columns(), "observation.state": pa.array([[x, -x] for x in STATE], type=kind)})
    write(tmp_path / "data", table, per_episode=False)
    dataset = LeRobotExperienceReplay(tmp_path / "data", root=tmp_path / "root")
    assert dataset[:]["observation", "state"].shape == (6, 2) and states(dataset) == states(load())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (pa.array([[0.0, 1.0]] * 6 + [[0.0]]), "observation.state has lists of different lengths, 1 to 2"),
        (pa.array([[0.0]] * 6 + [None]), "observation.state has 1 rows without a value"),
        (pa.array([[0.0]] * 6 + [[None]]), "observation.state has 1 rows without a value"),
    ],
)
def test_lists_with_gaps_are_errors(tmp_path, value, text):
    write(tmp_path / "data", pa.table({**columns(), "observation.state": value}), per_episode=False)
    with pytest.raises(DatasetError, match=text):
        LeRobotExperienceReplay(tmp_path / "data", root=tmp_path / "root")


def test_a_damaged_file_is_named_and_nothing_is_left(tmp_path):
    folder = write(tmp_path / "data")
    file = folder / "data" / "chunk-000" / "episode_000001.parquet"
    os.truncate(file, 300)
    with pytest.raises(DatasetError, match=r"episode_000001.parquet cannot be read as parquet"):
        LeRobotExperienceReplay(folder, root=tmp_path / "root")
    assert not list((tmp_path / "root" / "converted").iterdir())


def test_files_of_different_columns_are_an_error(tmp_path):
    folder = write(tmp_path / "data")
    pq.write_table(pa.table(columns(index=None)), folder / "data" / "chunk-000" / "episode_000009.parquet")
    with pytest.raises(DatasetError, match=r"different columns: \['index'\]"):
        LeRobotExperienceReplay(folder, root=tmp_path / "root")


def test_a_damaged_description_and_an_empty_folder_are_errors(tmp_path):
    folder = write(tmp_path / "data")
    (folder / "meta" / "info.json").write_text("{")
    with pytest.raises(DatasetError, match=r"info.json cannot be read"):
        LeRobotExperienceReplay(folder, root=tmp_path / "root")
    (tmp_path / "empty" / "data").mkdir(parents=True)
    with pytest.raises(DatasetError, match="holds no parquet file"):
        LeRobotExperienceReplay(tmp_path / "empty", root=tmp_path / "root")


# ---------------------------------------------------------------------------------------------------- downloads
def test_a_dataset_that_is_not_there_is_named_with_address_and_place(tmp_path):
    with pytest.raises(DatasetError, match=r"https://huggingface.co/datasets/lerobot/pusht") as caught:
        LeRobotExperienceReplay("lerobot/pusht", root=tmp_path, download=False)
    assert str(tmp_path / "lerobot" / "pusht") in str(caught.value)


def fake_hub(monkeypatch, download) -> None:
    hub = types.ModuleType("huggingface_hub")
    hub.__spec__ = types.SimpleNamespace(name="huggingface_hub")
    hub.snapshot_download = download
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.delitem(sys.modules, "rl_buffers.datasets.hub", raising=False)


def test_a_download_appears_when_it_is_complete(tmp_path, monkeypatch):
    from pathlib import Path

    def download(repo_id, repo_type, local_dir, allow_patterns):
        write(Path(local_dir))
        if failing:
            raise ConnectionError("no network")

    failing = True
    fake_hub(monkeypatch, download)
    with pytest.raises(DatasetError, match=r"ConnectionError: no network.*hf download lerobot/pusht"):
        LeRobotExperienceReplay("lerobot/pusht", root=tmp_path)
    assert not list((tmp_path / "lerobot").iterdir())
    failing = False
    assert len(LeRobotExperienceReplay("lerobot/pusht", root=tmp_path)) == 6
    assert len(LeRobotExperienceReplay("lerobot/pusht", root=tmp_path, download="force")) == 6
    assert [path.name for path in (tmp_path / "lerobot").iterdir()] == ["pusht"]


def test_absent_libraries_are_answered_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DatasetError, match="pip install huggingface_hub"):
        LeRobotExperienceReplay("lerobot/pusht", root=tmp_path)
    write(tmp_path / "data")
    monkeypatch.delitem(sys.modules, "rl_buffers.datasets.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(PluginNotInstalledError, match=r"pip install 'rl-buffers\[parquet\]'"):
        LeRobotExperienceReplay(tmp_path / "data", root=tmp_path / "root")
