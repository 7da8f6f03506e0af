"""LLMCollector: budgets, whole dialogs, versions, staleness, collecting beside training."""

import queue
import threading

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from rl_core import Transform, registry
from rl_core.errors import CollectorError, EnvError, KeyMissingError
from rl_llm.collectors import llm_collector
from rl_llm.collectors.llm_collector import LLMCollector
from rl_llm.data.char_tokenizer import char_tokenizer
from rl_llm.data.containers import Text
from rl_llm.envs.chat import ChatEnv
from rl_llm.envs.dataset import DatasetChatEnv
from rl_llm.policies.transformers import TransformersWrapper
from rl_llm.testing.tiny import tiny_llama
from rl_llm.weights.module_sync import ModuleWeightSync

TOKENIZER = char_tokenizer()


def shout(td):
    """A policy that says "!"."""
    text = [prompt + "!" for prompt in td["text"].texts("prompt")]
    return td.set("text", Text(prompt=td["text"].prompt, full=text, batch_size=td.batch_size))


class EndsAfter(Transform):
    """Ends a dialog after as many turns as its question says, and pays for the last one."""

    def _step(self, tensordict, next_tensordict):
        turns = torch.tensor([text.count("!") for text in next_tensordict["text"].texts("prompt")])
        over = (turns >= torch.tensor([int(query) for query in tensordict["query"]])).unsqueeze(-1)
        next_tensordict.update({"terminated": over, "done": over.clone(), "reward": over.float()})
        return next_tensordict


def chats(*lengths, rows=2, **kwargs):
    """Dialogs of so many turns each, over and over."""
    env = DatasetChatEnv(
        dataset=[str(n) for n in lengths],
        shuffle=False,
        num_envs=rows,
        max_steps=None,
        input_mode="text",
        tokenizer=TOKENIZER,
        **kwargs,
    )
    return env.append_transform(EndsAfter())


def numbers(batch):
    return batch["collector", "traj_ids"].flatten().tolist()


def ends(batch):
    return batch["next", "done"].flatten().tolist()


def model_policy(model, **kwargs):
    return TransformersWrapper(
        model, tokenizer=TOKENIZER, input_mode="text", generate_kwargs={"max_new_tokens": 3}, **kwargs
    )


# ------------------------------------------------------------------------------------------------------------ budgets
def test_a_batch_of_steps_holds_the_turns_of_every_chat_and_the_last_one_what_remains():
    collector = LLMCollector(chats(2, 3), shout, dialog_turns_per_batch=6, total_dialog_turns=16)
    batches = list(collector)
    assert [tuple(batch.shape) for batch in batches] == [(2, 3), (2, 3), (2, 2)]
    assert batches[0].names == [None, "time"] and collector.frames == 16 and collector.closed


def test_frames_and_positions_are_other_names():
    batches = list(LLMCollector(chats(1), shout, frames_per_batch=4, total_frames=8))
    assert [batch.numel() for batch in batches] == [4, 4]
    with pytest.raises(CollectorError, match="two names of one thing"):
        LLMCollector(chats(1), shout, dialog_turns_per_batch=4, frames_per_batch=2)


def test_dialogs_go_on_from_batch_to_batch_and_end_with_their_true_last_text():
    collector = LLMCollector(chats(3, rows=1), shout, dialog_turns_per_batch=2, total_dialog_turns=6)
    first, second, third = collector
    assert numbers(first) + numbers(second) + numbers(third) == [0, 0, 0, 1, 1, 1]
    assert ends(first) + ends(second) + ends(third) == [False, False, True] * 2
    assert second[0, 0]["text"].prompt == first[0, 1]["next", "text"].prompt
    assert second[0, 0]["next", "text"].prompt.count("!") == 3  # not the question of the dialog after it
    done = second["next", "done"]
    assert (done == (second["next", "terminated"] | second["next", "truncated"])).all()


def test_steps_can_be_rows_chat_by_chat():
    collector = LLMCollector(chats(2, 9), shout, dialog_turns_per_batch=6, flatten_data=True)
    batch = collector.next()
    assert batch.shape == (6,) and numbers(batch) == [0, 0, 2, 1, 1, 1]


# ----------------------------------------------------------------------------------------------------- whole dialogs
def whole(lengths, turns=None, rows=2, **kwargs):
    return LLMCollector(
        chats(*lengths, rows=rows), shout, dialog_turns_per_batch=turns, yield_completed_trajectories=True, **kwargs
    )


def test_whole_dialogs_come_with_all_turns_side_by_side_in_the_order_of_their_begin():
    # rows 0 and 1 begin with 3 and 1 turns; row 1 goes on with 2, then 4, ...
    collector = whole([3, 1, 2, 4], turns=5)
    batch = collector.next()
    assert numbers(batch) == [0, 0, 0, 1, 2, 2] and ends(batch) == [False, False, True, True, False, True]
    assert [row["text"].prompt.count("!") for row in batch.unbind(0)] == [0, 1, 2, 0, 0, 1]
    assert isinstance(batch, TensorDictBase) and batch.batch_size == (6,)
    following = collector.next()
    assert set(numbers(following)).isdisjoint(numbers(batch)) and ends(following)[-1]


def test_without_a_number_a_batch_comes_as_soon_as_any_dialog_has_ended():
    collector = whole([3, 1, 2])
    assert [numbers(collector.next()) for _ in range(2)] == [[1], [0, 0, 0, 2, 2]]


def test_every_dialog_of_every_batch_is_whole():
    collector, seen = whole([3, 1, 2, 5, 1], turns=7, rows=3), {}
    for _ in range(6):
        batch = collector.next()
        for row in batch.unbind(0):
            seen.setdefault(int(row["collector", "traj_ids"]), []).append(bool(row["next", "done"]))
    assert seen and all(dones == [False] * (len(dones) - 1) + [True] for dones in seen.values())


def test_only_the_last_turns_may_be_asked_for_and_all_turns_count():
    collector = LLMCollector(chats(3, 1), shout, yield_only_last_steps=True, dialog_turns_per_batch=4)
    batch = collector.next()
    assert ends(batch) == [True] * len(batch) and sorted(set(numbers(batch))) == numbers(batch)
    assert collector.frames == collector.get_stats()["turns"] > len(batch)


def test_the_budget_of_whole_dialogs_counts_their_turns():
    batches = list(whole([2], turns=4, rows=2, total_dialog_turns=10))
    assert [batch.numel() for batch in batches] == [4, 4, 4]  # the last dialog is not cut


def test_dialogs_that_never_end_are_an_error_and_not_a_hanging_run(monkeypatch):
    monkeypatch.setattr(llm_collector, "_PATIENCE", 5)
    with pytest.raises(CollectorError, match="has not ended after 5 turns"):
        whole([99]).next()


# ---------------------------------------------------------------------------------------------------------- contract
def test_a_batch_that_was_yielded_is_not_written_to_again():
    collector = LLMCollector(chats(3), shout, dialog_turns_per_batch=4, total_dialog_turns=20)
    batches, copies = [], []
    for batch in collector:
        batches.append(batch)
        copies.append([(row["text"].full, row["next", "text"].prompt) for row in batch.reshape(-1).unbind(0)])
    for batch, copied in zip(batches, copies, strict=True):
        assert [(row["text"].full, row["next", "text"].prompt) for row in batch.reshape(-1).unbind(0)] == copied


def test_what_a_policy_wrote_does_not_stand_in_the_next_prompt():
    # In text mode the environment keeps no tokens: those of the last turn would be read as the next prompt.
    policy = model_policy(tiny_llama(TOKENIZER))
    env = DatasetChatEnv(dataset=["1"], max_steps=1, input_mode="text", tokenizer=TOKENIZER)
    collector = LLMCollector(env, policy, yield_completed_trajectories=True)
    for _ in range(3):
        batch = collector.next()
        prompt = batch[0]["text"].prompt
        assert TOKENIZER.encode(prompt, add_special_tokens=False) == batch[0]["tokens", "prompt"].tolist()


def test_an_environment_that_was_given_stays_open_and_one_that_was_made_is_closed():
    given = chats(1)
    LLMCollector(given, shout, frames_per_batch=2).shutdown()
    assert not given.is_closed
    made = LLMCollector(lambda: chats(1), shout, frames_per_batch=2)
    made.shutdown()
    made.shutdown()
    assert made.env.is_closed
    with pytest.raises(CollectorError, match="shut down"):
        made.next()


def test_an_environment_may_be_named():
    policy = model_policy(tiny_llama(TOKENIZER))
    with LLMCollector(
        lambda: registry.envs.make("chat:letters", tokenizer=TOKENIZER, input_mode="text"), policy, frames_per_batch=1
    ) as collector:
        assert 0 <= collector.next()["next", "reward"].item() <= 1


def test_a_loop_that_was_left_can_be_taken_up_again():
    collector = LLMCollector(chats(2), shout, frames_per_batch=2, total_frames=8)
    for _ in collector:
        break
    assert sum(batch.numel() for batch in collector) == 6


def test_an_error_of_the_policy_reaches_the_caller_and_closes_the_collector():
    def broken(td):
        raise ValueError("the policy broke")

    collector = LLMCollector(chats(1), broken, frames_per_batch=2)
    with pytest.raises(ValueError, match="the policy broke"):
        next(iter(collector))
    assert collector.closed


def test_a_chat_without_questions_says_how_to_feed_it():
    collector = LLMCollector(ChatEnv(input_mode="text"), shout, frames_per_batch=1)
    with pytest.raises(KeyMissingError, match="DatasetChatEnv"):
        collector.next()


def test_a_policy_with_several_answers_is_told_to_use_repeats():
    policy = model_policy(tiny_llama(TOKENIZER), num_samples=2)
    with pytest.raises(CollectorError, match="repeats"):
        LLMCollector(chats(1), policy, frames_per_batch=2).next()


def test_the_same_seed_gives_the_same_questions_and_answers():
    drawn = []
    for seed in (3, 3, 4):
        env = registry.envs.make("chat:letters", tokenizer=TOKENIZER, num_envs=4, input_mode="text")
        collector = LLMCollector(env, model_policy(tiny_llama(TOKENIZER)), frames_per_batch=8)
        collector.set_seed(seed)
        torch.manual_seed(seed)
        batch = collector.next().reshape(-1)
        drawn.append([(row["query"], row["text"].full) for row in batch.unbind(0)])
    assert drawn[0] == drawn[1] != drawn[2]


def test_postproc_buffer_and_queue_get_the_batches():
    buffer = registry.buffers.get("tensordict_replay")(storage=registry.storages.get("list")(100))
    waiting = queue.Queue()
    collector = whole([1], turns=4, total_dialog_turns=8, replay_buffer=buffer, queue=waiting, postproc=lambda b: b[:3])
    assert list(collector) == [None, None]
    assert len(buffer) == 6 and waiting.qsize() == 2 and waiting.get().shape == (3,)


def test_a_replay_buffer_gets_rows_of_steps():
    buffer = registry.buffers.get("tensordict_replay")(storage=registry.storages.get("list")(100))
    assert list(LLMCollector(chats(3), shout, frames_per_batch=6, total_frames=6, replay_buffer=buffer)) == [None]
    assert len(buffer) == 6


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({}, "dialog_turns_per_batch"),
        ({"frames_per_batch": 3}, "does not divide by the 2"),
        ({"frames_per_batch": 2, "async_envs": True}, "start"),
        ({"frames_per_batch": 2, "stale": "keep"}, "'drop' or 'raise'"),
        ({"yield_only_last_steps": True, "yield_completed_trajectories": False}, "yield_completed_trajectories"),
        ({"yield_completed_trajectories": True, "flatten_data": False}, "traj_ids"),
        ({"frames_per_batch": 2, "policy_factory": lambda: shout}, "one policy"),
        ({"frames_per_batch": 2, "total_frames": 4, "total_dialog_turns": 6}, "are one thing"),
    ],
)
def test_options_that_contradict_each_other_are_refused(kwargs, match):
    with pytest.raises(CollectorError, match=match):
        LLMCollector(chats(1), shout, **kwargs)


def test_a_policy_may_be_made_by_a_factory():
    assert LLMCollector(chats(1), policy_factory=lambda: shout, frames_per_batch=2).next().shape == (2, 1)
    with pytest.raises(CollectorError, match="one policy"):
        LLMCollector(chats(1), frames_per_batch=2)


def test_an_environment_of_another_shape_is_refused():
    with pytest.raises(CollectorError, match="one batch dimension"):
        LLMCollector(lambda: "no environment", shout, frames_per_batch=1)


def test_a_line_is_printed_for_each_batch_on_demand(capsys):
    LLMCollector(chats(1), shout, frames_per_batch=2, verbose=True).next()
    assert "2 rows of 2 turns" in capsys.readouterr().out


# ---------------------------------------------------------------------------------------------------------- versions
def test_rows_carry_the_version_that_wrote_them():
    policy = model_policy(tiny_llama(TOKENIZER))
    collector = LLMCollector(chats(1), policy, frames_per_batch=2, track_policy_version=True)
    assert collector.next()["policy_version"].tolist() == [[0], [0]]
    collector.update_policy_weights_()
    batch = collector.next()
    assert batch["policy_version"].tolist() == [[1], [1]] and batch["policy_version"].dtype is torch.int64
    assert policy.policy_version == collector.policy_version == 1


def test_weights_of_another_model_are_copied():
    policy, learner = model_policy(tiny_llama(TOKENIZER, seed=0)), tiny_llama(TOKENIZER, seed=1)
    collector = LLMCollector(chats(1), policy, frames_per_batch=2)
    collector.update_policy_weights_(learner)
    collector.update_policy_weights_(policy=learner)
    for mine, theirs in zip(policy.model.parameters(), learner.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert collector.policy_version == policy.policy_version == 2
    with pytest.raises(TypeError, match="frequency"):
        collector.update_policy_weights_(frequency=3)


def test_a_weight_sync_brings_weights_and_version():
    policy, learner = model_policy(tiny_llama(TOKENIZER, seed=0)), tiny_llama(TOKENIZER, seed=1)
    sync = ModuleWeightSync([policy])
    collector = LLMCollector(chats(1), policy, frames_per_batch=2, weight_sync=sync, track_policy_version=True)
    with pytest.raises(CollectorError, match="whose weights"):
        collector.update_policy_weights_()
    collector.update_policy_weights_(learner)
    assert torch.equal(policy.model.lm_head.weight, learner.lm_head.weight)
    assert collector.next()["policy_version"].flatten().tolist() == [1, 1] and sync.version == 1


def test_a_missed_sync_raises():
    acting, other = model_policy(tiny_llama(TOKENIZER)), model_policy(tiny_llama(TOKENIZER))
    learner = tiny_llama(TOKENIZER, seed=1)
    sync = ModuleWeightSync([acting, other])
    collector = LLMCollector(chats(1), acting, frames_per_batch=2, weight_sync=sync)
    collector.next()
    sync.send(learner, worker_ids=[1])
    with pytest.raises(CollectorError, match="missed a weight sync: it acts with version 0, version 1"):
        collector.next()
    sync.send(learner)
    collector.next()

    elsewhere = LLMCollector(chats(1), acting, frames_per_batch=2, weight_sync=ModuleWeightSync([other]))
    with pytest.raises(CollectorError, match="missed a weight sync"):
        elsewhere.update_policy_weights_(learner)


def test_a_sync_made_earlier_is_no_missed_one():
    policy, learner = model_policy(tiny_llama(TOKENIZER)), tiny_llama(TOKENIZER, seed=1)
    sync = ModuleWeightSync([policy])
    sync.send(learner)
    collector = LLMCollector(chats(1), policy, frames_per_batch=2, weight_sync=sync)
    assert collector.next() is not None and collector.policy_version == 1


# --------------------------------------------------------------------------------------------------------- staleness
def test_dialogs_that_began_too_many_versions_ago_are_left_out_and_counted():
    # rows of 1 and 4 turns, one update after each batch of at least one turn
    collector = whole([4, 1, 1, 1, 1, 1], rows=2, max_policy_lag=2)
    batches = []
    for _ in range(4):
        batches.append(numbers(collector.next()))
        collector.update_policy_weights_()
    assert batches == [[1], [2], [3], [4]]  # the dialog 0 ended with the fourth batch, three versions late
    stats = collector.get_stats()
    assert (stats["stale_dialogs"], stats["stale_turns"], stats["max_lag"], stats["dialogs"]) == (1, 4, 3, 5)
    assert collector.frames == 8  # left out, but taken


def test_a_lag_at_the_bound_is_fresh():
    collector = whole([4, 1, 1, 1, 1, 1], rows=2, max_policy_lag=3)
    for _ in range(3):
        collector.next()
        collector.update_policy_weights_()
    assert 0 in numbers(collector.next()) and collector.get_stats()["stale_dialogs"] == 0


def test_stale_dialogs_may_be_refused():
    collector = whole([2, 1, 1], rows=2, max_policy_lag=0, stale="raise")
    collector.next()
    collector.update_policy_weights_()
    with pytest.raises(CollectorError, match="dialog 0 began 1 policy versions ago"):
        collector.next()


def test_new_dialogs_with_each_batch_give_the_old_ones_up_and_say_so():
    collector = whole([3, 1, 1, 3, 1], rows=2, reset_at_each_iter=True)
    assert numbers(collector.next()) == [1]
    second = numbers(collector.next())
    assert 0 not in second and collector.get_stats()["abandoned_dialogs"] == 1


# ------------------------------------------------------------------------------------------------------- checkpoints
def test_a_resumed_collector_goes_on_with_the_next_question_and_finishes_the_budget():
    def made():
        env = registry.envs.make("chat:letters", num_envs=4, input_mode="text", seed=0)
        return LLMCollector(
            env, shout, dialog_turns_per_batch=8, yield_completed_trajectories=True, total_dialog_turns=40
        )

    straight = [(row["query"], row["group_id"].item(), number) for b in made() for row, number in rows(b)]
    first = made()
    before = [pair for _ in range(2) for pair in rows(first.next())]
    first.update_policy_weights_()
    second = made()
    second.load_state_dict(first.state_dict())
    after = [pair for batch in second for pair in rows(batch)]
    assert [(row["query"], row["group_id"].item(), number) for row, number in before + after] == straight
    assert second.policy_version == 1 and second.frames == 40


def rows(batch):
    return list(zip(batch.unbind(0), numbers(batch), strict=True))


def test_ids_of_dialogs_that_were_under_way_are_not_given_again():
    first = whole([3, 1], rows=2)
    ended = numbers(first.next())
    second = whole([3, 1], rows=2)
    second.load_state_dict(first.state_dict())
    second.reset()
    again = numbers(second.next()) + numbers(second.next())
    assert not set(ended) & set(again)


# --------------------------------------------------------------------------------------------------- beside training
class Counter:
    """A weight sync that only counts."""

    version = 0

    def send(self, weights, worker_ids=None):
        self.version += 1
        return self.version


def test_a_thread_collects_into_a_queue_and_never_runs_ahead_of_the_learner():
    waiting, sync = queue.Queue(), Counter()
    collector = whole(
        [1],
        turns=2,
        total_dialog_turns=20,
        queue=waiting,
        weight_sync=sync,
        track_policy_version=True,
        max_policy_lag=2,
    )
    collector.start()
    lags = []
    for update in range(10):
        batch = waiting.get(timeout=60)
        lags += [update - version for version in batch["policy_version"].tolist()]
        collector.update_policy_weights_("weights")
    assert collector.get_stats()["stale_dialogs"] == 0
    assert max(lags) <= 2 and len(lags) == 20
    collector.shutdown()
    assert not collector.is_running() and waiting.empty()


def test_a_queue_that_nobody_empties_does_not_keep_the_thread():
    waiting = queue.Queue(maxsize=1)
    collector = whole([1], turns=2, queue=waiting, weight_sync=Counter())
    collector.start()
    waiting.get(timeout=60)
    collector.shutdown()
    assert not collector.is_running()


def test_an_error_in_the_thread_is_told_at_the_next_call(monkeypatch):
    def broken(td):
        raise EnvError("the tool broke")

    printed = []
    monkeypatch.setattr(threading, "excepthook", printed.append)

    collector = LLMCollector(
        chats(1), broken, yield_completed_trajectories=True, queue=queue.Queue(), weight_sync=Counter()
    )
    collector.start()
    collector._background.join(60)
    for call in (collector.is_running, lambda: collector.update_policy_weights_("weights")):
        with pytest.raises(CollectorError, match="EnvError: the tool broke"):
            call()
    collector.shutdown()  # it was told
    assert len(printed) == 1


def test_an_error_that_nobody_was_told_is_raised_by_shutdown(monkeypatch):
    def broken(td):
        raise EnvError("the tool broke")

    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    collector = LLMCollector(
        chats(1), broken, yield_completed_trajectories=True, queue=queue.Queue(), weight_sync=Counter()
    )
    collector.start()
    collector._background.join(60)
    with pytest.raises(CollectorError, match="EnvError: the tool broke"):
        collector.shutdown()
    collector.shutdown()


def test_a_thread_needs_a_place_for_batches_and_a_sync():
    with pytest.raises(CollectorError, match="replay_buffer or a queue"):
        whole([1]).start()
    with pytest.raises(CollectorError, match="weight_sync"):
        whole([1], queue=queue.Queue()).start()
    with pytest.raises(CollectorError, match="at least 1"):
        whole([1], queue=queue.Queue(), weight_sync=Counter()).start(batches_per_update=0)


def test_an_empty_batch_size_is_a_clear_error():
    with pytest.raises(CollectorError, match="at least one frame"):
        LLMCollector(chats(1), shout, frames_per_batch=0)


def test_a_text_of_a_td_is_no_batch():
    def one_row(td):
        return TensorDict({}, batch_size=[1])

    with pytest.raises(CollectorError, match="one turn for each"):
        LLMCollector(chats(1), one_row, frames_per_batch=2).next()
