"""ToTensorImage, GrayScale, Resize, CenterCrop and Crop: numbers by hand, rows against TensorDicts."""

import pytest
import torch
from tensordict import TensorDict

from rl_core import Bounded, Compose, Composite, RowProgram, TransformedEnv, Unbounded, check_env_specs
from rl_core.errors import EnvError, KeyMissingError
from rl_core.testing import ArrayCountingEnv, CountingEnv, TransformKit
from rl_envs import CatFrames, CenterCrop, Crop, GrayScale, Resize, ToTensorImage


class Frames(ArrayCountingEnv):
    """Counts, and shows the count n as a frame: pixel (y, x), colour c holds 40 n + 16 y + 3 x + c."""

    def __init__(self, length=5, batch_size=(), size=(6, 4)):
        super().__init__(length, batch_size)
        y, x, c = torch.meshgrid(torch.arange(size[0]), torch.arange(size[1]), torch.arange(3), indexing="ij")
        self.pattern = (16 * y + 3 * x + c).numpy()
        spec = self.observation_spec.clone()
        spec.set("pixels", Bounded(0, 255, shape=(*self.batch_size, *size, 3), dtype=torch.uint8))
        self.observation_spec = spec

    def row_program(self, columns):
        counting, pixels = super().row_program(columns), columns["pixels"]

        def frames():
            return (40 * self.count[..., None, None].astype(int) + self.pattern) % 256

        def step(t):
            counting.step(t)
            pixels[t + 1] = frames()

        def reset(t, mask):
            counting.reset(t, mask)
            rows = ... if mask is None else mask
            pixels[t][rows] = frames()[rows]

        return RowProgram(step, reset)


class FramesKit(TransformKit):
    steps = 10

    def make_env(self):
        return Frames(length=[3, 5, 7], batch_size=[3])

    def make_single_env(self):
        return Frames(length=4)


class TestToTensorImage(FramesKit):
    offline = True

    def make_transform(self):
        return ToTensorImage()


class TestToTensorImageInBytes(FramesKit):
    offline = True

    def make_transform(self):
        return ToTensorImage(from_int=False, unsqueeze=True, out_keys=["image"])


class TestGrayScaleOfBytes(FramesKit):
    offline = True

    def make_transform(self):
        return GrayScale(channels_last=True)


class TestGrayScaleOfFloats(FramesKit):
    needs = ()  # each part names its own

    def make_transform(self):
        return Compose(ToTensorImage(), GrayScale())


class TestResizeOfBytes(FramesKit):
    offline = True

    def make_transform(self):
        return Resize(3, 2, channels_last=True)


class TestResizeToTheSameSize(FramesKit):
    def make_transform(self):
        return Resize(4, 6, interpolation="nearest", channels_last=True)


class TestCrop(FramesKit):
    offline = True

    def make_transform(self):
        return Crop(2, 3, top=1, left=1, out_keys=["part"])


class TestCenterCrop(FramesKit):
    offline = True

    def make_transform(self):
        return CenterCrop(3, 2)


# -------------------------------------------------------------------- ToTensorImage
def test_channels_come_first_and_bytes_become_fractions():
    pixels = torch.arange(2 * 3 * 3, dtype=torch.uint8).reshape(2, 3, 3)
    image = ToTensorImage()(TensorDict(pixels=pixels))["pixels"]
    assert image.shape == (3, 2, 3) and image.dtype == torch.float32
    assert image[1, 0, 2].item() == pytest.approx(pixels[0, 2, 1].item() / 255)


@pytest.mark.parametrize(
    ("options", "dtype", "largest"),
    [
        ({}, torch.float32, 1),
        ({"from_int": False}, torch.uint8, 255),
        ({"from_int": False, "dtype": torch.float32}, torch.float32, 255),
        ({"dtype": torch.float64}, torch.float64, 1),
    ],
)
def test_the_numbers_that_are_asked_for(options, dtype, largest):
    env = TransformedEnv(Frames(batch_size=[2]), ToTensorImage(**options))
    pixels = env.observation_spec["pixels"]
    assert pixels.dtype == dtype and pixels.high.max() == largest and pixels.shape == (2, 3, 6, 4)
    full = TensorDict(pixels=torch.full((6, 4, 3), 255, dtype=torch.uint8))
    assert ToTensorImage(**options)(full)["pixels"].max() == largest


def test_floats_are_moved_and_not_divided():
    image = torch.full((2, 2, 3), 200.0)
    assert ToTensorImage()(TensorDict(pixels=image))["pixels"].max() == 200
    assert ToTensorImage(from_int=True)(TensorDict(pixels=image))["pixels"].max().item() == pytest.approx(200 / 255)
    assert image.max() == 200, "the data given were changed"


def test_frames_with_channels_first_may_stay():
    image = torch.zeros(3, 8, 8, dtype=torch.uint8)
    assert ToTensorImage(shape_tolerant=True)(TensorDict(pixels=image))["pixels"].shape == (3, 8, 8)
    assert ToTensorImage()(TensorDict(pixels=image))["pixels"].shape == (8, 3, 8)


def test_bytes_cannot_hold_fractions():
    with pytest.raises(ValueError, match="from_int=False"):
        ToTensorImage(dtype=torch.uint8)


# -------------------------------------------------------------------- GrayScale
def test_brightness_by_hand():
    colours = torch.tensor([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [10, 20, 30]]).T.reshape(3, 1, 5)
    fractions = GrayScale()._apply_transform(colours / 255)
    expected = torch.tensor([0.2989, 0.587, 0.114, 0.9999, (2.989 + 11.74 + 3.42) / 255])
    assert torch.allclose(fractions.flatten(), expected, atol=1e-6)
    # (77 r + 150 g + 29 b + 128) // 256
    assert GrayScale()._apply_transform(colours.to(torch.uint8)).flatten().tolist() == [77, 149, 29, 255, 18]


def test_bytes_are_at_most_one_from_the_exact_brightness():
    torch.manual_seed(0)
    image = torch.randint(0, 256, (5, 3, 70, 70), dtype=torch.uint8)  # larger than a chunk
    exact = 0.2989 * image[:, 0].double() + 0.587 * image[:, 1].double() + 0.114 * image[:, 2].double()
    found = GrayScale()._apply_transform(image)
    assert found.shape == (5, 1, 70, 70) and (found[:, 0].double() - exact).abs().max() <= 1.0
    last = GrayScale(channels_last=True)._apply_transform(image.movedim(1, -1))
    assert torch.equal(last[..., 0], found[:, 0])


def test_a_frame_without_three_colours_says_what_to_do():
    with pytest.raises(EnvError, match="ToTensorImage ahead"):
        GrayScale()(TensorDict(pixels=torch.zeros(6, 4, 3, dtype=torch.uint8)))


# -------------------------------------------------------------------- Resize
def triangle(size, out):
    """Weights ``[out, size]`` of antialiased linear interpolation: a triangle as wide as the frame shrinks."""
    scale = size / out
    support = max(scale, 1.0)
    weights = torch.zeros(out, size, dtype=torch.float64)
    for i in range(out):
        centre = (i + 0.5) * scale
        for j in range(size):
            weights[i, j] = max(0.0, 1.0 - abs(j + 0.5 - centre) / support)
    return weights / weights.sum(1, keepdim=True)


@pytest.mark.parametrize("size", [(5, 3), (2, 7), (20, 16), (11, 8)])
def test_bilinear_averages_over_a_triangle(size):
    torch.manual_seed(0)
    image = torch.rand(2, 3, 11, 8, dtype=torch.float64)
    height, width = size
    exact = torch.einsum("ih,bchw,jw->bcij", triangle(11, height), image, triangle(8, width))
    found = Resize(width, height)._apply_transform(image)
    assert found.shape == (2, 3, height, width) and torch.allclose(found, exact, atol=1e-10)
    bytes_ = (image * 255).round()
    exact = torch.einsum("ih,bchw,jw->bcij", triangle(11, height), bytes_, triangle(8, width))
    found = Resize(width, height)._apply_transform(bytes_.to(torch.uint8))
    assert found.dtype == torch.uint8 and (found.double() - exact.round()).abs().max() <= 1.0


def test_nearest_takes_single_pixels():
    image = torch.arange(16, dtype=torch.uint8).reshape(1, 4, 4)
    assert Resize(2, interpolation="nearest")._apply_transform(image).flatten().tolist() == [0, 2, 8, 10]
    assert Resize(2, interpolation="nearest-exact")._apply_transform(image).flatten().tolist() == [5, 7, 13, 15]


def test_channels_may_stand_last():
    torch.manual_seed(0)
    image = torch.rand(2, 9, 7, 3)
    found = Resize(4, 5, channels_last=True)._apply_transform(image)
    assert torch.allclose(found, Resize(4, 5)._apply_transform(image.movedim(-1, -3)).movedim(-3, -1), atol=1e-6)


def test_integers_are_rounded_and_cubic_floats_may_overshoot():
    image = torch.tensor([[[0, 1], [1, 1]]], dtype=torch.int16)
    assert Resize(1)._apply_transform(image).flatten().tolist() == [1]
    env = TransformedEnv(Frames(), Compose(ToTensorImage(), Resize(8, interpolation="bicubic")))
    assert isinstance(env.observation_spec["pixels"], Unbounded)
    check_env_specs(env)


def test_an_impossible_size_or_mode_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        Resize(0)
    with pytest.raises(ValueError, match="'bilinear'"):
        Resize(2, interpolation="lanczos")


# -------------------------------------------------------------------- Crop
def test_a_rectangle_is_cut_out():
    image = torch.arange(20).reshape(1, 4, 5)
    assert Crop(2, 3, top=1, left=3)._apply_transform(image).tolist() == [[[8, 9], [13, 14], [18, 19]]]
    assert CenterCrop(3, 2)._apply_transform(image).tolist() == [[[6, 7, 8], [11, 12, 13]]]
    assert CenterCrop(2)._apply_transform(image).tolist() == [[[7, 8], [12, 13]]]  # round(1.5) = 2


def test_a_crop_that_does_not_fit_is_refused_with_the_shapes():
    with pytest.raises(EnvError, match=r"CenterCrop\(w=9, h=9\) does not fit .*\(1, 4, 5\)"):
        CenterCrop(9)._apply_transform(torch.zeros(1, 4, 5))
    with pytest.raises(EnvError, match="leaves the frame"):
        Crop(2, left=4)._apply_transform(torch.zeros(1, 4, 5))


# -------------------------------------------------------------------- together
def test_the_atari_chain_is_the_same_on_columns_and_on_tensordicts():
    def chain():
        return Compose(
            Resize(3, 3, channels_last=True),
            GrayScale(channels_last=True),
            ToTensorImage(from_int=False),
            CatFrames(4, -3),
        )

    env = TransformedEnv(Frames([2, 9], [2]), chain())
    check_env_specs(env)
    assert env.observation_spec["pixels"].shape == (2, 4, 3, 3)
    data = env.rollout(6, break_when_any_done=False)
    twin = TransformedEnv(Frames([2, 9], [2]), chain())
    td = twin.reset()
    for t in range(6):
        stepped, td = twin.step_and_maybe_reset(twin.rand_action(td))
        assert torch.equal(stepped["pixels"], data["pixels"][:, t])
        assert torch.equal(stepped["next", "pixels"], data["next", "pixels"][:, t])


def test_channels_of_images_are_joined():
    def chain():
        return Compose(ToTensorImage(), CatFrames(4, -3))

    env = TransformedEnv(Frames(length=3, batch_size=[2]), chain())
    check_env_specs(env)
    assert env.observation_spec["pixels"].shape == (2, 12, 6, 4)
    data = env.rollout(5, break_when_any_done=False)
    raw = TransformedEnv(Frames(length=3, batch_size=[2]), ToTensorImage()).rollout(5, break_when_any_done=False)
    assert torch.equal(data["pixels"][:, 2, :3], raw["pixels"][:, 0])  # the oldest first: frame 0 stands in for -1
    assert torch.equal(data["pixels"][:, 2, 9:], raw["pixels"][:, 2])
    stored = CatFrames(4, -3)(raw)
    assert torch.equal(stored["pixels"], data["pixels"]) and torch.equal(
        stored["next", "pixels"], data["next", "pixels"]
    )


def test_frames_of_a_group_are_reached_by_a_nested_key():
    key = ("agents", "pixels")
    data = TensorDict({key: torch.full((2, 3, 6, 4, 3), 255, dtype=torch.uint8)}, batch_size=[2])
    found = Compose(ToTensorImage(in_keys=[key]), GrayScale([key]), Resize(2, in_keys=[key]))(data)
    assert found[key].shape == (2, 3, 1, 2, 2) and torch.allclose(found[key], torch.tensor(0.9999))


def test_stored_frames_are_mapped_at_the_root_and_under_next():
    pixels = torch.zeros(5, 6, 4, 3, dtype=torch.uint8)
    data = TensorDict({"pixels": pixels, "next": {"pixels": pixels}}, batch_size=[5])
    mapped = Compose(ToTensorImage(), Resize(2))(data)
    assert mapped["pixels"].shape == mapped["next", "pixels"].shape == (5, 3, 2, 2)


def test_an_environment_without_frames_is_named():
    for env in (CountingEnv(), ArrayCountingEnv()):
        with pytest.raises(KeyMissingError, match="needs 'pixels'"):
            TransformedEnv(env, GrayScale()).rollout(2)


def test_bounds_follow_the_map():
    spec = Composite(pixels=Bounded(0.25, 0.5, shape=(3, 4, 4)))
    gray = GrayScale().transform_observation_spec(spec.clone())["pixels"]
    assert gray.shape == (1, 4, 4) and gray.is_in(GrayScale()._apply_transform(torch.full((3, 4, 4), 0.25)))
    small = Resize(2).transform_observation_spec(spec.clone())["pixels"]
    assert (small.low.min().item(), small.high.max().item()) == (0.25, 0.5) and small.shape == (3, 2, 2)
