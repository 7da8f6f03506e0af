"""rl_trainers.video: pictures to files, and a policy's episode to a video."""

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl_core.errors import EnvError
from rl_trainers import record_video, write_video
from rl_trainers.video import frames_of


class Pictures:
    """Counts to four, then ends; the picture's grey level is the count."""

    def __init__(self, key="pixels"):
        self.key = key

    def _data(self, count, **more):
        return TensorDict({self.key: torch.full((15, 20, 3), 50 * count, dtype=torch.uint8), **more}, [])

    def reset(self):
        self.count = 0
        return self._data(0)

    def step_and_maybe_reset(self, td):
        self.count += 1
        td["next"] = self._data(self.count, done=torch.tensor([self.count == 4]))
        return td, td["next"].exclude("done")


def policy(td):
    td["action"] = torch.zeros(1)
    return td


@pytest.mark.parametrize("ending", [".mp4", ".gif"])
def test_a_written_video_reads_back(tmp_path, ending):
    import imageio.v2 as imageio

    frames = np.zeros((6, 15, 21, 3), dtype=np.uint8)  # odd sides
    frames[3:, :, :, 0] = 255
    path = write_video(tmp_path / f"video{ending}", frames, fps=10)
    assert path.suffix == ending
    read = np.stack([np.asarray(frame)[..., :3] for frame in imageio.mimread(path)])
    assert read[0].mean() < 10 and read[-1, ..., 0].mean() > 200


def test_a_gif_stands_in_where_no_mp4_encoder_works(tmp_path, monkeypatch):
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(tmp_path / "no-such-program"))
    with pytest.warns(UserWarning, match=r"wrote video.gif instead.*pip install imageio-ffmpeg"):
        path = write_video(tmp_path / "video.mp4", np.zeros((3, 16, 16, 3), dtype=np.uint8))
    assert path == tmp_path / "video.gif" and path.read_bytes()[:3] == b"GIF"
    assert not (tmp_path / "video.mp4").exists()


def test_an_unknown_ending_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"\.mp4, \.gif or \.npy, got 'video.avi'"):
        write_video(tmp_path / "video.avi", np.zeros((3, 16, 16, 3), dtype=np.uint8))


def test_grey_videos_become_three_channels():
    assert frames_of(torch.zeros(4, 1, 6, 8, dtype=torch.uint8)).shape == (4, 6, 8, 3)


@pytest.mark.parametrize("bad", [torch.zeros(4, 3, 6, 8), torch.zeros(4, 6, 8, 3, dtype=torch.uint8)])
def test_a_video_of_another_layout_is_refused_with_its_shape(bad):
    with pytest.raises(ValueError, match=r"uint8 \[T, C, H, W\].*got (float32|uint8) \[4, "):
        frames_of(bad)


def test_record_video_shows_the_reset_and_every_step_of_one_episode(tmp_path):
    path = record_video(Pictures(), policy, tmp_path / "episode.npy", max_steps=100)
    assert np.load(path)[:, 0, 0, 0].tolist() == [0, 50, 100, 150, 200]


def test_record_video_stops_at_max_steps(tmp_path):
    assert len(np.load(record_video(Pictures(), policy, tmp_path / "episode.npy", max_steps=2))) == 3


def test_an_environment_without_pictures_names_the_cure(tmp_path):
    with pytest.raises(EnvError, match=r"needs pictures under 'pixels'.*writes 'image'.*from_pixels=True"):
        record_video(Pictures(key="image"), policy, tmp_path / "episode.gif")
