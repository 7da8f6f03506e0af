"""GroupKit fails, in the right check and with the right words, on every environment that is broken on purpose."""

import pytest
import torch
from tensordict import TensorDict

from rl_core.errors import RLError
from rl_marl.pettingzoo.env import PettingZooWrapper
from rl_marl.testing import GroupKit, ScriptedGame

# x_1 dies at step 2 and is back at step 4; all end with step 6.
LIVES = {
    "x_0": [(0, 6, "truncated")],
    "x_1": [(0, 2, "terminated"), (4, 6, "terminated")],
    "x_2": [(0, 3, "terminated")],
}


class Right(PettingZooWrapper):
    """The subject without a fault; what breaks it below changes one thing."""

    def __init__(self, group_map=None, strict=True):
        game = ScriptedGame(LIVES, masked=True, strict=strict)
        super().__init__(game, group_map=group_map, use_mask=True, done_on_any=False)


class TestRight(GroupKit):
    def make_env(self):
        return Right()

    def make_regrouped(self, group_map):
        return Right(group_map)


class NoGroupMap(Right):
    def __init__(self):
        super().__init__()
        self.group_map = None


class AgentTwice(Right):
    def __init__(self):
        super().__init__()
        self.group_map = {"x": ["x_0", "x_1", "x_1"]}


class WrongCount(Right):
    def __init__(self):
        super().__init__()
        self.group_map = {"x": ["x_0", "x_1"]}


class NoActions(Right):
    def __init__(self):
        super().__init__()
        self.group_map = {"x": ["x_0", "x_1", "x_2"], "y": ["y_0"]}


class GroupOfRootSize(Right):
    def _carried(self, happened):
        data = super()._carried(happened)
        data["x"] = TensorDict(dict(data["x"].items()), batch_size=[])
        return data


class Undeclared(Right):
    def _carried(self, happened):
        data = super()._carried(happened)
        data["x"]["extra"] = torch.zeros(3, 1)
        return data


class Illegal(Right):
    def _declare(self):
        super()._declare()
        spec = self.observation_spec["x", "observation"]
        self.observation_spec["x", "observation"] = type(self).bounded(spec)

    @staticmethod
    def bounded(spec):
        from rl_core import Bounded

        return Bounded(-1.0, 4.0, spec.shape)


class Steps(Right):
    """Changes what a step wrote, after the end flags were completed."""

    def step(self, tensordict):
        stepped = super().step(tensordict)
        self.change(stepped.get("next"), stepped)
        return stepped


class DoneOnItsOwn(Steps):
    def change(self, nxt, root):
        nxt["x", "done"] = nxt["x", "terminated"]


class RootDoneOnItsOwn(Steps):
    def change(self, nxt, root):
        nxt["done"] = torch.zeros(1, dtype=torch.bool)


class SurvivorsRunOn(Right):
    """Ends the episode with the first agent and leaves the flags of the others as they were."""

    def _step(self, tensordict):
        result = super()._step(tensordict)
        result["terminated"] = result["x", "terminated"].any(0)
        return result


class NeverOver(Right):
    """All agents have ended, and the root says that it goes on."""

    def _step(self, tensordict):
        result = super()._step(tensordict)
        result["terminated"] = result["truncated"] = torch.zeros(1, dtype=torch.bool)
        return result


class FlagsFlip(Right):
    """Reports a dead agent as truncated too, once the game does not list it any more."""

    def _step(self, tensordict):
        result = super()._step(tensordict)
        result["x", "truncated"] |= tensordict["x", "done"] & ~result["x", "mask"].unsqueeze(-1)
        return result


class DeadEarn(Right):
    def _step(self, tensordict):
        result = super()._step(tensordict)
        result["x", "reward"] += 1.0
        return result


class NumberMask(Right):
    def _carried(self, happened):
        data = super()._carried(happened)
        data["x"]["mask"] = data["x"]["mask"].float()
        return data

    def _step_complete(self, tensordict):
        self._validated = True
        return super()._step_complete(tensordict)


class ShortActionMask(NumberMask):
    def _carried(self, happened):
        data = PettingZooWrapper._carried(self, happened)
        data["x"]["action_mask"] = data["x"]["action_mask"][:, :2]
        return data


class AllForbidden(NumberMask):
    def _carried(self, happened):
        data = PettingZooWrapper._carried(self, happened)
        data["x"]["action_mask"] &= data["x"]["mask"].unsqueeze(-1)
        return data


class IgnoresItsMask(Right):
    def __init__(self):
        super().__init__(strict=False)

    def rand_action(self, tensordict=None):
        blind = super().rand_action()
        return blind if tensordict is None else tensordict.update(blind)


class DeadAct(Right):
    def _carried(self, happened):
        data = super()._carried(happened)
        data["x"]["mask"] = torch.ones(3, dtype=torch.bool)
        return data


class NobodyActs(Right):
    def _carried(self, happened):
        data = super()._carried(happened)
        data["x"]["mask"] = torch.zeros(3, dtype=torch.bool)
        return data


class FixedOrder(Right):
    """Takes another group map and leaves the rows where they were."""

    def __init__(self, group_map=None):
        super().__init__(strict=False)
        self.group_map = self.group_map if group_map is None else group_map


class Unseeded(Right):
    def _set_seed(self, seed):
        super()._set_seed(int(torch.empty((), dtype=torch.int64).random_(generator=self.own).item()) % 2**31)

    own = torch.Generator()


@pytest.mark.parametrize(
    ("broken", "check", "says"),
    [
        (NoGroupMap, "test_the_group_map_puts_every_agent_into_one_group", "no group_map"),
        (AgentTwice, "test_the_group_map_puts_every_agent_into_one_group", "'x_1' is twice"),
        (WrongCount, "test_the_specs_have_the_groups_and_their_sizes", r"has 2 agents, so it begins with \(2,\)"),
        (NoActions, "test_the_specs_have_the_groups_and_their_sizes", "'y' .* no entry in the action spec"),
        (GroupOfRootSize, "test_every_entry_of_a_group_has_the_agent_dimension", r"batch size \[\], not \[3\]"),
        (Undeclared, "test_what_it_writes_is_what_its_specs_say", "extra"),
        (Illegal, "test_what_it_writes_is_what_its_specs_say", "not in"),
        (DoneOnItsOwn, "test_done_follows_from_the_other_flags_at_every_level", r"\('x', 'done'\) is not terminated"),
        (RootDoneOnItsOwn, "test_done_follows_from_the_other_flags_at_every_level", "'done' is not terminated"),
        (SurvivorsRunOn, "test_an_episode_and_its_agents_end_together", "agents of 'x' are not"),
        (NeverOver, "test_an_episode_and_its_agents_end_together", "every agent is done, but the root is not"),
        (FlagsFlip, "test_agents_that_have_ended_stay_as_they_are_and_earn_nothing", "changes from"),
        (DeadEarn, "test_agents_that_have_ended_stay_as_they_are_and_earn_nothing", r"has ended earns \[1.0\]"),
        (NumberMask, "test_masks_are_bool_and_of_their_shape", "float32, not bool"),
        (ShortActionMask, "test_masks_are_bool_and_of_their_shape", r"shape \(3, 2\), not \(3, 3\)"),
        (AllForbidden, "test_no_row_of_an_action_mask_forbids_everything", "forbids everything"),
        (IgnoresItsMask, "test_random_actions_are_what_the_masks_allow", "not allowed by its mask"),
        (DeadAct, "test_whoever_has_ended_does_not_act_and_somebody_does", "says that it acts"),
        (NobodyActs, "test_whoever_has_ended_does_not_act_and_somebody_does", "nobody acts"),
        (FixedOrder, "test_another_order_of_a_groups_agents_only_permutes_its_rows", "agents reversed"),
        (Unseeded, "test_the_same_seed_gives_the_same_trajectory", "with the same seed"),
    ],
)
def test_the_kit_fails_on_a_broken_environment(broken, check, says):
    class Kit(GroupKit):
        def make_env(self):
            return broken()

        def make_regrouped(self, group_map):
            return broken(group_map)

    with pytest.raises((AssertionError, RLError), match=says):
        getattr(Kit(), check)()


def test_every_check_of_the_kit_has_a_subject_that_fails_it():
    marks = test_the_kit_fails_on_a_broken_environment.pytestmark
    shown = {case[1] for mark in marks for case in mark.args[1]}
    assert shown == {name for name in dir(GroupKit) if name.startswith("test_")}


def test_a_check_may_only_be_replaced_with_a_reason():
    with pytest.raises(RLError, match="without a reason"):
        type("Kit", (GroupKit,), {"test_masks_are_bool_and_of_their_shape": lambda self: None})
