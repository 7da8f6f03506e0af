"""Grouping agents: the two groupings without names, the default by prefix, and every mistake in a group map."""

import pytest

from rl_core.errors import RLError, SpecError
from rl_marl.groups import MarlGroupMapType, check_marl_grouping, group_by_prefix, resolve_group_map

AGENTS = ["wolf_0", "wolf_1", "sheep_0"]


def test_all_agents_share_one_group_in_their_order():
    assert MarlGroupMapType.ALL_IN_ONE_GROUP.get_group_map(AGENTS) == {"agents": AGENTS}


def test_every_agent_gets_a_group_of_its_own():
    groups = MarlGroupMapType.ONE_GROUP_PER_AGENT.get_group_map(AGENTS)
    assert groups == {"wolf_0": ["wolf_0"], "wolf_1": ["wolf_1"], "sheep_0": ["sheep_0"]}


def test_the_numbers_of_the_groupings_are_those_that_users_store():
    assert (MarlGroupMapType.ALL_IN_ONE_GROUP.value, MarlGroupMapType.ONE_GROUP_PER_AGENT.value) == (1, 2)


@pytest.mark.parametrize(
    "groups",
    [{"all": AGENTS}, {"wolves": ["wolf_1", "wolf_0"], "sheep": ["sheep_0"]}, {name: [name] for name in AGENTS}],
)
def test_a_grouping_that_holds_every_agent_once_is_accepted(groups):
    check_marl_grouping(groups, AGENTS)


@pytest.mark.parametrize(
    ("groups", "agents", "says"),
    [
        ({}, [], "no agents"),
        ({"g": ["a", "b"]}, ["a", "b", "a"], "'a' occurs 2 times"),
        ({"g": ["a"], "h": ["b"], "i": []}, ["a", "b"], "3 groups .* 2 agents"),
        ({"g": ["a", "b"], "h": []}, ["a", "b"], "group 'h' is empty"),
        ({"g": ["a", "c"]}, ["a", "b"], "group 'g' names the agent 'c'"),
        ({"g": ["a"], "h": ["a", "b"]}, ["a", "b"], "'a' is in 'g' and again in the group 'h'"),
        ({"g": ["a", "b", "a"]}, ["a", "b"], "'a' is twice in the group 'g'"),
        ({"g": ["a"]}, ["a", "b"], "'b' is in no group"),
        ({"g": "ab"}, ["a", "b"], "group 'g' is given the text"),
    ],
)
def test_a_mistake_in_a_grouping_names_the_group_and_the_agent(groups, agents, says):
    with pytest.raises(ValueError, match=says) as caught:
        check_marl_grouping(groups, agents)
    assert isinstance(caught.value, RLError)


def test_agents_are_grouped_by_the_name_before_their_number():
    found = group_by_prefix(["wolf_0", "lead_wolf_0", "sheep_3", "wolf_12", "dog", "cat_x"])
    assert found == {
        "wolf": ["wolf_0", "wolf_12"],
        "lead_wolf": ["lead_wolf_0"],
        "sheep": ["sheep_3"],
        "dog": ["dog"],
        "cat_x": ["cat_x"],
    }


def test_an_agent_with_the_name_of_a_group_needs_a_group_map():
    with pytest.raises(SpecError, match="'wolf' has the name that the group of 'wolf_0'"):
        group_by_prefix(["wolf_0", "wolf"])


def test_a_group_may_not_hide_an_entry_of_the_root():
    with pytest.raises(SpecError, match="group 'state'"):
        resolve_group_map({"state": ["a"]}, ["a"], {"g": ["a"]})


def test_a_group_map_given_wins_over_the_default():
    assert resolve_group_map(None, ["a"], {"g": ["a"]}) == {"g": ["a"]}
    assert resolve_group_map({"h": ("a",)}, ["a"], {"g": ["a"]}) == {"h": ["a"]}
    assert resolve_group_map(MarlGroupMapType.ALL_IN_ONE_GROUP, ["a"], {"g": ["a"]}) == {"agents": ["a"]}
