"""rl_trainers.run_folder: a run's folder is checked before anything is trained."""

import dataclasses
import json

import pytest

from rl_core.errors import CheckpointError, RLError
from rl_trainers.run_folder import default_name, open_run_folder, read_config, write_config


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    frames: int = 10
    hidden: tuple = (64,)


def test_a_folder_is_made_with_its_parents(tmp_path):
    assert open_run_folder(tmp_path / "runs" / "a").is_dir()
    assert list((tmp_path / "runs" / "a").iterdir()) == []


def test_a_folder_that_cannot_be_written_names_the_cure(tmp_path):
    (tmp_path / "file").touch()  # a folder cannot be made below a file, not even by root
    with pytest.raises(RLError, match=r"run folder .*file/a cannot be written \(Not a directory\).*--run-dir"):
        open_run_folder(tmp_path / "file" / "a")


def test_another_run_is_not_written_over(tmp_path):
    write_config(tmp_path, Config())
    with pytest.raises(RLError, match=r"already holds a run; go on with it by --resume .*, or choose another --name"):
        open_run_folder(tmp_path)
    assert open_run_folder(tmp_path, resume=True) == tmp_path


def test_nothing_to_resume_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match=r"no run to resume: there is no config\.json"):
        open_run_folder(tmp_path, resume=True)
    with pytest.raises(CheckpointError, match="no run to resume"):
        read_config(tmp_path, Config)


def test_a_configuration_reads_back(tmp_path):
    write_config(tmp_path, Config(frames=3, hidden=(8, 8)))
    assert Config(**read_config(tmp_path, Config)) == Config(frames=3, hidden=(8, 8))


def test_unknown_fields_of_a_configuration_warn(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"frames": 3, "colour": "red"}))
    with pytest.warns(UserWarning, match="unknown fields colour"):
        assert read_config(tmp_path, Config) == {"frames": 3}


def test_a_damaged_configuration_is_an_error(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="damaged"):
        read_config(tmp_path, Config)


def test_names_are_safe_for_file_systems():
    assert default_name("ppo", "my-dist/gym:ALE/Pong-v5", 1).startswith("ppo-ALE-Pong-v5-s1-")
