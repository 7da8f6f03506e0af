"""What the recipes of language models read off batches of dialogs."""

import gc

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict

from rl_trainers.recipes.chats import chat_id, cut_completions, dialog_metrics, long_lived

EOS = 9


def turn(number, reward, ids, query="q"):
    entries = {
        "collector": {"traj_ids": torch.tensor(number)},
        "tokens": {"response": torch.tensor(ids, dtype=torch.int64)},
        "next": {"reward": torch.tensor([reward])},
    }
    return TensorDict(entries, []).set_non_tensor("query", query)


def batch():
    """A dialog of two turns and two of one; one answer is cut, one is empty."""
    rows = [turn(4, 0.0, [1, EOS]), turn(4, 1.0, [1, 2, 3]), turn(5, 0.5, []), turn(7, 0.0, [EOS])]
    rows = LazyStackedTensorDict(*rows)
    return rows.set("cut_answer", cut_completions(rows, EOS))


def test_an_answer_is_cut_where_its_last_token_ends_nothing():
    assert batch()["cut_answer"].tolist() == [[False], [True], [True], [False]]
    assert cut_completions(batch(), None).all()


def test_rewards_are_those_of_dialogs_and_lengths_those_of_turns():
    metrics = dialog_metrics(batch())
    assert metrics["train/reward"] == pytest.approx(0.5)  # 1, 0.5 and 0
    assert metrics["train/reward_std"] == pytest.approx((0.5 / 3) ** 0.5)
    assert metrics["train/completion_length"] == 1.5 and metrics["train/cut_completions"] == 0.5


def test_a_task_without_a_provider_is_a_chat():
    assert (chat_id("letters"), chat_id("mine:riddles")) == ("chat:letters", "mine:riddles")


def test_the_garbage_collector_gets_its_objects_back():
    before = gc.get_freeze_count()
    with long_lived():
        assert gc.get_freeze_count() > before
    assert gc.get_freeze_count() == 0
