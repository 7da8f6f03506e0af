"""rl_trainers.loggers: CSV, TensorBoard and the factory."""

import dataclasses
import json
import sys

import numpy as np
import pytest
import torch

from rl_core.errors import PluginNotInstalledError
from rl_trainers import CSVLogger, TensorboardLogger, generate_exp_name, read_metrics


@dataclasses.dataclass(frozen=True)
class Config:
    lr: float = 0.1
    hidden: tuple = (8, 8)
    device: torch.device = torch.device("cpu")


def checkerboard(*lead):
    video = torch.zeros(*lead, 3, 16, 24, dtype=torch.uint8)
    video[..., :8, :12] = 255
    return video


def test_csv_logger_writes_one_wide_file(tmp_path):
    with CSVLogger("run", tmp_path) as logger:
        logger.log_scalar("return", torch.tensor([1.5]), step=100)
        logger.log_metrics({"loss": {"actor": 2}}, step=100)
    assert read_metrics(tmp_path / "run" / "metrics.csv") == {"step": [100], "return": [1.5], "loss/actor": [2.0]}


def test_csv_logger_writes_a_dataclass_as_json(tmp_path):
    CSVLogger("run", tmp_path).log_hparams(Config())
    assert json.loads((tmp_path / "run" / "hparams.json").read_text()) == {
        "lr": 0.1,
        "hidden": [8, 8],
        "device": "cpu",
    }


def test_csv_logger_writes_videos_side_by_side(tmp_path):
    logger = CSVLogger("run", tmp_path, video_format="npy")
    logger.log_video("eval/video", checkerboard(2, 5), step=7)
    frames = np.load(tmp_path / "run" / "videos" / "eval_video_7.npy")
    assert frames.shape == (5, 16, 48, 3)
    assert frames[0, 0, 0, 0] == 255 and frames[0, 0, 24, 0] == 255 and frames[0, 0, 12, 0] == 0


def test_csv_logger_writes_texts(tmp_path):
    logger = CSVLogger("run", tmp_path)
    logger.log_str("note", "hello\nyou", step=1)
    assert json.loads((tmp_path / "run" / "texts" / "note.jsonl").read_text()) == {"step": 1, "text": "hello\nyou"}


def test_csv_logger_refuses_an_unknown_video_format(tmp_path):
    with pytest.raises(ValueError, match="mp4, gif, npy, got 'avi'"):
        CSVLogger("run", tmp_path, video_format="avi")


def test_tensorboard_logger_writes_what_tensorboard_reads_back(tmp_path):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with TensorboardLogger("run", tmp_path) as logger:
        logger.log_scalar("return", 2.5, step=300)
        logger.log_video("video", checkerboard(5), step=300)
        logger.log_hparams(Config())
        logger.log_histogram("weights", torch.randn(10), step=300)
    events = event_accumulator.EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("return")] == [(300, 2.5)]
    assert events.Images("video")[0].encoded_image_string[:3] == b"GIF"
    assert events.Histograms("weights")[0].step == 300


def test_tensorboard_absent_names_the_pip_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(PluginNotInstalledError, match=r"pip install 'rl-trainers\[tensorboard\]'"):
        TensorboardLogger("run", tmp_path)


def test_experiment_names_differ():
    first, second = generate_exp_name("ppo", "pendulum"), generate_exp_name("ppo", "pendulum")
    assert first != second and first.startswith("ppo_pendulum_")
