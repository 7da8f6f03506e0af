"""TrajectoryStorage: every row comes back bit for bit as it went in, in half the memory or less."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_buffers import LazyTensorStorage, ReplayBuffer, TensorDictMaxValueWriter, TrajectoryStorage, native
from rl_core.errors import CheckpointError, ReplayBufferError


@pytest.fixture(params=["native", "twin"])
def kernels(request, monkeypatch):
    if request.param == "twin":
        monkeypatch.setenv("RL_BUFFERS_NATIVE", "0")
    native.load.cache_clear()
    yield request.param
    native.load.cache_clear()


class Lane:
    """An environment whose observations are few different numbers (so that rows are alike by chance, too)."""

    def __init__(self, generator: torch.Generator, length: int, frames: int) -> None:
        self.generator, self.length, self.frames = generator, length, frames
        self.reset()

    def draw(self) -> torch.Tensor:
        return torch.randint(0, 2, (2,), generator=self.generator).float()

    def reset(self) -> None:
        self.t, self.seen = 0, self.draw()
        self.stack = self.seen.repeat(self.frames, 1)

    def step(self) -> dict[str, torch.Tensor]:
        row = {"seen": self.seen, "stack": self.stack.clone()}
        self.t += 1
        self.seen = self.draw()
        self.stack = torch.cat([self.stack[1:], self.seen.unsqueeze(0)])
        done = self.t >= self.length
        row |= {"next seen": self.seen, "next stack": self.stack.clone(), "done": torch.tensor([done])}
        if done:
            self.reset()
        return row


def rollout(lanes: list[Lane], steps: int) -> TensorDict:
    """``[lanes, steps]``"""
    rows = [[lane.step() for _ in range(steps)] for lane in lanes]
    data = {name: torch.stack([torch.stack([row[name] for row in lane]) for lane in rows]) for name in rows[0][0]}
    batch = [len(lanes), steps]
    following = {"seen": data["next seen"], "stack": data["next stack"], "done": data["done"]}
    return TensorDict({"seen": data["seen"], "stack": data["stack"], "next": TensorDict(following, batch)}, batch)


def same_rows(one: ReplayBuffer, other: ReplayBuffer) -> None:
    index = torch.arange(len(one))
    assert len(one) == len(other)
    if not len(one):
        return
    left, right = one.storage.get(index), other.storage.get(index)
    for key in right.keys(True, True):
        a, b = left[key], right[key]
        assert a.dtype == b.dtype and a.shape == b.shape
        assert torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)), key


writes = st.lists(
    st.tuples(
        st.sampled_from(["go on", "go on", "jump", "set", "reload", "empty"]), st.integers(1, 9), st.integers(0, 99)
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=120, deadline=None)
@given(
    capacity=st.integers(1, 12), lanes=st.integers(1, 3), flat=st.booleans(), length=st.integers(1, 7), writes=writes,
    stacked=st.booleans(), shared=st.booleans(), twin=st.booleans(),
)  # fmt: skip
def test_any_writes_give_the_rows_of_a_plain_storage(capacity, lanes, flat, length, writes, stacked, shared, twin):
    generator = torch.Generator().manual_seed(sum(n * seed for _, n, seed in writes) + length)
    with pytest.MonkeyPatch.context() as patch:
        if twin:
            patch.setenv("RL_BUFFERS_NATIVE", "0")
        native.load.cache_clear()
        kwargs = {"frame_stack": {"stack": (3, -2)} if stacked else None, "keys": None if shared else []}
        ndim = 1 if flat else 2
        once = ReplayBuffer(storage=TrajectoryStorage(capacity, ndim=ndim, **kwargs))
        plain = ReplayBuffer(storage=LazyTensorStorage(capacity, ndim=ndim))
        envs = [Lane(generator, length, 3) for _ in range(lanes)]
        for what, n, seed in writes:
            if what == "jump":  # the next write continues nothing
                for env in envs:
                    env.reset()
            if what == "set" and len(once):
                slots = torch.randint(0, len(once), (n,), generator=torch.Generator().manual_seed(seed))
                data = rollout(envs[:1], n)[0]
                once[slots], plain[slots] = data, data
            elif what == "reload":
                again = ReplayBuffer(storage=TrajectoryStorage(capacity, ndim=ndim, **kwargs))
                again.load_state_dict(once.state_dict())
                once = again
            elif what == "empty":
                once.empty(), plain.empty()
            else:
                data = rollout(envs, n)
                if n == 1 and not flat:
                    assert torch.equal(once.add(data[:, 0]), plain.add(data[:, 0]))
                else:
                    assert torch.equal(once.extend(data), plain.extend(data))
            same_rows(once, plain)
    native.load.cache_clear()


def test_rows_that_a_writer_puts_anywhere_come_back_too(kernels):
    once = ReplayBuffer(
        storage=TrajectoryStorage(5, frame_stack={"stack": (3, -2)}), writer=TensorDictMaxValueWriter("rank")
    )
    plain = ReplayBuffer(storage=LazyTensorStorage(5), writer=TensorDictMaxValueWriter("rank"))
    generator = torch.Generator().manual_seed(0)
    env = Lane(generator, 4, 3)
    for _ in range(6):
        data = rollout([env], 4)[0].set("rank", torch.rand(4, generator=generator))
        once.extend(data), plain.extend(data)
        same_rows(once, plain)


def pixels(episodes: int, length: int) -> TensorDict:
    """Episodes one after another ``[episodes * length]`` of stacks of four frames, as CatFrames pads them."""
    frames = torch.randint(0, 256, (episodes, length + 4, 16, 16), dtype=torch.uint8)
    frames[:, :3] = frames[:, 3:4]
    stacks = frames.unfold(1, 4, 1).movedim(-1, 2)  # [episodes, length + 1, 4, 16, 16]
    n = episodes * length
    done = torch.zeros(episodes, length, 1, dtype=torch.bool)
    done[:, -1] = True
    following = TensorDict({"pixels": stacks[:, 1:].flatten(0, 1), "done": done.flatten(0, 1)}, [n])
    return TensorDict({"pixels": stacks[:, :-1].flatten(0, 1), "next": following}, [n])


def test_stacks_of_four_frames_and_their_successors_take_a_sixth_of_the_memory(kernels):
    data = pixels(15, 100)
    storage = TrajectoryStorage(1500, frame_stack={"pixels": (4, -3)})
    buffer = ReplayBuffer(storage=storage)
    buffer.extend(data)
    plain = data["pixels"].nbytes + data["next", "pixels"].nbytes
    assert storage.nbytes < plain / 5
    assert torch.equal(buffer[:]["pixels"], data["pixels"])
    assert torch.equal(buffer[:]["next", "pixels"], data["next", "pixels"])


def test_stacks_alone_take_a_third_of_the_memory():
    data = pixels(15, 100).exclude(("next", "pixels"))
    storage = TrajectoryStorage(1500, frame_stack={"pixels": (4, -3)})
    ReplayBuffer(storage=storage).extend(data)
    assert storage.nbytes < data["pixels"].nbytes / 3


def test_observations_and_their_successors_take_half_the_memory():
    episodes, length = 10, 200
    seen = torch.randn(episodes, length + 1, 17)
    n = episodes * length
    following = TensorDict({"observation": seen[:, 1:].flatten(0, 1)}, [n])
    data = TensorDict({"observation": seen[:, :-1].flatten(0, 1), "next": following}, [n])
    storage = TrajectoryStorage(n)
    buffer = ReplayBuffer(storage=storage)
    buffer.extend(data)
    assert storage.nbytes < 2 * data["observation"].nbytes / 1.8
    assert torch.equal(buffer[:]["next", "observation"], following["observation"])


def test_a_truncated_row_keeps_its_true_last_observation():
    seen = torch.tensor([[0.0], [1.0], [2.0], [50.0], [51.0]])
    following = torch.tensor([[1.0], [2.0], [9.0], [51.0], [52.0]])  # the episode is cut after three steps, at 9
    data = TensorDict({"observation": seen, "next": TensorDict({"observation": following}, [5])}, [5])
    buffer = ReplayBuffer(storage=TrajectoryStorage(10, keys=["observation"]))
    buffer.extend(data)
    assert buffer[2]["next", "observation"].item() == 9.0 and buffer[4]["next", "observation"].item() == 52.0
    assert len(buffer.storage._next) == 2


def test_bytes_are_compared_not_values():
    seen = torch.tensor([[0.0, 0.0], [-0.0, 0.0], [float("nan"), 1.0]])
    following = torch.tensor([[0.0, 0.0], [float("nan"), 1.0], [3.0, 3.0]])
    data = TensorDict({"x": seen, "next": TensorDict({"x": following}, [3])}, [3])
    buffer = ReplayBuffer(storage=TrajectoryStorage(3))
    buffer.extend(data)
    assert torch.signbit(buffer[0]["next", "x"]).tolist() == [False, False]
    assert len(buffer.storage._next) == 2 and buffer[1]["next", "x"].isnan().tolist() == [True, False]


def test_the_entry_of_an_episode_table_is_put_together_too():
    data = pixels(2, 5)
    storage = TrajectoryStorage(10, frame_stack={"pixels": (4, -3)})
    ReplayBuffer(storage=storage).extend(data)
    index = torch.tensor([9, 3])
    assert torch.equal(storage.entry(("next", "pixels"), index), data["next", "pixels"][index])
    assert storage.entry("other", index) is None


def test_keys_that_do_not_fit_are_named():
    data = pixels(1, 3)
    with pytest.raises(ReplayBufferError, match=r"keys names 'reward', but the rows .*'pixels'"):
        ReplayBuffer(storage=TrajectoryStorage(5, keys=["reward"])).extend(data)
    with pytest.raises(ReplayBufferError, match=r"frame_stack names 'image': the rows have no such entry"):
        ReplayBuffer(storage=TrajectoryStorage(5, frame_stack={"image": (4, -3)})).extend(data)
    with pytest.raises(ReplayBufferError, match=r"'pixels': \(5, -3\).*shape \[4, 16, 16\]"):
        ReplayBuffer(storage=TrajectoryStorage(5, frame_stack={"pixels": (5, -3)})).extend(data)


def test_a_state_of_other_keys_is_refused_and_changes_nothing():
    data = pixels(1, 3)
    one, other = ReplayBuffer(storage=TrajectoryStorage(5)), ReplayBuffer(storage=TrajectoryStorage(5, keys=[]))
    one.extend(data), other.extend(data[:2])
    with pytest.raises(CheckpointError, match="with other keys or frame stacks"):
        other.load_state_dict(one.state_dict())
    assert len(other) == 2 and torch.equal(other[:]["next", "pixels"], data["next", "pixels"][:2])


def test_it_survives_the_disk(tmp_path):
    one, other = (ReplayBuffer(storage=TrajectoryStorage(8, frame_stack={"pixels": (4, -3)})) for _ in range(2))
    for _ in range(3):
        one.extend(pixels(1, 5))
    one.dumps(tmp_path / "saved")
    other.loads(tmp_path / "saved")
    same_rows(other, one)
    more = pixels(1, 4)
    one.extend(more), other.extend(more)
    same_rows(other, one)
