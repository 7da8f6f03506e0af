"""D4RL files: the variants of the layout, what is dropped and said, damaged files, the cache, scores and addresses."""

from __future__ import annotations

import io
import os
import sys
import types
import urllib.error
import urllib.request

import h5py
import numpy as np
import pytest
import torch

from rl_buffers import D4RLExperienceReplay, DatasetError, SamplerWithoutReplacement, SliceSampler
from rl_buffers.datasets import hdf5
from rl_core.errors import PluginNotInstalledError, ReplayBufferError

# Episode A: 4 steps to a time limit, B: 1 step to a termination, C: 2 steps, then the file ends. Observations count
# 0..4, 10..11, 20..22; a row's action is its number, its reward 100 + its number.
NOW = [0, 1, 2, 3, 10, 20, 21]
AFTER = [1, 2, 3, 4, 11, 21, 22]
EACH_LAST = [0, 1, 2, 3, 4, 10, 11, 20, 21, 22]


def column(values) -> np.ndarray:
    return np.array(values, dtype="float32")[:, None]


def columns(**changes) -> dict:
    found = {
        "observations": column(NOW),
        "next_observations": column(AFTER),
        "actions": column(range(7)),
        "rewards": np.arange(100, 107, dtype="float32"),
        "terminals": np.array([0, 0, 0, 0, 1, 0, 0], dtype=bool),
        "timeouts": np.array([0, 0, 0, 1, 0, 0, 0], dtype=bool),
    }
    return {name: value for name, value in {**found, **changes}.items() if value is not None}


def write(path, **changes):
    with h5py.File(path, "w") as file:
        for name, value in columns(**changes).items():
            file[name] = value
    return path


def load(tmp_path, _options=None, **changes) -> D4RLExperienceReplay:
    return D4RLExperienceReplay(write(tmp_path / "data.hdf5", **changes), root=tmp_path / "root", **(_options or {}))


def pairs(dataset) -> list[tuple[float, float]]:
    rows = dataset[:]
    return list(
        zip(rows["observation"].flatten().tolist(), rows["next", "observation"].flatten().tolist(), strict=True)
    )


def ends(dataset, name: str) -> list[int]:
    return dataset[:]["next", name].flatten().nonzero().flatten().tolist()


@pytest.mark.parametrize("kind", ["next_observations", "one more for each episode"])
def test_a_file_with_every_last_observation_gives_seven_true_transitions(tmp_path, kind):
    more = {} if kind == "next_observations" else {"next_observations": None, "observations": column(EACH_LAST)}
    dataset = load(tmp_path, **more)
    assert pairs(dataset) == list(zip(NOW, AFTER, strict=True))
    assert (ends(dataset, "terminated"), ends(dataset, "truncated"), ends(dataset, "done")) == ([4], [3, 6], [3, 4, 6])
    rows = dataset[:]
    assert rows["collector", "traj_ids"].tolist() == [0, 0, 0, 0, 1, 2, 2]
    assert rows["action"].flatten().tolist() == list(range(7))
    assert rows["next", "reward"].tolist() == [[100.0 + i] for i in range(7)]
    report = dataset.report
    assert (report.transitions, report.episodes, report.cut, report.dropped) == (7, 3, 1, {})
    assert "1 cut" in str(report)


def test_without_last_observations_their_rows_are_dropped_and_reported(tmp_path):
    dataset = load(tmp_path, next_observations=None)
    assert pairs(dataset) == [(0, 1), (1, 2), (2, 3), (10, 10), (20, 21)]
    assert (ends(dataset, "terminated"), ends(dataset, "truncated")) == ([3], [2, 4])
    assert sum(dataset.report.dropped.values()) == 2 and dataset.report.repeated == 1
    assert "dropped 1 rows" in str(dataset.report)


def test_without_last_observations_rows_may_repeat_their_own(tmp_path):
    dataset = load(tmp_path, {"missing_last": "repeat"}, next_observations=None)
    assert pairs(dataset) == [(0, 1), (1, 2), (2, 3), (3, 3), (10, 10), (20, 21), (21, 21)]
    assert (ends(dataset, "terminated"), ends(dataset, "truncated")) == ([4], [3, 6]) and dataset.report.repeated == 3


def test_one_more_observation_at_the_end_of_the_file_is_that_of_its_last_row(tmp_path):
    dataset = load(tmp_path, next_observations=None, observations=column([*NOW, 22]))
    assert pairs(dataset) == [(0, 1), (1, 2), (2, 3), (10, 10), (20, 21), (21, 22)]
    assert ends(dataset, "truncated") == [2, 5]


def test_with_terminals_only_an_unmarked_end_is_found_by_the_next_observation(tmp_path):
    dataset = load(tmp_path, timeouts=None)
    assert pairs(dataset) == list(zip(NOW, AFTER, strict=True))
    assert (ends(dataset, "terminated"), ends(dataset, "truncated")) == ([4], [3, 6])
    assert (dataset.report.truncated, dataset.report.cut) == (0, 2)
    assert any("1 episodes end without a flag" in note for note in dataset.report.notes)


def test_with_terminals_only_and_no_next_observations_the_report_says_what_cannot_be_told(tmp_path):
    dataset = load(tmp_path, timeouts=None, next_observations=None)
    assert any("max_episode_steps" in note for note in dataset.report.notes)
    assert pairs(dataset)[4] == (10, 10) and ends(dataset, "terminated") == [4]


def test_with_terminals_only_a_known_time_limit_ends_episodes(tmp_path):
    dataset = load(tmp_path, {"max_episode_steps": 4}, timeouts=None, next_observations=None)
    assert pairs(dataset) == [(0, 1), (1, 2), (2, 3), (10, 10), (20, 21)]
    assert dataset.report.truncated == 1 and dataset.report.cut == 1


def test_a_missing_time_limit_in_every_row_of_noisy_next_observations_cuts_nothing(tmp_path):
    dataset = load(tmp_path, timeouts=None, next_observations=column(AFTER) + 0.5)
    assert dataset.report.episodes == 2 and any("throughout" in note for note in dataset.report.notes)


def test_time_limits_may_be_left_unmarked_without_gluing_episodes(tmp_path):
    dataset = load(tmp_path, {"use_truncated_as_done": False})
    assert (ends(dataset, "done"), ends(dataset, "truncated")) == ([4], [])
    assert pairs(dataset) == list(zip(NOW, AFTER, strict=True))
    assert dataset[:]["collector", "traj_ids"].tolist() == [0, 0, 0, 0, 1, 2, 2]


def test_terminate_on_end_marks_or_drops_timed_out_rows(tmp_path):
    marked = load(tmp_path, {"terminate_on_end": True})
    assert (ends(marked, "terminated"), ends(marked, "done")) == ([3, 4], [3, 4, 6])
    dropped = load(tmp_path, {"terminate_on_end": False})
    assert pairs(dropped) == [(0, 1), (1, 2), (2, 3), (10, 11), (20, 21), (21, 22)]
    assert ends(dropped, "truncated") == [2, 5] and sum(dropped.report.dropped.values()) == 1
    with pytest.raises(DatasetError, match="leave out missing_last"):
        load(tmp_path, {"terminate_on_end": False, "missing_last": "repeat"})


def test_infos_and_metadata_are_kept_and_misfits_reported(tmp_path):
    extra = {
        "infos/qpos": np.arange(14, dtype="float64").reshape(7, 2),
        "infos/short": np.zeros(6),
        "metadata/algorithm": np.bytes_("SAC"),
        "metadata/weights": np.zeros((3, 3)),
        "odd": np.zeros(7),
    }
    dataset = load(tmp_path, **extra)
    assert dataset[3]["info", "qpos"].tolist() == [6, 7] and dataset[:]["info", "qpos"].dtype == torch.float32
    assert dataset.metadata == {"algorithm": "SAC"}
    assert dataset.report.left_out == {
        "infos/short": "it has 6 rows, rewards have 7",
        "odd": "not a column of the format",
    }


def test_a_group_of_observations_gives_an_entry_for_each_part(tmp_path):
    parts = {"observations/a": column(NOW), "observations/b": column(NOW) * 2}
    dataset = load(tmp_path, observations=None, next_observations=None, **parts)
    assert dataset[0]["next", "b"].tolist() == [2]
    with pytest.raises(DatasetError, match="part named 'action'"):
        load(tmp_path, observations=None, next_observations=None, **{"observations/action": column(NOW)})


def test_floats_keep_their_precision_where_asked(tmp_path):
    wide = column(NOW).astype("float64")
    assert load(tmp_path, observations=wide)[:]["observation"].dtype == torch.float32
    dataset = load(tmp_path, {"float_dtype": None}, observations=wide)
    assert dataset[:]["observation"].dtype == torch.float64


def test_the_dataset_is_an_ordinary_buffer(tmp_path):
    path = write(tmp_path / "data.hdf5")
    dataset = D4RLExperienceReplay(
        path, batch_size=3, root=tmp_path / "root", sampler=SamplerWithoutReplacement(), transform=lambda rows: rows
    )
    assert sorted(x for batch in dataset for x in batch["observation"].flatten().tolist()) == sorted(NOW)
    with pytest.raises(ReplayBufferError, match="for reading"):
        dataset.extend(dataset[:])
    slices = D4RLExperienceReplay(path, batch_size=6, root=tmp_path / "root", sampler=SliceSampler(slice_len=2))
    torch.manual_seed(0)
    for _ in range(20):
        batch = slices.sample()
        ids = batch["collector", "traj_ids"].view(3, 2)
        assert (ids[:, 0] == ids[:, 1]).all() and 1 not in ids
        assert torch.equal(batch["observation"].view(3, 2)[:, 1], batch["next", "observation"].view(3, 2)[:, 0])


def test_split_trajs_pads_episodes_with_zeros_and_a_mask(tmp_path):
    dataset = load(tmp_path, {"split_trajs": True, "batch_size": 2})
    rows = dataset[:]
    assert len(dataset) == 3 and rows.batch_size == (3, 4)
    assert rows["observation"].squeeze(-1).tolist() == [[0, 1, 2, 3], [10, 0, 0, 0], [20, 21, 0, 0]]
    assert rows["collector", "mask"].sum(-1).tolist() == [4, 1, 2]
    assert rows["collector", "traj_ids"].tolist() == [[0] * 4, [1] * 4, [2] * 4]
    assert rows["next", "done"].squeeze(-1).sum(-1).tolist() == [1, 1, 1]
    assert dataset.sample().batch_size == (2, 4)
    epoch = load(tmp_path, {"split_trajs": True, "batch_size": 2, "sampler": SamplerWithoutReplacement(drop_last=True)})
    assert [batch.batch_size for batch in epoch] == [(2, 4)]


# ---------------------------------------------------------------------------------------------------- faults
@pytest.mark.parametrize("name", ["actions", "observations", "rewards", "terminals"])
def test_a_missing_column_is_named_with_those_that_are_there(tmp_path, name):
    with pytest.raises(DatasetError, match=rf"data.hdf5 lacks {name}; it has .*timeouts"):
        load(tmp_path, **{name: None})


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("actions", column(range(6)), "'actions' has 6 rows, expected 7"),
        ("timeouts", np.zeros(8, bool), "'timeouts' has 8 rows, expected 7"),
        ("next_observations", column(range(6)), "has 6 rows, expected 7"),
        ("rewards", np.zeros((7, 2)), "2 values per row"),
        ("terminals", np.zeros((7, 2)), "one flag per row"),
        ("rewards", np.zeros(0), "has no row"),
    ],
)
def test_a_column_of_another_length_is_an_error(tmp_path, name, value, text):
    with pytest.raises(DatasetError, match=text):
        load(tmp_path, **{name: value})
    assert not list((tmp_path / "root").rglob("*.bin"))


def test_observations_of_another_length_are_an_error_that_names_the_lengths_that_fit(tmp_path):
    with pytest.raises(DatasetError, match=r"12 rows, expected 7 .* 8 .* 10 \(one more for each of 3 episodes\)"):
        load(tmp_path, next_observations=None, observations=column(range(12)))


@pytest.mark.parametrize("size", [0, 100, 3000])
def test_a_truncated_file_is_an_error_that_says_what_to_do(tmp_path, size):
    path = write(tmp_path / "data.hdf5")
    os.truncate(path, size)
    with pytest.raises(DatasetError, match=r"damaged or incomplete.*Remove it and fetch it again"):
        D4RLExperienceReplay(path, root=tmp_path / "root")
    assert not (tmp_path / "root").exists() or not list((tmp_path / "root/converted").iterdir())


def test_a_file_in_which_nothing_is_left_is_an_error_with_the_report(tmp_path):
    one = {name: value[:1] for name, value in columns(next_observations=None, terminals=np.zeros(7, bool)).items()}
    with pytest.raises(DatasetError, match="no transition is left"):
        load(tmp_path, next_observations=None, **one)


def test_a_path_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(DatasetError, match=r"there is no file .*absent\.hdf5"):
        D4RLExperienceReplay(tmp_path / "absent.hdf5", root=tmp_path)


# ---------------------------------------------------------------------------------------------------- the cache
def test_the_second_time_the_file_is_not_read(tmp_path, monkeypatch):
    path = write(tmp_path / "data.hdf5")
    first = D4RLExperienceReplay(path, root=tmp_path / "root")

    def read_columns(path):
        raise AssertionError("the file was read again")

    monkeypatch.setattr(hdf5, "read_columns", read_columns)
    second = D4RLExperienceReplay(path, root=tmp_path / "root")
    assert (first.origin, second.origin) == ("files", "cache")
    assert pairs(second) == pairs(first) and second.report == first.report
    with pytest.raises(AssertionError):
        D4RLExperienceReplay(path, root=tmp_path / "root", download="force")


def test_a_changed_file_and_other_options_are_noticed(tmp_path):
    assert load(tmp_path).origin == "files"
    changed = load(tmp_path, rewards=np.zeros(7, dtype="float32"))
    assert changed.origin == "files" and changed[:]["next", "reward"].sum() == 0
    again = D4RLExperienceReplay(tmp_path / "data.hdf5", root=tmp_path / "root", terminate_on_end=True)
    assert again.origin == "files"
    both = [
        D4RLExperienceReplay(tmp_path / "data.hdf5", root=tmp_path / "root", terminate_on_end=x) for x in (None, True)
    ]
    assert [dataset.origin for dataset in both] == ["cache", "cache"]
    assert [ends(dataset, "terminated") for dataset in both] == [[4], [3, 4]]


# ---------------------------------------------------------------------------------------------------- names
def test_a_dataset_is_found_by_its_name_under_both_names_of_its_file(tmp_path):
    for name in ("hopper_medium-v2.hdf5", "hopper-medium-v2.hdf5"):
        root = tmp_path / name
        root.mkdir()
        write(root / name)
        assert len(D4RLExperienceReplay("hopper-medium-v2", root=root)) == 7


def test_the_folder_of_d4rl_itself_is_looked_into(tmp_path, monkeypatch):
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "own"))
    (tmp_path / "own").mkdir()
    write(tmp_path / "own" / "hopper_medium-v2.hdf5")
    assert len(D4RLExperienceReplay("hopper-medium-v2", root=tmp_path / "root")) == 7


@pytest.fixture
def no_local_files(tmp_path, monkeypatch):
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "nowhere"))


def test_without_a_file_and_a_download_the_error_names_address_and_place(tmp_path, no_local_files):
    with pytest.raises(DatasetError, match=r"gym_mujoco_v2/hopper_medium-v2.hdf5 there") as caught:
        D4RLExperienceReplay("hopper-medium-v2", root=tmp_path, download=False)
    assert str(tmp_path / "hopper_medium-v2.hdf5") in str(caught.value)


def test_a_failed_download_names_address_and_place_and_leaves_nothing(tmp_path, monkeypatch, no_local_files):
    def urlopen(url, timeout):
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    with pytest.raises(DatasetError, match=r"http://.*hopper_medium-v2.hdf5 cannot be downloaded.*no route") as caught:
        D4RLExperienceReplay("hopper-medium-v2", root=tmp_path / "root")
    assert str(tmp_path / "root" / "hopper_medium-v2.hdf5") in str(caught.value)
    assert not list((tmp_path / "root").iterdir())


class Answer(io.BytesIO):
    def __init__(self, data: bytes, promised: int) -> None:
        super().__init__(data)
        self.headers = {"Content-Length": str(promised)}


def test_a_download_is_put_in_place_only_when_it_is_complete(tmp_path, monkeypatch, no_local_files):
    data, lost = write(tmp_path / "data.hdf5").read_bytes(), [10, 0]
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: Answer(data[lost[0] :], len(data)))
    root = tmp_path / "root"
    with pytest.raises(DatasetError, match="the connection ended"):
        D4RLExperienceReplay("hopper-medium-v2", root=root)
    assert not list(root.iterdir())
    lost.pop(0)
    assert len(D4RLExperienceReplay("hopper-medium-v2", root=root)) == 7
    assert (root / "hopper_medium-v2.hdf5").read_bytes() == data


def test_an_unknown_name_gets_a_close_one(tmp_path, no_local_files):
    with pytest.raises(DatasetError, match="did you mean 'hopper-medium-v2'"):
        D4RLExperienceReplay("hopper-mediun-v2", root=tmp_path)


def test_scores_are_relative_to_a_random_policy_and_an_expert(tmp_path):
    (tmp_path / "hopper_medium-v2.hdf5").write_bytes(write(tmp_path / "data.hdf5").read_bytes())
    dataset = D4RLExperienceReplay("hopper-medium-v2", root=tmp_path)
    assert dataset.normalized_score(-20.272305) == 0 and dataset.normalized_score(3234.3) == 1
    assert dataset.normalized_score(torch.tensor([1607.013847])).item() == pytest.approx(0.5, abs=1e-6)
    with pytest.raises(DatasetError, match="no reference scores"):
        load(tmp_path).normalized_score(1.0)


def test_the_table_of_an_installed_d4rl_is_read_without_importing_it(tmp_path, monkeypatch, no_local_files):
    package = tmp_path / "site" / "d4rl"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('an import that fails')")
    (package / "infos.py").write_text(
        "DATASET_URLS = {'maze2d-open-v0': 'http://host/maze2d-open-sparse.hdf5'}\n"
        "REF_MIN_SCORE = {'maze2d-open-v0': 0.0}\nREF_MAX_SCORE = {'maze2d-open-v0': 20.0}\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "site")
    write(tmp_path / "maze2d-open-sparse.hdf5")
    assert D4RLExperienceReplay("maze2d-open-v0", root=tmp_path).normalized_score(5.0) == 0.25


def test_data_may_come_from_an_environment(tmp_path, monkeypatch):
    closed = []
    env = types.SimpleNamespace(get_dataset=columns, close=lambda: closed.append(True))
    monkeypatch.setitem(sys.modules, "d4rl", types.ModuleType("d4rl"))
    monkeypatch.setitem(sys.modules, "gym", types.SimpleNamespace(make=lambda name: env))
    dataset = D4RLExperienceReplay("hopper-medium-v2", root=tmp_path, from_env=True)
    assert len(dataset) == 7 and closed == [True]
    with pytest.raises(DatasetError, match="choose one"):
        D4RLExperienceReplay("hopper-medium-v2", root=tmp_path, from_env=True, direct_download=True)


def test_absent_libraries_are_answered_with_the_command(tmp_path, monkeypatch):
    path = write(tmp_path / "data.hdf5")
    monkeypatch.setitem(sys.modules, "d4rl", None)
    with pytest.raises(PluginNotInstalledError, match="pip install --no-deps d4rl"):
        D4RLExperienceReplay("hopper-medium-v2", root=tmp_path, from_env=True)
    monkeypatch.delitem(sys.modules, "rl_buffers.datasets.hdf5")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(PluginNotInstalledError, match=r"pip install 'rl-buffers\[d4rl\]'"):
        D4RLExperienceReplay(path, root=tmp_path / "root")
