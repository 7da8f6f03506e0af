"""NoopResetEnv, EndOfLifeTransform, FrameSkipTransform and RandomCropTensorDict."""

import types

import pytest
import torch
from tensordict import TensorDict

from rl_core import Compose, Transform, TransformedEnv, check_env_specs
from rl_core.errors import EnvError, KeyMissingError
from rl_core.testing import ArrayCountingEnv, CountingEnv, TransformKit
from rl_envs import (
    EndOfLifeTransform,
    FrameSkipTransform,
    GymEnv,
    NoopResetEnv,
    RandomCropTensorDict,
    RewardSum,
    StepCounter,
)

KINDS = [CountingEnv, ArrayCountingEnv]


def numbers(value):
    return value.squeeze(-1).tolist()


# -------------------------------------------------------------------- frame skip
class TestFrameSkip(TransformKit):
    steps = 8

    def make_transform(self):
        return FrameSkipTransform(2)


class TestFrameSkipAroundATracker(TransformKit):
    steps = 8
    needs = ()

    def make_env(self):
        return ArrayCountingEnv(length=[13, 14, 16], batch_size=[3])  # no row ends before the checks that do not reset

    def make_transform(self):
        return Compose(StepCounter(), FrameSkipTransform(3), RewardSum())


@pytest.mark.parametrize("kind", KINDS)
def test_actions_are_repeated_rewards_summed_and_ends_stop(kind):
    env = TransformedEnv(kind(length=5), FrameSkipTransform(3))
    check_env_specs(env)
    data = env.rollout(4, break_when_any_done=False)
    assert numbers(data["next", "observation"]) == [3, 5, 3, 5] and numbers(data["observation"]) == [0, 3, 0, 3]
    assert numbers(data["next", "reward"]) == [6, 9, 6, 9]
    assert numbers(data["next", "done"]) == [False, True, False, True]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_end_keep_their_end_while_others_go_on(kind):
    env = TransformedEnv(kind(length=[1, 2, 9], batch_size=[3]), FrameSkipTransform(3))
    data = env.rollout(2, break_when_any_done=False)
    assert numbers(data["next", "observation"]) == [[1, 1], [2, 2], [3, 6]]
    assert numbers(data["next", "reward"]) == [[1, 1], [3, 3], [6, 15]]
    assert numbers(data["next", "terminated"]) == [[True, True], [True, True], [False, False]]


@pytest.mark.parametrize("kind", KINDS)
def test_transforms_ahead_see_every_step(kind):
    env = TransformedEnv(
        kind(length=9),
        Compose(StepCounter(max_steps=5), FrameSkipTransform(2), StepCounter(step_count_key="decisions")),
    )
    data = env.rollout(9)
    assert numbers(data["next", "step_count"]) == [2, 4, 5] and numbers(data["next", "decisions"]) == [1, 2, 3]
    assert numbers(data["next", "truncated"]) == [False, False, True]


def test_later_inverses_reach_every_repetition():
    class Seen(CountingEnv):
        def _step(self, td):
            self.actions.append(td["action"].item())
            return super()._step(td)

    class Halve(Transform):
        def _inv_apply_transform(self, value):
            return value / 2

    env = Seen(length=9)
    env.actions = []
    env = TransformedEnv(env, Compose(FrameSkipTransform(3), Halve(in_keys_inv=["action"])))
    env.step(env.reset().set("action", torch.tensor([0.5])))
    assert env.base.actions == [0.25] * 3
    with pytest.raises(ValueError, match="at least 1"):
        FrameSkipTransform(0)


@pytest.mark.parametrize("count", [None, 3])
def test_gymnasium_s_own_frame_skip_is_the_same(count):
    options = {} if count is None else {"num_envs": count}
    ours = TransformedEnv(GymEnv("CartPole-v1", **options), FrameSkipTransform(4))
    native = GymEnv("CartPole-v1", frame_skip=4, **options)
    results = []
    for env in (ours, native):
        env.set_seed(0)
        torch.manual_seed(0)
        results.append(env.rollout(30, break_when_any_done=False))
    for key in ("observation", ("next", "observation"), ("next", "reward"), ("next", "done")):
        assert torch.equal(results[0][key], results[1][key]), key


# -------------------------------------------------------------------- idle steps
@pytest.mark.parametrize("kind", KINDS)
def test_episodes_begin_after_idle_steps(kind):
    env = TransformedEnv(kind(length=5), NoopResetEnv(2, random=False))
    check_env_specs(env)
    data = env.rollout(6, break_when_any_done=False)
    assert numbers(data["observation"]) == [2, 3, 4] * 2 and numbers(data["next", "observation"]) == [3, 4, 5] * 2
    assert not data["done"].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(), (1,)])
def test_the_number_of_idle_steps_is_drawn_from_one_to_the_most(kind, batch):
    env = TransformedEnv(kind(length=99, batch_size=batch), NoopResetEnv(3))
    torch.manual_seed(0)
    begun = [env.rollout(1)["observation"].flatten()[0].item() for _ in range(60)]
    assert set(begun) == {1, 2, 3}
    torch.manual_seed(0)
    assert begun == [env.rollout(1)["observation"].flatten()[0].item() for _ in range(60)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_episode_that_ends_while_idling_begins_anew(kind):
    env = TransformedEnv(kind(length=3), NoopResetEnv(4, random=False))  # 1 2 end 1
    assert env.rollout(1)["observation"].item() == 1
    with pytest.raises(EnvError, match="10 times in 30"):
        TransformedEnv(kind(length=1), NoopResetEnv(30, random=False)).rollout(1)


def test_a_batch_idles_environment_by_environment():
    for kind in KINDS:
        with pytest.raises(EnvError, match="Put it into each"):
            TransformedEnv(kind(batch_size=[2]), NoopResetEnv()).rollout(1)
    with pytest.raises(EnvError, match="append it to one"):
        NoopResetEnv()._reset(None, TensorDict())
    with pytest.raises(ValueError, match="at least 1"):
        NoopResetEnv(0)


# -------------------------------------------------------------------- lives
class Lives:
    """A simulator's counter: 3 lives, one less after every second step."""

    def __init__(self, row=0):
        self.row, self.env = row, None

    def lives(self):
        return 3 - int(self.env.count.flatten()[self.row].item()) // 2


def playing(kind, count=None, **options):
    env = kind(batch_size=() if count is None else [count], **options)
    games = [types.SimpleNamespace(ale=Lives(row)) for row in range(count or 1)]
    for game in games:
        game.ale.env = env
        game.unwrapped = game
    env.unwrapped, env.envs = games[0], games
    return env


class TestEndOfLife(TransformKit):
    needs = ("done", "lives")

    def make_env(self):
        return playing(ArrayCountingEnv, 3, length=[3, 5, 7])

    def make_single_env(self):
        return playing(ArrayCountingEnv, length=4)

    def make_transform(self):
        return EndOfLifeTransform()


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_life_is_marked_and_the_episode_goes_on(kind):
    env = TransformedEnv(playing(kind, length=5), EndOfLifeTransform())
    check_env_specs(env)
    data = env.rollout(7, break_when_any_done=False)
    assert data["next", "lives"].tolist() == [3, 2, 2, 1, 1, 3, 2]
    assert numbers(data["next", "end-of-life"]) == [False, True, False, True, True, False, True]
    assert numbers(data["next", "done"]) == [False] * 4 + [True, False, False]
    assert data["lives"].tolist() == [3, 3, 2, 2, 1, 3, 3] and not data["end-of-life"][[0, 1, 3, 5, 6]].any()


@pytest.mark.parametrize("kind", KINDS)
def test_each_environment_of_a_batch_has_its_lives(kind):
    env = TransformedEnv(playing(kind, 2, length=[2, 99]), EndOfLifeTransform(eol_key="eol", lives_key="left"))
    data = env.rollout(4, break_when_any_done=False)
    assert data["next", "left"].tolist() == [[3, 2, 3, 2], [3, 2, 2, 1]]
    assert numbers(data["next", "eol"]) == [[False, True, False, True]] * 2


def test_stored_lives_give_the_flag_again():
    env = TransformedEnv(playing(CountingEnv, length=5), EndOfLifeTransform())
    data = env.rollout(7, break_when_any_done=False)
    stored = data.exclude(("next", "end-of-life"))
    assert torch.equal(EndOfLifeTransform()(stored)["next", "end-of-life"], data["next", "end-of-life"])
    with pytest.raises(KeyMissingError, match="'lives'"):
        EndOfLifeTransform()(stored.exclude("lives"))


def test_a_game_without_lives_says_so():
    with pytest.raises(EnvError, match=r"finds no 'unwrapped\.ale\.lives'"):
        TransformedEnv(GymEnv("CartPole-v1"), EndOfLifeTransform()).reset()
    env = playing(CountingEnv, length=9)
    env.unwrapped.hearts = 2
    assert TransformedEnv(env, EndOfLifeTransform(eol_attribute="unwrapped.hearts")).reset()["lives"] == 2


# -------------------------------------------------------------------- crops
def test_every_start_is_equally_likely_and_rows_stay_together():
    torch.manual_seed(0)
    data = TensorDict(
        t=torch.arange(5).expand(3000, 5), row=torch.arange(3000)[:, None].expand(3000, 5), batch_size=[3000, 5]
    )
    cut = RandomCropTensorDict(3)(data)
    assert cut.batch_size == (3000, 3) and (cut["t"].diff(dim=1) == 1).all() and (cut["row"].diff(dim=1) == 0).all()
    counts = cut["t"][:, 0].bincount(minlength=3)
    assert len(counts) == 3 and (counts - 1000).abs().max() < 4 * (3000 * (1 / 3) * (2 / 3)) ** 0.5


def test_crops_hold_real_steps_alone():
    data = TensorDict(t=torch.arange(6).expand(200, 6), batch_size=[200, 6])
    data["mask"] = torch.arange(6).expand(200, 6) < 4
    cut = RandomCropTensorDict(2, mask_key="mask")(data)
    assert cut["mask"].all() and cut["t"].max() == 3
    with pytest.raises(EnvError, match="crop of 5 steps does not fit into a sequence of 4"):
        RandomCropTensorDict(5, mask_key="mask")(data)
    with pytest.raises(KeyMissingError, match="'valid'"):
        RandomCropTensorDict(2, mask_key="valid")(data)


def test_time_may_be_another_dimension():
    data = TensorDict(t=torch.arange(6)[None, :, None].expand(2, 6, 4), batch_size=[2, 6, 4])
    cut = RandomCropTensorDict(3, sample_dim=-2)(data)
    assert cut.batch_size == (2, 3, 4) and (cut["t"].diff(dim=1) == 1).all()
    with pytest.raises(EnvError, match="no dimension of a batch"):
        RandomCropTensorDict(3, sample_dim=-4)(data)
    with pytest.raises(EnvError, match="buffer"):
        TransformedEnv(CountingEnv(), RandomCropTensorDict(2)).reset()
    for arguments in ((0, -1), (2, 1)):
        with pytest.raises(ValueError):
            RandomCropTensorDict(*arguments)
