"""CatFrames and TimeMaxPool: frames by hand, online against stored, in environments and buffers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_core import Bounded, Compose, TransformedEnv, check_env_specs
from rl_core.errors import EnvError, KeyMissingError
from rl_core.testing import ArrayCountingEnv, CountingEnv, GroupCountingEnv, TransformKit
from rl_core.testing.replay import draw_actions, rollout_of
from rl_envs import CatFrames, TimeMaxPool

KINDS = [CountingEnv, ArrayCountingEnv]


class TestCatFrames(TransformKit):
    offline = True
    statistics = ()

    def make_transform(self):
        return CatFrames(3, -1, in_keys=["observation"], out_keys=["frames"])


class TestCatFramesInPlace(TransformKit):
    statistics = ()

    def make_transform(self):
        return CatFrames(2, -1, in_keys=["observation"], padding="constant", padding_value=-1.0)


class TestCatFramesWithAMask(TransformKit):
    offline = True
    statistics = ()

    def make_transform(self):
        return CatFrames(3, -1, in_keys=["observation"], out_keys=["frames"], padding="constant", mask_key="is_padding")


class TestCatFramesThenAnotherMapInPlace(TransformKit):
    statistics = ()
    needs = ()

    def make_transform(self):
        return Compose(CatFrames(3, -1, in_keys=["observation"]), lambda td: td)


class TestTimeMaxPool(TransformKit):
    statistics = ()

    def make_transform(self):
        return TimeMaxPool(["observation"], ["largest"], T=2)


# -------------------------------------------------------------------- in an environment
@pytest.mark.parametrize("kind", KINDS)
def test_only_the_row_that_ended_begins_anew(kind):
    env = TransformedEnv(kind(length=[99, 4, 99], batch_size=[3]), CatFrames(3, -1, in_keys=["observation"]))
    check_env_specs(env)
    data = env.rollout(6, break_when_any_done=False)
    going_on = [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]
    assert data["observation"][0].tolist() == data["observation"][2].tolist() == going_on
    assert data["observation"][1].tolist() == [*going_on[:4], [0, 0, 0], [0, 0, 1]]
    assert data["next", "observation"][1].tolist() == [*going_on[1:4], [2, 3, 4], [0, 0, 1], [0, 1, 2]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_reset_that_is_asked_for_touches_its_row_alone(kind):
    env = TransformedEnv(kind(length=99, batch_size=[3]), CatFrames(3, -1, in_keys=["observation"]))
    td = env.reset()
    for _ in range(4):
        td = env.step_mdp(env.rand_step(td))
    td = env.reset(td.set("_reset", torch.tensor([[False], [True], [False]])))
    assert td["observation"].tolist() == [[2, 3, 4], [0, 0, 0], [2, 3, 4]]
    td = env.step_mdp(env.rand_step(td))
    assert td["observation"].tolist() == [[3, 4, 5], [0, 0, 1], [3, 4, 5]]


@pytest.mark.parametrize("kind", KINDS)
def test_constant_padding_writes_its_value(kind):
    frames = CatFrames(3, -1, in_keys=["observation"], padding="constant", padding_value=-7)
    env = TransformedEnv(kind(length=2, batch_size=[1]), frames)
    data = env.rollout(3, break_when_any_done=False)
    assert data["observation"][0].tolist() == [[-7, -7, 0], [-7, 0, 1], [-7, -7, 0]]
    assert data["next", "observation"][0].tolist() == [[-7, 0, 1], [0, 1, 2], [-7, 0, 1]]


def test_what_was_given_out_never_changes_and_later_maps_are_not_mapped_again():
    env = TransformedEnv(
        CountingEnv(length=9),
        Compose(CatFrames(2, -1, ["observation"]), lambda td: td.set("observation", -td["observation"])),
    )
    td = env.reset()
    first = td["observation"].clone()
    td = env.step_mdp(env.rand_step(td))
    second = td["observation"].clone()
    env.rand_step(td)
    assert first.tolist() == [0, 0] and second.tolist() == [0, -1] and torch.equal(td["observation"], second)


def test_agents_of_a_group_keep_frames_each():
    key = ("agents", "observation")
    env = TransformedEnv(GroupCountingEnv([2, 3], batch_size=[1]), CatFrames(2, -1, in_keys=[key]))
    check_env_specs(env)
    data = env.rollout(5)
    assert data["next", "agents", "observation"][0].tolist() == [[[0, 1], [0, 1]], [[1, 2], [1, 2]], [[2, 2], [2, 3]]]


def test_a_step_without_a_reset_is_refused():
    env = TransformedEnv(CountingEnv(), CatFrames(2, -1, in_keys=["observation"]))
    td = env.base.reset()
    with pytest.raises(EnvError, match="before any reset"):
        env.rand_step(td)


def test_bounds_take_the_padding_in():
    spec = CountingEnv().observation_spec.clone()
    spec.set("observation", Bounded(1.0, 3.0, shape=(1,)))
    longer = CatFrames(2, -1, ["observation"], padding="constant").transform_observation_spec(spec)["observation"]
    assert longer.shape == (2,) and longer.low.tolist() == [0, 0] and longer.high.tolist() == [3, 3]


def test_wrong_arguments_are_refused():
    for arguments in ({"N": 0, "dim": -1}, {"N": 2, "dim": 0}, {"N": 2, "dim": -1, "padding": "zero"}):
        with pytest.raises(ValueError):
            CatFrames(**arguments)
    for option in ({"future": True}, {"as_inverse": True}):
        with pytest.raises(EnvError, match="give this CatFrames to a buffer"):
            TransformedEnv(CountingEnv(), CatFrames(2, -1, ["observation"], **option)).reset()
    with pytest.raises(EnvError, match="dimension -3"):
        CatFrames(2, -3, ["observation"]).transform_observation_spec(CountingEnv().observation_spec.clone())


# -------------------------------------------------------------------- stored steps
def stored(ends, n=6):
    """Root 1 .. n; next is root + 1, at ends 10 x root."""
    root = torch.arange(1.0, n + 1).unsqueeze(-1)
    done = torch.zeros(n, 1, dtype=torch.bool)
    done[list(ends)] = True
    nxt = torch.where(done, 10 * root, root + 1)
    return TensorDict({"x": root, "next": {"x": nxt, "done": done}}, batch_size=[n], names=["time"])


def test_stored_steps_never_cross_an_end():
    data = CatFrames(3, -1, in_keys=["x"])(stored([2]))
    assert data["x"].tolist() == [[1, 1, 1], [1, 1, 2], [1, 2, 3], [4, 4, 4], [4, 4, 5], [4, 5, 6]]
    assert data["next", "x"].tolist() == [[1, 1, 2], [1, 2, 3], [2, 3, 30], [4, 4, 5], [4, 5, 6], [5, 6, 7]]


def test_stored_steps_with_constant_padding_and_mask():
    data = CatFrames(3, -1, in_keys=["x"], out_keys=["y"], padding="constant", mask_key="m")(stored([2]))
    assert data["y"].tolist()[:4] == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [0, 0, 4]]
    assert data["next", "y"].tolist()[:4] == [[0, 1, 2], [1, 2, 3], [2, 3, 30], [0, 4, 5]]
    assert data["m"].tolist()[:4] == [[True, True, False], [True, False, False], [False] * 3, [True, True, False]]
    assert data["next", "m"].tolist()[:3] == [[True, False, False], [False] * 3, [False] * 3]
    assert data["x"].tolist() == stored([2])["x"].tolist()


def test_frames_of_the_future():
    data = CatFrames(3, -1, in_keys=["x"], out_keys=["y"], future=True, mask_key="m")(stored([2]))
    assert data["y"].tolist() == [[1, 2, 3], [2, 3, 3], [3, 3, 3], [4, 5, 6], [5, 6, 6], [6, 6, 6]]
    assert data["next", "y"].tolist() == [[2, 3, 30], [3, 30, 30], [30] * 3, [5, 6, 7], [6, 7, 7], [7] * 3]
    assert data["m"].tolist()[:3] == [[False] * 3, [False, False, True], [False, True, True]]
    constant = CatFrames(3, -1, in_keys=["x"], out_keys=["y"], future=True, padding="constant", padding_value=-1)
    assert constant(stored([2]))["y"].tolist()[:3] == [[1, 2, 3], [2, 3, -1], [3, -1, -1]]


def test_actions_have_no_next():
    data = stored([2]).rename_key_("x", "action")
    del data["next", "x"]
    chunks = CatFrames(2, -1, in_keys=["action"], out_keys=["chunk"], future=True)(data)
    assert chunks["chunk"].tolist() == [[1, 2], [2, 3], [3, 3], [4, 5], [5, 6], [6, 6]]
    assert ("next", "chunk") not in chunks.keys(True)


def test_keys_under_next_may_be_named():
    both = CatFrames(3, -1, in_keys=["x", ("next", "x")], out_keys=["y", ("next", "z")])(stored([2]))
    assert both["y"].tolist()[2] == [1, 2, 3] and both["next", "z"].tolist()[2] == [2, 3, 30]
    alone = CatFrames(3, -1, in_keys=[("next", "x")])(stored([2]))
    assert alone["next", "x"].tolist()[2] == [2, 3, 30] and alone["x"].tolist() == stored([2])["x"].tolist()


def test_another_end_flag_may_be_named():
    data = stored([2])
    data["next", "over"] = data["next", "done"].roll(1, 0)
    assert CatFrames(2, -1, in_keys=["x"], done_key="over")(data)["x"].tolist()[3:5] == [[3, 4], [5, 5]]
    with pytest.raises(KeyMissingError, match="'late'"):
        CatFrames(2, -1, in_keys=["x"], done_key="late")(stored([2]))
    with pytest.raises(KeyMissingError, match="done"):
        CatFrames(2, -1, in_keys=["x"])(TensorDict(x=torch.zeros(4, 1), batch_size=[4]))


def test_a_buffer_may_join_when_it_is_written():
    frames = CatFrames(2, -1, in_keys=["x"], as_inverse=True)
    data = stored([2])
    joined = frames.inv(data)
    assert joined["x"].tolist()[:2] == [[1, 1], [1, 2]] and data["x"].tolist() == stored([2])["x"].tolist()
    assert frames(joined) is joined


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=2, max_size=2),
    n=st.integers(1, 4),
    padding=st.sampled_from(["same", "constant"]),
    cut=st.integers(1, 8),
)
def test_stored_equals_online_however_the_data_are_cut(lengths, n, padding, cut):
    def make():
        return CatFrames(n, -1, in_keys=["observation"], out_keys=["frames"], padding=padding, padding_value=-1)

    env, raw_env = (ArrayCountingEnv(length=lengths, batch_size=[2]) for _ in range(2))
    env = TransformedEnv(env, make())
    actions = draw_actions(env, 9, env.batch_size)
    online, raw = rollout_of(env, actions), rollout_of(raw_env, actions)
    whole = make()(raw.clone())
    parts = [raw[:, :cut].clone(), raw[:, cut:].clone()]
    if cut < 9:
        held = torch.zeros_like(online["frames"][:, cut:])
        held[:, 0] = online["frames"][:, cut]
        parts[1]["frames"] = held
    joined = torch.cat([make()(part) for part in parts if part.numel()], 1)
    for key in ("frames", ("next", "frames")):
        assert torch.equal(whole[key], online[key]) and torch.equal(joined[key], online[key])


def test_slices_that_are_no_slices_are_refused():
    from rl_envs.transforms.frame_slices import LastOfSlices

    last = LastOfSlices(CatFrames(3, -1, in_keys=["x"]), 3)
    kept = last(stored([2]))
    assert kept["x"].tolist() == [[1, 2, 3], [4, 5, 6]] and kept["next", "x"].tolist() == [[2, 3, 30], [5, 6, 7]]
    with pytest.raises(EnvError, match="slices of 3 rows"):
        last(stored([2], n=4))
    short = stored([0])
    short["collector", "mask"] = torch.tensor([True, False, False, True, True, True])
    assert last(short)["x"].tolist() == [[1, 1, 1], [4, 5, 6]]


# -------------------------------------------------------------------- TimeMaxPool
@pytest.mark.parametrize("kind", KINDS)
def test_the_maximum_over_the_last_steps_of_the_episode(kind):
    def sawtooth(td):
        return td.set("wave", torch.tensor([3.0, 1.0, 2.0, 0.0])[td["observation"].long()])

    env = TransformedEnv(kind(length=[3, 9], batch_size=[2]), sawtooth)
    env = TransformedEnv(env, TimeMaxPool(["wave"], T=2))
    data = env.rollout(4, break_when_any_done=True)
    assert data["wave"].squeeze(-1).tolist() == [[3, 3, 2]] * 2
    assert data["next", "wave"].squeeze(-1).tolist() == [[3, 2, 2]] * 2
    with pytest.raises(ValueError, match="at least 1"):
        TimeMaxPool(["wave"], T=0)
