"""EnvKit passes on the toy environments and fails, in the right check, on each one with a planted fault."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_core import Binary, Bounded, Categorical, Composite, EnvBase, TensorEnv, TransformedEnv, Unbounded
from rl_core.envs.partial_reset import reset_rows
from rl_core.errors import EnvError, RLError
from rl_core.testing import ArrayCountingEnv, CountingEnv, EnvKit, GroupCountingEnv


class RandomWalk(EnvBase):
    """Starts at a random place, moves by the action, ends after 4, 5 and 6 steps."""

    def __init__(self):
        super().__init__(batch_size=[3])
        self.observation_spec = Composite(place=Unbounded(shape=(3, 1)), shape=[3])
        self.action_spec = Bounded(-1.0, 1.0, (3, 1))
        self.reward_spec = Unbounded(shape=(3, 1))
        self.place, self.count = torch.zeros(3, 1), torch.zeros(3, 1)
        self.generator = torch.Generator()
        self.seeded = False

    def _draw(self):
        return torch.rand(3, 1, generator=self.generator if self.seeded else None)

    def _reset(self, tensordict=None, **kwargs):
        rows = reset_rows(tensordict)
        rows = torch.ones(3, dtype=torch.bool) if rows is None else rows
        drawn = self._draw()
        self.place = torch.where(rows.unsqueeze(-1), drawn, self.place)
        self.count = torch.where(rows.unsqueeze(-1), 0, self.count)
        return TensorDict(place=self.place.clone(), batch_size=[3])

    def _step(self, tensordict):
        self.place, self.count = self.place + tensordict.get("action"), self.count + 1
        ended = self.count >= torch.tensor([[4.0], [5.0], [6.0]])
        return TensorDict(place=self.place.clone(), reward=self.place.abs(), terminated=ended, batch_size=[3])

    def _set_seed(self, seed):
        self.generator.manual_seed(seed)
        self.seeded = True


class Drifting(EnvBase):
    """Without a state of its own: any batch size."""

    batch_locked = False

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(x=Bounded(-1.0, 1.0, (2,)))
        self.action_spec = Bounded(-1.0, 1.0, (2,))
        self.reward_spec = Unbounded(shape=(1,))

    def _reset(self, tensordict=None, **kwargs):
        size = self.batch_size if tensordict is None else tensordict.batch_size
        return TensorDict(x=torch.rand(*size, 2), batch_size=size)

    def _step(self, tensordict):
        x = (0.5 * tensordict.get("x") + 0.5 * tensordict.get("action")).clamp(-1, 1)
        size = tensordict.batch_size
        ended = torch.zeros(*size, 1, dtype=torch.bool)
        return TensorDict(x=x, reward=x.sum(-1, keepdim=True), terminated=ended, batch_size=size)


class Corridor(EnvBase):
    """Three rows of places 0 to 9: left (0), right (1) or stay (2), and the mask forbids to run into a wall."""

    def __init__(self):
        super().__init__(batch_size=[3])
        mask = Binary(shape=(3, 3), dtype=torch.bool)
        self.observation_spec = Composite(place=Bounded(0.0, 9.0, (3, 1)), action_mask=mask, shape=[3])
        self.action_spec = Categorical(3, shape=(3,))
        self.place = torch.zeros(3, 1)

    def _observed(self):
        allowed = [self.place > 0, self.place < 9, self.place == 1]
        return {"place": self.place.clone(), "action_mask": torch.cat(allowed, -1)}

    def _reset(self, tensordict=None, **kwargs):
        rows = reset_rows(tensordict)
        drawn = torch.randint(0, 9, (3, 1)).float()
        self.place = drawn if rows is None else torch.where(rows.unsqueeze(-1), drawn, self.place)
        return TensorDict(self._observed(), batch_size=[3])

    def _step(self, tensordict):
        action = tensordict.get("action").unsqueeze(-1)
        if not self._observed()["action_mask"].gather(-1, action).all():
            raise EnvError(
                f"the actions {action.flatten().tolist()} at {self.place.flatten().tolist()} run into a wall"
            )
        self.place = self.place + torch.tensor([-1.0, 1.0, 0.0])[action]
        ended = self.place == 9
        return TensorDict({**self._observed(), "reward": -self.place, "terminated": ended}, batch_size=[3])


class Halving(TensorEnv):
    """Halves what it holds, any number of rows at once."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(x=Unbounded((2,)))
        self.state_spec = Composite(x=Unbounded((2,)))
        self.action_spec = Bounded(-1.0, 1.0, (2,))

    @property
    def stack_key(self):
        return ()

    def _reset(self, tensordict=None, **kwargs):
        batch = torch.Size([]) if tensordict is None else tensordict.batch_size
        return TensorDict(x=torch.rand(*batch, 2), batch_size=batch)

    def _step_entries(self, entries):
        x = 0.5 * entries["x"] + entries["action"]
        return {"x": x, "reward": x[..., :1]}


class TestCountingEnv(EnvKit):
    random_start = False

    def make_env(self):
        return CountingEnv(length=[3, 5, 7], batch_size=[3], truncate=True)


class TestOneArrayCountingEnv(EnvKit):
    random_start, picklable = False, True

    def make_env(self):
        return ArrayCountingEnv(length=4)


class TestGroupCountingEnv(EnvKit):
    random_start = False

    def make_env(self):
        return GroupCountingEnv([2, 3], batch_size=[3])


class TestRandomWalk(EnvKit):
    picklable = True

    def make_env(self):
        return RandomWalk()


class TestAnyBatchSize(EnvKit):
    def make_env(self):
        return Drifting()


class TestWalls(EnvKit):
    """Actions are legal where masks say which are, and what they were drawn as is legal nowhere in particular."""

    def make_env(self):
        return Corridor()


class TestStack(EnvKit):
    def make_env(self):
        return Halving()


class TestTransformed(EnvKit):
    def make_env(self):
        return TransformedEnv(RandomWalk(), lambda td: td.set("place", td.get("place") * 2))


# -------------------------------------------------------------------- planted faults
class ResetsEveryRow(RandomWalk):
    def _reset(self, tensordict=None, **kwargs):
        return super()._reset(None)


class WritesAnotherDtype(RandomWalk):
    def _step(self, tensordict):
        result = super()._step(tensordict)
        return result.set("place", result.get("place").double())


class WritesUndeclared(RandomWalk):
    def _step(self, tensordict):
        return super()._step(tensordict).set("extra", torch.zeros(3, 1))


class LeavesItsBoundsLate(RandomWalk):
    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(place=Bounded(-100.0, 100.0, (3, 1)), shape=[3])

    def _step(self, tensordict):
        result = super()._step(tensordict)
        late = self.count >= 5
        return result.set("place", torch.where(late, 1000.0, result.get("place")))


class StopsLate(RandomWalk):
    def rollout(self, max_steps, *args, break_when_any_done=None, **kwargs):
        return super().rollout(max_steps, *args, break_when_any_done=False, **kwargs)


class ForgetsTheName(RandomWalk):
    def rollout(self, *args, **kwargs):
        data = super().rollout(*args, **kwargs)
        data.names = [None] * data.ndim
        return data


class IllegalRandomActions(RandomWalk):
    def rand_action(self, tensordict=None):
        td = super().rand_action(tensordict)
        return td.set("action", td.get("action") + 5)


class DoneAlone(RandomWalk):
    """``done`` of one row follows from nothing."""

    def step(self, tensordict):
        td = super().step(tensordict)
        td.get("next").get("done")[0] = True
        return td


class EndedFromTheStart(RandomWalk):
    def reset(self, tensordict=None, **kwargs):
        td = super().reset(tensordict, **kwargs)
        return td.set("terminated", torch.ones(3, 1, dtype=torch.bool))


class RewardAtReset(RandomWalk):
    def reset(self, tensordict=None, **kwargs):
        return super().reset(tensordict, **kwargs).set("reward", torch.zeros(3, 1))


class StepsIntoACopy(RandomWalk):
    def step(self, tensordict):
        return super().step(tensordict.clone())


class MovesTheRoot(RandomWalk):
    def _step(self, tensordict):
        result = super()._step(tensordict)
        tensordict.get("action").zero_()
        return result


class WritesResultsAtTheRoot(RandomWalk):
    def step(self, tensordict):
        td = super().step(tensordict)
        return td.set("speed", torch.zeros(3, 1))


class RolloutDiffers(RandomWalk):
    def rollout(self, *args, **kwargs):
        data = super().rollout(*args, **kwargs)
        data["next", "reward"][:, 2] += 1
        return data


class SharesMemory(RandomWalk):
    """The simulator's own buffer is what it gives out."""

    def _step(self, tensordict):
        before = self.place
        result = super()._step(tensordict)
        before.copy_(self.place)
        self.place = before
        return result.set("place", before)


class ResetWritesOverTheLast(RandomWalk):
    """A reset writes into the observation that the last step gave out."""

    def _reset(self, tensordict=None, **kwargs):
        last = self.place
        result = super()._reset(tensordict, **kwargs)
        if tensordict is not None:
            last.copy_(self.place)
        return result

    def _step(self, tensordict):
        return super()._step(tensordict).set("place", self.place)


class ResetsItself(RandomWalk):
    """At an end it returns the next episode's first observation, which the reset repeats."""

    fresh = None

    def _step(self, tensordict):
        result = super()._step(tensordict)
        ended = result.get("terminated")
        self.fresh = None
        if ended.any():
            self.place = torch.where(ended, self._draw(), self.place)
            self.fresh = self.place.clone()
            result.set("place", self.place.clone())
        return result

    def _reset(self, tensordict=None, **kwargs):
        fresh, self.fresh = self.fresh, None
        result = super()._reset(tensordict, **kwargs)
        if fresh is None or tensordict is None:
            return result
        self.place = fresh
        return result.set("place", fresh.clone())


class IgnoresSeeds(RandomWalk):
    def _set_seed(self, seed):
        self.seeded = True
        self.generator.seed()


class OneSeedOnly(RandomWalk):
    def _set_seed(self, seed):
        super()._set_seed(0)


class HasItsOwnSeed(RandomWalk):
    def __init__(self):
        super().__init__()
        self.seeded = True
        self.generator.seed()


class ForgetsTheChain(RandomWalk):
    def set_seed(self, seed=None, static_seed=False):
        super().set_seed(seed, static_seed)


class UsableWhenClosed(RandomWalk):
    def close(self, **kwargs):
        pass


class ClosesOnce(RandomWalk):
    def close(self, **kwargs):
        super().close(raise_if_closed=True)


class PicklesNothing(RandomWalk):
    def __reduce__(self):
        return PicklesNothing, ()


class SeesItsNeighbours(Halving):
    stack_key = ()

    def _step_entries(self, entries):
        written = super()._step_entries(entries)
        return {**written, "reward": written["x"].mean().expand_as(written["reward"]).clone()}


FAULTS = [
    (WritesAnotherDtype, "what_it_writes_is_what_its_specs_say", "float64"),
    (WritesUndeclared, "what_it_writes_is_what_its_specs_say", "extra"),
    (LeavesItsBoundsLate, "every_value_of_a_rollout_is_legal", "'place'.* at step 4 of a rollout"),
    (StopsLate, "every_value_of_a_rollout_is_legal", "went on after an end"),
    (ForgetsTheName, "every_value_of_a_rollout_is_legal", "not 'time'"),
    (IllegalRandomActions, "random_actions_are_legal", "random actions 'action'"),
    (DoneAlone, "every_end_flag_is_there_and_done_follows_from_the_others", "not terminated"),
    (EndedFromTheStart, "nothing_has_ended_after_a_reset", "'terminated' is set right after"),
    (RewardAtReset, "rewards_exist_only_under_next", "the reset wrote the reward 'reward'"),
    (StepsIntoACopy, "a_step_returns_what_it_was_given", "returned another"),
    (MovesTheRoot, "a_step_returns_what_it_was_given", "the root after a step: 'action'"),
    (WritesResultsAtTheRoot, "a_step_returns_what_it_was_given", "wrote .'speed'. at the root"),
    (RolloutDiffers, "a_rollout_is_the_same_as_its_steps", "step 2 of a rollout"),
    (SharesMemory, "observations_share_no_memory_with_each_other", "share memory|earlier step"),
    (ResetWritesOverTheLast, "the_last_observation_of_an_episode_stays_under_next", "after the reset that followed"),
    (ResetsItself, "the_last_observation_of_an_episode_stays_under_next", "the first one of the next episode"),
    (ResetsEveryRow, "a_reset_of_one_row_leaves_the_others_alone", "another row"),
    (SeesItsNeighbours, "rows_stepped_as_one_have_the_numbers_of_each", "'reward' of row 0 is .* stepped alone"),
    (IgnoresSeeds, "the_same_seed_gives_the_same_trajectory", "same seed"),
    (OneSeedOnly, "another_seed_gives_another_trajectory", "one trajectory"),
    (HasItsOwnSeed, "the_seed_of_torch_is_enough", "after torch.manual_seed"),
    (ForgetsTheChain, "set_seed_returns_the_next_seed_of_the_chain", "next seed"),
    (UsableWhenClosed, "closing_twice_is_harmless_and_a_closed_environment_says_so", "no EnvError"),
    (ClosesOnce, "closing_twice_is_harmless_and_a_closed_environment_says_so", "closed already"),
    (PicklesNothing, "pickling_keeps_the_state_where_it_is_promised", "unpickled"),
]


@pytest.mark.parametrize(("broken", "check", "says"), FAULTS)
def test_a_planted_fault_is_found_by_its_check(broken, check, says):
    class Kit(EnvKit):
        picklable = True

        def make_env(self):
            return broken()

    with pytest.raises((AssertionError, RLError), match=says):
        getattr(Kit(), f"test_{check}")()


def test_every_check_has_a_planted_fault():
    checks = {name for name in dir(EnvKit) if name.startswith("test_")}
    assert checks == {f"test_{check}" for _, check, _ in FAULTS}
