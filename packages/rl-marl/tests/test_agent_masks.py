"""The effective mask of a group, and who counts in the value of what follows a step."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_core.errors import SpecError
from rl_marl.masks import agents_mask, bootstrap_mask, group_mask, rows_mask

ROWS, AGENTS = ("collector", "mask"), ("robots", "mask")


def make_batch(rows=None, agents=None, batch_size=(2,)):
    batch = TensorDict({}, batch_size)
    if rows is not None:
        batch[ROWS] = rows
    if agents is not None:
        batch[AGENTS] = agents
    return batch


def test_without_masks_there_is_none():
    assert group_mask(make_batch(), ROWS, AGENTS, 3) is None
    assert rows_mask(make_batch(), ROWS) is None
    assert agents_mask(make_batch(), AGENTS, 3) is None


def test_rows_alone_hold_for_every_agent():
    mask = group_mask(make_batch(rows=torch.tensor([True, False])), ROWS, AGENTS, 3)
    assert mask.tolist() == [[True] * 3, [False] * 3]


def test_agents_alone_are_taken_as_they_are():
    acting = torch.tensor([[True, False, True], [False, False, True]])
    assert torch.equal(group_mask(make_batch(agents=acting), ROWS, AGENTS, 3), acting)


@given(st.lists(st.booleans(), min_size=6, max_size=6), st.lists(st.booleans(), min_size=18, max_size=18))
def test_both_must_hold_in_batches_of_any_number_of_dims(rows, agents):
    rows, agents = torch.tensor(rows).reshape(2, 3), torch.tensor(agents).reshape(2, 3, 3)
    mask = group_mask(make_batch(rows, agents, (2, 3)), ROWS, AGENTS, 3)
    for b in range(2):
        for t in range(3):
            for agent in range(3):
                assert mask[b, t, agent] == (rows[b, t] and agents[b, t, agent])


@pytest.mark.parametrize(
    ("agents", "said"),
    [
        (torch.ones(2, 3), ["float32", "mask.bool()"]),
        (torch.ones(2, 4, dtype=torch.bool), ["[2, 4]", "[2, 3]", "3 agents"]),
        (torch.ones(2, 3, 1, dtype=torch.bool), ["[2, 3, 1]", "squeeze(-1)"]),
    ],
)
def test_a_mask_of_agents_that_does_not_fit_is_named_with_its_group(agents, said):
    with pytest.raises(SpecError) as caught:
        group_mask(make_batch(agents=agents), ROWS, AGENTS, 3)
    for text in ['("robots", "mask")', "group 'robots'", *said]:
        assert text in str(caught.value)


@pytest.mark.parametrize("rows", [torch.ones(2), torch.ones(2, 1, dtype=torch.bool)])
def test_a_mask_of_rows_that_does_not_fit_is_named(rows):
    with pytest.raises(SpecError, match=r"collector.*rows"):
        group_mask(make_batch(rows=rows), ROWS, AGENTS, 3)


def test_while_the_episode_goes_on_those_who_act_next_count():
    acting, then = torch.tensor([[True, True, False]]), torch.tensor([[False, True, True]])
    assert torch.equal(bootstrap_mask(acting, then, torch.tensor([[False]]), None), then)


def test_where_it_was_cut_those_count_who_would_have_gone_on():
    acting = torch.tensor([[True, True, False]])
    nobody, done = torch.zeros(1, 3, dtype=torch.bool), torch.tensor([[True]])
    assert bootstrap_mask(acting, nobody, done, None).tolist() == [[True, True, False]]
    terminated = torch.tensor([[False, True, True]])
    assert bootstrap_mask(acting, nobody, done, terminated).tolist() == [[True, False, False]]
    assert bootstrap_mask(None, nobody, done, terminated).tolist() == [[True, False, False]]
