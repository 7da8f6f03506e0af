"""VideoRecorder and PixelRenderTransform: which frames are kept, files, loggers, grids."""

import imageio.v2 as imageio
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl_core import ArrayEnv, Bounded, Compose, Composite, Logger, RowProgram, TransformedEnv, check_env_specs
from rl_core.errors import EnvError, KeyMissingError
from rl_core.testing import CountingEnv, TransformKit
from rl_envs import GymEnv, PixelRenderTransform, StepCounter, ToTensorImage, VideoRecorder


class Screen(ArrayEnv):
    """Its state is the number of steps; it shows and renders a frame [4, 6, 3] of that brightness."""

    def __init__(self, batch_size=(), length=5):
        super().__init__(batch_size=batch_size)
        batch = self.batch_size
        self.observation_spec = Composite(
            pixels=Bounded(0, 255, shape=(*batch, 4, 6, 3), dtype=torch.uint8), shape=batch
        )
        self.action_spec = Bounded(-1.0, 1.0, shape=(*batch, 1))
        self.length, self.count = length, np.zeros((*batch, 1), dtype=np.int64)
        self.renders = 0

    def render(self, *given, scale=1):
        self.renders += 1
        frame = np.zeros((*self.batch_size, 4, 6, 3), dtype=np.uint8)
        frame[...] = (scale * self.count)[..., None, None]
        return frame

    def row_program(self, columns):
        def step(t):
            self.count += 1
            columns["pixels"][t + 1] = self.count[..., None, None]
            columns["reward"][t] = 0.0
            columns["terminated"][t + 1] = self.count >= self.length

        def reset(t, mask):
            rows = ... if mask is None else mask
            self.count[rows] = 0
            columns["pixels"][t][rows] = 0

        return RowProgram(step, reset)

    def _set_seed(self, seed):
        pass


class Kept(Logger):
    """Keeps what it is given."""

    def __init__(self):
        super().__init__("kept", "nowhere")
        self.videos = []

    def log_scalar(self, name, value, step):
        pass

    def log_hparams(self, cfg):
        pass

    def log_video(self, name, video, step, *, fps=None):
        self.videos.append((name, video, step, fps))


class TestVideoRecorder(TransformKit):
    statistics = ()

    def make_env(self):
        return Screen([3])

    def make_single_env(self):
        return Screen()

    def make_transform(self):
        return VideoRecorder(Kept(), "run", out_keys=["copy"])


class TestPixelRender(TransformKit):
    statistics = ()

    def make_env(self):
        return Screen([3])

    def make_single_env(self):
        return Screen()

    def make_transform(self):
        return PixelRenderTransform(["frame"], scale=2)


def levels(video):
    """The brightness of each frame."""
    return video[..., 0, 0, 0].tolist()


# -------------------------------------------------------------------- recording
@pytest.mark.parametrize("on_columns", [True, False])
def test_every_frame_is_shown_from_the_reset_on(on_columns):
    recorder = VideoRecorder(Kept(), "run", skip=1)
    env = TransformedEnv(Screen(), Compose(recorder) if on_columns else Compose(lambda td: td, recorder))
    env.rollout(4)
    assert levels(recorder.video) == [0, 1, 2, 3, 4] and recorder.video.shape == (5, 3, 4, 6)


def test_a_single_environment_shows_every_second_frame():
    recorder = VideoRecorder(Kept(), "run")
    TransformedEnv(Screen(), recorder).rollout(5)
    assert levels(recorder.video) == [0, 2, 4]


def test_a_batch_is_shown_as_a_grid_or_as_videos():
    grid, apart = VideoRecorder(Kept(), "run"), VideoRecorder(Kept(), "run", make_grid=False)
    TransformedEnv(Screen([3]), grid).rollout(2)
    TransformedEnv(Screen([3]), apart).rollout(2)
    assert grid.video.shape == (3, 3, 8, 12) and apart.video.shape == (3, 3, 3, 4, 6)
    last = grid.video[-1, 0]
    assert last[0, 0] == last[0, 6] == last[4, 0] == 2 and last[4, 6] == 0, "three pictures and a black place"
    assert levels(apart.video) == [[0, 1, 2]] * 3


def test_floats_channels_first_and_crops():
    recorder = VideoRecorder(Kept(), "run", center_crop=2, skip=1)
    data = TensorDict(pixels=torch.zeros(1, 3, 4, 6), batch_size=[1])
    data["pixels"][:, :, 1:3, 2:4] = 0.5
    recorder(data)
    assert recorder.video.shape == (1, 3, 2, 2) and recorder.video.unique().tolist() == [128]
    env = TransformedEnv(Screen(), Compose(ToTensorImage(), VideoRecorder(Kept(), "run", skip=1)))
    env.rollout(3)
    assert levels(env.transform[1].video) == [0, 1, 2, 3]


def test_a_video_has_at_most_so_many_frames():
    recorder = VideoRecorder(Kept(), "run", skip=1, max_frames=3)
    TransformedEnv(Screen(length=99), recorder).rollout(9)
    assert levels(recorder.video) == [0, 1, 2]


def test_the_data_stay_as_they_are():
    env = TransformedEnv(Screen(), VideoRecorder(Kept(), "run"))
    assert torch.equal(env.rollout(3)["pixels"], Screen().rollout(3)["pixels"])
    assert set(env.rollout(3).keys()) == set(Screen().rollout(3).keys())


def test_stored_steps_can_be_recorded():
    recorder = VideoRecorder(Kept(), "run", skip=1)
    recorder(Screen([2]).rollout(3))
    assert recorder.video.shape == (3, 3, 4, 12)


# -------------------------------------------------------------------- writing
def test_a_dump_goes_to_the_logger_and_begins_anew():
    logger = Kept()
    env = TransformedEnv(Screen(), Compose(StepCounter(), VideoRecorder(logger, "run", skip=1, fps=6)))
    env.rollout(2)
    env.transform.dump(suffix="eval", step=700)
    env.transform.dump()
    env.rollout(1)
    env.transform.dump()
    (name, video, step, fps), second = logger.videos
    assert (name, step, fps) == ("run_eval", 700, 6) and levels(video) == [0, 1, 2] and video.dtype == torch.uint8
    assert second[0] == "run" and second[2] == 1 and levels(second[1]) == [0, 1]


@pytest.mark.parametrize("ending", ["mp4", "gif"])
def test_files_can_be_read_back(tmp_path, ending):
    recorder = VideoRecorder(tmp_path / "new", "run", skip=1, fps=5, video_format=ending)
    frames = torch.zeros(6, 33, 47, 3, dtype=torch.uint8)
    frames[3:] = 255
    recorder(TensorDict(pixels=frames, batch_size=[6]))
    path = recorder.dump(step=10)
    assert path == tmp_path / "new" / f"run_10.{ending}"
    pictures = list(imageio.mimread(path))
    assert len(pictures) == (6 if ending == "mp4" else len(pictures)) and pictures[0].shape[:2] in ((33, 47), (34, 48))
    assert pictures[0][5, 5].mean() < 20 and pictures[-1][5, 5].mean() > 235


def test_videos_at_the_end_of_episodes():
    logger = Kept()
    env = TransformedEnv(Screen(length=2), VideoRecorder(logger, "run", skip=1, dump_on_done=True))
    env.rollout(5, break_when_any_done=False)
    assert [levels(video) for _, video, _, _ in logger.videos] == [[0, 1, 2]] * 2


def test_an_animation_has_the_frames():
    recorder = VideoRecorder(None, "run", skip=1)
    with pytest.raises(EnvError, match="nothing was recorded"):
        recorder.to_animation()
    recorder(Screen().rollout(3))
    animation = recorder.to_animation()
    animation._draw_was_started = True  # it is not drawn here
    assert animation._save_count == 3
    with pytest.raises(EnvError, match="no logger"):
        recorder.dump()


def test_what_is_no_frame_is_refused():
    with pytest.raises(KeyMissingError, match="VideoRecorder needs 'pixels'"):
        TransformedEnv(CountingEnv(), VideoRecorder(None, "run")).reset()
    with pytest.raises(EnvError, match="ahead of transforms that stack"):
        VideoRecorder(None, "run", skip=1)(TensorDict(pixels=torch.zeros(1, 12, 4, 4), batch_size=[1]))
    for options in ({"skip": 0}, {"in_keys": ["a", "b"]}, {"video_format": "avi"}):
        with pytest.raises(ValueError):
            VideoRecorder(None, "run", **options)


# -------------------------------------------------------------------- rendering
@pytest.mark.parametrize("batch", [(), (2,)])
def test_the_frame_of_every_time_is_rendered(batch):
    env = TransformedEnv(Screen(batch, length=3), PixelRenderTransform(["frame"]))
    check_env_specs(env)
    data = env.rollout(5, break_when_any_done=False)
    assert torch.equal(data["frame"], data["pixels"]) and torch.equal(data["next", "frame"], data["next", "pixels"])


def test_rendering_is_switched_off_and_on():
    env = TransformedEnv(Screen(), PixelRenderTransform(["frame"]))
    env.rollout(2)
    env.transform.switch("off")
    before = env.base.renders
    assert "frame" not in env.observation_spec and env.rollout(2).get("frame", None) is None
    assert env.base.renders == before
    env.transform.switch()
    assert env.transform.enabled and env.rollout(2).get("frame", None) is not None and "frame" in env.observation_spec
    with pytest.raises(ValueError, match="'on', 'off'"):
        env.transform.switch("maybe")


def test_frames_pass_a_function_and_may_be_no_tensors():
    env = TransformedEnv(Screen(), PixelRenderTransform(["frame"], preproc=lambda frame: frame[..., 0] / 255))
    assert env.rollout(2)["frame"].shape == (2, 4, 6) and env.observation_spec["frame"].dtype == torch.float64
    objects = TransformedEnv(Screen(), PixelRenderTransform(["frame"], as_non_tensor=True))
    check_env_specs(objects)
    assert objects.reset()["frame"].shape == (4, 6, 3)
    given = TransformedEnv(Screen(), PixelRenderTransform(["frame"], pass_tensordict=True))
    assert given.rollout(2)["frame"].shape == (2, 4, 6, 3)


def test_what_cannot_be_rendered_says_why():
    with pytest.raises(EnvError, match="has no method 'show'"):
        TransformedEnv(Screen(), PixelRenderTransform(["frame"], render_method="show")).reset()
    with pytest.raises(EnvError, match="render_mode"):
        TransformedEnv(Screen(), PixelRenderTransform(["frame"], preproc=lambda frame: None)).reset()
    with pytest.raises(EnvError, match="already has 'pixels'"):
        assert TransformedEnv(Screen(), PixelRenderTransform()).observation_spec
    with pytest.raises(EnvError, match="one frame for each"):
        TransformedEnv(Screen([2]), PixelRenderTransform(["frame"], preproc=lambda frame: frame[0])).reset()
    with pytest.raises(ValueError, match="one entry"):
        PixelRenderTransform(["a", "b"])


@pytest.mark.parametrize("count", [None, 2])
def test_gymnasium_s_frames_leave_the_seed_alone(count):
    options = {"render_mode": "rgb_array"} if count is None else {"render_mode": "rgb_array", "num_envs": count}
    env = TransformedEnv(
        GymEnv("CartPole-v1", **options), Compose(PixelRenderTransform(), VideoRecorder(Kept(), "run"))
    )
    plain = GymEnv("CartPole-v1", **options)
    env.set_seed(3), plain.set_seed(3)
    shape = env.observation_spec["pixels"].shape
    torch.manual_seed(0)
    data = env.rollout(3, break_when_any_done=False)
    torch.manual_seed(0)
    assert torch.equal(data["observation"], plain.rollout(3, break_when_any_done=False)["observation"])
    assert shape == (*env.batch_size, 400, 600, 3) and data["pixels"].float().std() > 0
    assert len(env.transform[1].video) == (4 if count else 2)
    env.close(), plain.close()
