"""Groups of agents: which agents share one nested TensorDict, and the checks of such a grouping.

A group map is a dict from a group's name to the ordered names of its agents; an agent's place in the list is its index
in every leaf ``[*B, n, ...]`` of the group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TypeAlias

from rl_core.errors import SpecError

__all__ = ["GroupMap", "MarlGroupMapType", "check_marl_grouping", "group_by_prefix", "resolve_group_map"]

GroupMap: TypeAlias = "dict[str, list[str]]"

_TAKEN = frozenset(
    ("next", "done", "terminated", "truncated", "state", "reward", "action", "collector", "_reset", "_step")
)


class MarlGroupMapType(Enum):
    """The two groupings that need no names.

    Example:
        >>> MarlGroupMapType.ONE_GROUP_PER_AGENT.get_group_map(["cat", "dog"])
        {'cat': ['cat'], 'dog': ['dog']}
    """

    ALL_IN_ONE_GROUP = 1
    ONE_GROUP_PER_AGENT = 2

    def get_group_map(self, agent_names: Sequence[str]) -> GroupMap:
        """One group "agents" with all of them, or a group for each, named as the agent (its agent dimension is 1).

        Args:
            agent_names: every agent, in order.

        Raises:
            SpecError: there are no agents, or two have one name.
        """
        names = list(agent_names)
        if self is MarlGroupMapType.ALL_IN_ONE_GROUP:
            groups = {"agents": names}
        else:
            groups = {name: [name] for name in names}
        check_marl_grouping(groups, names)
        return groups


def check_marl_grouping(group_map: Mapping[str, Sequence[str]], agent_names: Sequence[str]) -> None:
    """Check that a grouping puts every agent into exactly one group.

    Args:
        group_map: group -> its agents, in order.
        agent_names: every agent of the environment.

    Raises:
        SpecError: (a ValueError) there are no agents; two agents have one name; there are more groups than agents; a
            group is empty; a group names an agent that the environment does not have; an agent is named twice; an
            agent is in no group. The message names the group and the agent.
    """
    names = list(agent_names)
    if not names:
        raise SpecError("there are no agents to group: the list of agent names is empty")
    for name, count in Counter(names).items():
        if count > 1:
            raise SpecError(f"the agent name {name!r} occurs {count} times in {names}; names must differ")
    if len(group_map) > len(names):
        raise SpecError(
            f"there are {len(group_map)} groups ({_listed(group_map)}) for {len(names)} agents ({_listed(names)}); "
            "every group needs an agent of its own"
        )
    home: dict[str, str] = {}
    for group, members in group_map.items():
        _check_members(group, members, names, home)
    for name in names:
        if name not in home:
            raise SpecError(
                f"the agent {name!r} is in no group; the groups are {dict(group_map)}. Add it to one of them, or give "
                f"it a group of its own: {{{name!r}: [{name!r}]}}"
            )


def _check_members(group: str, members: Sequence[str], names: Sequence[str], home: dict[str, str]) -> None:
    if isinstance(members, str):
        raise SpecError(f"the group {group!r} is given the text {members!r}; write a list: [{members!r}]")
    if not len(members):
        raise SpecError(f"the group {group!r} is empty; name its agents, or leave the group out")
    for name in members:
        if name not in names:
            raise SpecError(
                f"the group {group!r} names the agent {name!r}, which the environment does not have; its agents are "
                f"{_listed(names)}"
            )
        if name in home:
            again = "twice in" if home[name] == group else f"in {home[name]!r} and again in"
            raise SpecError(f"the agent {name!r} is {again} the group {group!r}; an agent belongs to one group, once")
        home[name] = group


def group_by_prefix(agent_names: Sequence[str]) -> GroupMap:
    """Agents named ``<name>_<int>`` by their name; every other agent alone, in a group named as the agent.

    Raises:
        SpecError: an agent has the name of a group of others.

    Example:
        >>> group_by_prefix(["wolf_0", "sheep_0", "wolf_1", "shepherd"])
        {'wolf': ['wolf_0', 'wolf_1'], 'sheep': ['sheep_0'], 'shepherd': ['shepherd']}
    """
    groups: GroupMap = {}
    for name in agent_names:
        groups.setdefault(numbered_prefix(name) or name, []).append(name)
    for name in agent_names:
        if name in groups and groups[name] != [name]:
            raise SpecError(
                f"the agent {name!r} has the name that the group of {_listed([m for m in groups[name] if m != name])} "
                "would get; pass group_map={...} with names of your own"
            )
    return groups


def numbered_prefix(name: str) -> str | None:
    """The name before ``_<int>``, or None where it does not end so.

    >>> numbered_prefix("wolf_12"), numbered_prefix("wolf"), numbered_prefix("_3")
    ('wolf', None, None)
    """
    prefix, _, number = name.rpartition("_")
    return prefix if prefix and number.isdigit() else None


def resolve_group_map(
    group_map: Mapping[str, Sequence[str]] | MarlGroupMapType | None,
    agent_names: Sequence[str],
    default: GroupMap | MarlGroupMapType,
) -> GroupMap:
    """The grouping that a user asked for, checked, as plain lists.

    Args:
        group_map: of the user; None takes ``default``.
        agent_names: every agent of the environment.
        default: the environment's own grouping.

    Raises:
        SpecError: see :func:`check_marl_grouping`; or a group has the name of an entry of the root ("done", "state").
    """
    asked = default if group_map is None else group_map
    groups = asked.get_group_map(agent_names) if isinstance(asked, MarlGroupMapType) else asked
    check_marl_grouping(groups, agent_names)
    for group in groups:
        if group in _TAKEN:
            raise SpecError(
                f"the group {group!r} of {_listed(groups[group])} has the name of an entry of the root; pass "
                "group_map={...} with another name"
            )
    return {group: list(members) for group, members in groups.items()}


def _listed(names: Sequence[str] | Mapping[str, Sequence[str]]) -> str:
    return ", ".join(map(repr, names))
