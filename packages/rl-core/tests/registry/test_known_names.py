"""The table of known names answers for every group, and for nothing else."""

from __future__ import annotations

from rl_core.registry.groups import GROUPS
from rl_core.registry.known import _OFFERED, requirement_for


def test_every_group_of_the_table_exists():
    assert set(_OFFERED) <= set(GROUPS)


def test_an_unknown_name_has_no_requirement():
    assert requirement_for("losses", "nothing of that name") is None
    assert requirement_for("no such group", "ppo") is None


def test_a_name_is_answered_with_its_distribution_and_extra():
    assert requirement_for("losses", "sac") == "rl-objectives"
    assert requirement_for("envs", "dm_control") == "rl-envs[dm_control]"
    assert requirement_for("recipes", "mappo") == "rl-trainers[marl]"


def test_a_part_of_a_name_is_no_name():
    assert requirement_for("losses", "sa") is None
    assert requirement_for("losses", "dqn ddpg") is None
