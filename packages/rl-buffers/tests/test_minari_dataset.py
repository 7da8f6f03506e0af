"""Minari datasets: made here from a real environment and by hand, nested spaces, missing parts, damaged files."""

from __future__ import annotations

import json
import shutil
import sys
import types
from pathlib import Path

import gymnasium
import h5py
import minari
import numpy as np
import pytest
import torch
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer

from rl_buffers import DatasetError, MinariExperienceReplay, SliceSampler
from rl_buffers.datasets.minari_episodes import EpisodeReader
from rl_buffers.datasets.row_files import RowWriter, read_rows
from rl_core.errors import PluginNotInstalledError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:minari")


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def create(name: str, buffers: list[EpisodeBuffer], **kwargs) -> None:
    meta = {"algorithm_name": "x", "author": "x", "author_email": "x@x", "code_permalink": "x", "description": "x"}
    minari.create_dataset_from_buffers(name, buffers, **meta, **kwargs)


def play(env, steps: int, seed: int, cut: int) -> list[EpisodeBuffer]:
    """Episodes of random actions, the last one without a flag; `cut` ends an episode by a time limit."""
    rng, episodes = np.random.default_rng(seed), []
    while steps > 0:
        observation, _ = env.reset(seed=seed + steps)
        parts = {"observations": [observation], "actions": [], "rewards": [], "terminations": [], "truncations": []}
        done = False
        while not done and steps > 0:
            action = rng.integers(env.action_space.n)
            observation, reward, terminated, _, _ = env.step(action)
            truncated = len(parts["actions"]) + 1 == cut and not terminated
            values = {"observations": observation, "actions": action, "rewards": reward}
            for part, value in {**values, "terminations": terminated, "truncations": truncated}.items():
                parts[part].append(value)
            done, steps = terminated or truncated, steps - 1
        episodes.append(EpisodeBuffer(id=len(episodes), **parts))
    return episodes


@pytest.fixture
def cartpole(home) -> list[EpisodeBuffer]:
    env = gymnasium.make("CartPole-v1")
    episodes = play(env, steps=103, seed=0, cut=20)
    create("cartpole/random-v0", episodes, env=env, eval_env=env)
    return episodes


def test_episodes_of_a_real_environment_become_its_transitions(cartpole, tmp_path):
    dataset = MinariExperienceReplay("cartpole/random-v0", batch_size=8, root=tmp_path / "root", download=False)
    rows = dataset[:]
    assert len(dataset) == 103 and rows["observation"].dtype == torch.float32 and rows["action"].dtype == torch.int64
    start = 0
    for number, episode in enumerate(cartpole):
        T = len(episode.actions)
        part = rows[start : start + T]
        seen = torch.tensor(np.array(episode.observations))
        assert torch.equal(part["observation"], seen[:-1]) and torch.equal(part["next", "observation"], seen[1:])
        assert part["action"].tolist() == episode.actions and part["next", "reward"].flatten().tolist() == [1.0] * T
        assert part["next", "terminated"].flatten().tolist() == episode.terminations
        assert part["next", "done"].flatten().tolist() == [False] * (T - 1) + [True]
        assert part["collector", "traj_ids"].tolist() == [number] * T
        start += T
    report = dataset.report
    assert report.episodes == len(cartpole) == report.terminated + report.truncated + report.cut
    assert report.terminated == sum(episode.terminations[-1] for episode in cartpole) > 0
    assert report.truncated + report.cut == sum(not episode.terminations[-1] for episode in cartpole) > 0
    assert dataset.metadata["env_id"] == "CartPole-v1" and "infos" in report.left_out


def test_slices_and_padded_episodes_come_out_whole(cartpole, tmp_path):
    sampler = SliceSampler(slice_len=4)
    options = {"root": tmp_path / "root", "load_from_local_minari": True}
    dataset = MinariExperienceReplay("cartpole/random-v0", batch_size=16, sampler=sampler, **options)
    batch = dataset.sample().view(4, 4)
    assert torch.equal(batch["observation"][:, 1:], batch["next", "observation"][:, :-1])
    padded = MinariExperienceReplay("cartpole/random-v0", split_trajs=True, **options)
    assert padded[:]["collector", "mask"].sum(-1).tolist() == [len(episode.actions) for episode in cartpole]


def test_the_files_are_read_once_unless_they_change(cartpole, home, tmp_path):
    options = {"root": tmp_path / "root", "download": False}
    assert MinariExperienceReplay("cartpole/random-v0", **options).origin == "files"
    assert MinariExperienceReplay("cartpole/random-v0", **options).origin == "cache"
    env = gymnasium.make("CartPole-v1")
    data = minari.load_dataset("cartpole/random-v0")
    data.update_dataset_from_buffer([EpisodeBuffer(**{**vars(play(env, 5, 1, 20)[0]), "id": data.total_episodes})])
    changed = MinariExperienceReplay("cartpole/random-v0", **options)
    assert changed.origin == "files" and len(changed) == 108


# ---------------------------------------------------------------------------------------------------- by hand
def episode(number: int, seen, terminated=False, truncated=False, T=None, **parts):
    """An episode as Minari's readers give it; actions and rewards count."""
    T = len(seen) - 1 if T is None else T
    ends = np.zeros((2, T), dtype=bool)
    ends[:, -1:] = [[terminated], [truncated]]
    given = {
        "observations": np.array(seen, "float64")[:, None],
        "actions": np.arange(T),
        "rewards": np.arange(T),
    }
    ended = {"terminations": ends[0], "truncations": ends[1]}
    return types.SimpleNamespace(id=number, infos={}, **{**given, **ended, **parts})


def convert(tmp_path, episodes, observation_space=None, action_space=None, missing_last="drop"):
    box = spaces.Box(-100, 100, (1,), np.float64)
    reader = EpisodeReader(observation_space or box, action_space or spaces.Discrete(9), missing_last, torch.float32)
    with RowWriter(tmp_path / "rows") as writer:
        reader.write(episodes, writer)
        writer.commit({})
    return read_rows(tmp_path / "rows")[0], reader


def three(T_only=False) -> list:
    """Four steps to a time limit, one to a termination, two unfinished; with or without each last observation."""
    seen = [[0, 1, 2, 3, 4], [10, 11], [20, 21, 22]]
    ends = [{"truncated": True}, {"terminated": True}, {}]
    return [
        episode(i, row[:-1] if T_only else row, T=len(row) - 1, **end)
        for i, (row, end) in enumerate(zip(seen, ends, strict=True))
    ]


def pairs(leaves) -> list[tuple[float, float]]:
    now, after = leaves["observation",].flatten().tolist(), leaves["next", "observation"].flatten().tolist()
    return list(zip(now, after, strict=True))


def test_with_last_observations_seven_transitions(tmp_path):
    leaves, reader = convert(tmp_path, three())
    assert pairs(leaves) == [(0, 1), (1, 2), (2, 3), (3, 4), (10, 11), (20, 21), (21, 22)]
    assert leaves["next", "truncated"].flatten().nonzero().flatten().tolist() == [3, 6]
    assert leaves["next", "terminated"].flatten().nonzero().flatten().tolist() == [4]
    assert (reader.tally.terminated, reader.tally.truncated, reader.tally.cut) == (1, 1, 1)


def test_without_last_observations_rows_are_dropped_or_repeat(tmp_path):
    leaves, reader = convert(tmp_path, three(T_only=True))
    assert pairs(leaves) == [(0, 1), (1, 2), (2, 3), (10, 10), (20, 21)] and sum(reader.tally.dropped.values()) == 2
    assert leaves["collector", "traj_ids"].tolist() == [0, 0, 0, 1, 2]
    leaves, reader = convert(tmp_path, three(T_only=True), missing_last="repeat")
    assert pairs(leaves)[3:] == [(3, 3), (10, 10), (20, 21), (21, 21)] and reader.tally.repeated == 3


def test_an_episode_without_a_step_is_reported(tmp_path):
    _, reader = convert(tmp_path, [episode(0, [5.0]), *three()])
    assert reader.tally.dropped == {"an episode without a step": 1} and reader.tally.episodes == 3


def test_nested_spaces_keep_their_paths_and_choices_count_from_zero(tmp_path):
    space = spaces.Dict(
        {
            "a": spaces.Box(0, 1, (2,), np.float32),
            "b": spaces.Dict({"c": spaces.Discrete(4, start=2), "t": spaces.Text(5)}),
            "d": spaces.Tuple([spaces.Box(0, 9, (), np.int64), spaces.MultiBinary(2)]),
        }
    )
    seen = {
        "a": np.arange(6, dtype="float32").reshape(3, 2),
        "b": {"c": np.array([2, 3, 5]), "t": ["x", "y", "z"]},
        "d": (np.array([7, 8, 9]), np.ones((3, 2), dtype=np.int8)),
    }
    actions = {"m": np.array([4, 5])}
    action_space = spaces.Dict({"m": spaces.Discrete(2, start=4)})
    item = episode(0, [0, 0, 0], terminated=True, observations=seen, actions=actions)
    leaves, reader = convert(tmp_path, [item], space, action_space)
    assert leaves["a",].tolist() == [[0, 1], [2, 3]] and leaves["next", "b", "c"].tolist() == [1, 3]
    assert leaves["d", "0"].tolist() == [7, 8] and leaves["next", "d", "1"].dtype == torch.int8
    assert leaves["action", "m"].tolist() == [0, 1] and "Text" in reader.left_out["b.t"]


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (episode(3, [0, 1, 2], T=4), "episode 3 has 4 rewards, and .3. observations"),
        (episode(3, [0, 1, 2], actions=np.zeros(3, int)), r"episode 3 has 2 rewards.*'action': 3"),
        (episode(3, [0, 1, 2], truncations=np.zeros(1, bool)), r"'truncations': 1"),
        (episode(3, [0, 1, 2], observations=np.zeros((3, 5))), r"observations has shape \[3, 5\], its space says"),
    ],
)
def test_parts_of_other_lengths_name_the_episode(tmp_path, item, text):
    with pytest.raises(DatasetError, match=text):
        convert(tmp_path, [item])


def test_a_part_that_is_missing_or_has_a_name_with_a_meaning_is_an_error(tmp_path):
    box = spaces.Box(0, 1, (1,))
    item = episode(0, [0, 1], observations={"a": np.zeros((2, 1))})
    with pytest.raises(DatasetError, match=r"episode 0: observations lacks the part 'b'; it has ..a.."):
        convert(tmp_path, [item], spaces.Dict({"a": box, "b": box}))
    with pytest.raises(DatasetError, match="part named 'reward'"):
        convert(tmp_path, [], spaces.Dict({"reward": box}))


# ---------------------------------------------------------------------------------------------------- faults
def test_a_name_that_is_not_there_gets_close_ones_and_the_command(cartpole, tmp_path):
    with pytest.raises(DatasetError, match=r"did you mean 'cartpole/random-v0'.*minari download cartpole/randon-v0"):
        MinariExperienceReplay("cartpole/randon-v0", root=tmp_path, load_from_local_minari=True)


def test_a_failed_download_names_the_place(home, tmp_path, monkeypatch):
    def download_dataset(name, force_download):
        raise ConnectionError("no network")

    monkeypatch.setattr(minari, "download_dataset", download_dataset)
    with pytest.raises(DatasetError, match=r"cannot download 'door/human-v2': ConnectionError: no network") as caught:
        MinariExperienceReplay("door/human-v2", root=tmp_path)
    assert str(home / "door" / "human-v2") in str(caught.value)


def test_a_dataset_is_downloaded_where_it_is_not_there(cartpole, home, tmp_path, monkeypatch):
    shutil.move(home, tmp_path / "remote")
    monkeypatch.setattr(
        minari,
        "download_dataset",
        lambda name, force_download: shutil.copytree(tmp_path / "remote", home, dirs_exist_ok=True),
    )
    assert len(MinariExperienceReplay("cartpole/random-v0", root=tmp_path / "root")) == 103


@pytest.mark.parametrize("damage", ["truncated", "column", "metadata", "empty"])
def test_damaged_files_are_errors_and_leave_nothing(cartpole, home, tmp_path, damage):
    folder = home / "cartpole" / "random-v0" / "data"
    if damage == "truncated":
        with open(folder / "main_data.hdf5", "r+b") as file:
            file.truncate(3000)
    elif damage == "column":
        with h5py.File(folder / "main_data.hdf5", "a") as file:
            del file["episode_1"]["rewards"]
    elif damage == "metadata":
        note = json.loads((folder / "metadata.json").read_text())
        (folder / "metadata.json").write_text(json.dumps(note)[:50])
    else:
        for path in folder.iterdir():
            path.unlink()
    with pytest.raises(DatasetError, match="fetch") as caught:
        MinariExperienceReplay("cartpole/random-v0", root=tmp_path / "root", download=False)
    assert str(folder) in str(caught.value)
    assert not [path for path in (tmp_path / "root").rglob("*") if path.is_file()]


def test_an_absent_minari_is_answered_with_the_command(monkeypatch):
    for name in ("minari", "minari_library", "minari_episodes"):
        monkeypatch.delitem(sys.modules, f"rl_buffers.datasets.{name}")
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(PluginNotInstalledError, match=r"pip install 'rl-buffers\[minari\]'"):
        __import__("rl_buffers.datasets.minari")
