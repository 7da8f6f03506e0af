"""DatasetChatEnv and DataLoadingPrimer: order, repeats, groups, and resuming."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_core.errors import CheckpointError, EnvError, SpecError
from rl_llm.data.containers import ChatHistory
from rl_llm.data.history import History
from rl_llm.envs.chat import ChatEnv
from rl_llm.envs.dataset import DataLoadingPrimer, DatasetChatEnv
from rl_llm.envs.prompt_stream import PromptStream
from rl_llm.envs.sources import LoaderSource, SequenceSource

DATA = [{"query": letter, "answer": letter.upper()} for letter in "abcde"]


def answer(td):
    """A policy that says "x" and nothing else."""
    turn = History.from_chats([{"role": "assistant", "content": "x"}] * td.batch_size[0])
    history = td["history"].prompt
    td["history"] = ChatHistory(prompt=history, full=history.append(turn, inplace=False), batch_size=td.batch_size)
    return td


def drawn(env, resets):
    """(query, group id) of so many resets."""
    rows = []
    for _ in range(resets):
        td = env.reset()
        rows += list(zip(td["query"], td["group_id"].tolist(), strict=True))
    return rows


def test_a_reset_brings_a_question_and_all_columns():
    env = DatasetChatEnv(dataset=DATA, shuffle=False, num_envs=2, system_prompt="s")
    td = env.reset()
    assert (td["query"], td["answer"], td["group_id"].tolist()) == (["a", "b"], ["A", "B"], [0, 1])
    assert td["group_id"].dtype is torch.int64 and td["group_id"].shape == (2,)
    assert td["history"].prompt.to_chats()[1] == [{"role": "system", "content": "s"}, {"role": "user", "content": "b"}]


def test_every_epoch_holds_every_sample_once_and_the_stream_does_not_end():
    env = DatasetChatEnv(dataset=DATA, seed=3)
    rows = drawn(env, 15)
    epochs = [[query for query, _ in rows[i : i + 5]] for i in (0, 5, 10)]
    assert [sorted(epoch) for epoch in epochs] == [list("abcde")] * 3
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_the_seed_decides_the_order():
    first, same, other = (drawn(DatasetChatEnv(dataset=DATA * 4, seed=seed), 20) for seed in (1, 1, 2))
    assert first == same != other
    env = DatasetChatEnv(dataset=DATA * 4, seed=9)
    env.set_seed(1)
    assert drawn(env, 20) == first


def test_repeats_spread_over_resets_by_default():
    env = DatasetChatEnv(dataset=DATA, shuffle=False, num_envs=2, batch_size_dl=2, repeats=2)
    assert drawn(env, 3) == [("a", 0), ("b", 1), ("a", 0), ("b", 1), ("c", 2), ("d", 3)]


def test_grouped_repeats_stand_side_by_side_and_widen_the_batch():
    env = DatasetChatEnv(dataset=DATA, shuffle=False, num_envs=2, repeats=3, group_repeats=True)
    assert env.batch_size == (6,)
    assert drawn(env, 1) == [("a", 0)] * 3 + [("b", 1)] * 3


@pytest.mark.parametrize("repeats", [None, 1])
def test_one_repeat_is_none(repeats):
    env = DatasetChatEnv(dataset=DATA, shuffle=False, repeats=repeats)
    assert [query for query, _ in drawn(env, 3)] == ["a", "b", "c"]


def test_duplicate_prompts_and_later_epochs_are_groups_of_their_own():
    env = DatasetChatEnv(dataset=["same", "same"], shuffle=False, repeats=2, group_repeats=True)
    assert drawn(env, 3) == [("same", 0)] * 2 + [("same", 1)] * 2 + [("same", 2)] * 2


@settings(max_examples=25, deadline=None)
@given(
    before=st.integers(0, 12),
    repeats=st.integers(1, 3),
    block=st.integers(1, 4),
    grouped=st.booleans(),
    shuffle=st.booleans(),
)
def test_a_loaded_stream_goes_on_where_it_was_saved(before, repeats, block, grouped, shuffle):
    def stream(seed):
        source = SequenceSource(DATA, block=block, shuffle=shuffle, seed=seed)
        return PromptStream(source, repeats=repeats, group_repeats=grouped)

    first, second = stream(0), stream(1)
    first.take(before)
    second.load_state_dict(first.state_dict())
    assert second.take(20) == first.take(20)


def test_the_state_of_the_environment_holds_the_place_in_the_data():
    first = DatasetChatEnv(dataset=DATA, seed=0, num_envs=2, repeats=2)
    drawn(first, 4)
    second = DatasetChatEnv(dataset=DATA, seed=5, num_envs=2, repeats=2)
    second.load_state_dict(first.state_dict())
    assert drawn(second, 5) == drawn(first, 5)


def test_a_place_in_other_data_is_refused():
    env = DatasetChatEnv(dataset=DATA[:3])
    with pytest.raises(CheckpointError, match="5"):
        env.load_state_dict(DatasetChatEnv(dataset=DATA).state_dict())


def test_reset_dataloader_begins_anew():
    env = DatasetChatEnv(dataset=DATA, seed=0)
    first = drawn(env, 3)
    env.reset_dataloader()
    assert drawn(env, 3) == first


def test_an_iterable_is_begun_anew_and_resumed_too():
    class Lines:
        def __iter__(self):
            return iter(DATA[:3])

    env = DatasetChatEnv(dataset=Lines(), num_envs=2)
    assert [query for query, _ in drawn(env, 2)] == ["a", "b", "c", "a"]
    other = DatasetChatEnv(dataset=Lines(), num_envs=2)
    other.load_state_dict(env.state_dict())
    assert drawn(other, 3) == drawn(env, 3)


def test_an_empty_or_one_time_iterable_is_an_error_and_not_an_endless_loop():
    with pytest.raises(SpecError, match="one-time"):
        drawn(DatasetChatEnv(dataset=iter(DATA[:1])), 2)
    with pytest.raises(SpecError, match="empty"):
        DatasetChatEnv(dataset=[])


def test_a_single_turn_ends_by_max_steps_and_the_next_prompt_comes_by_itself():
    env = DatasetChatEnv(dataset=DATA, shuffle=False, num_envs=2)
    data = env.rollout(2, answer, break_when_any_done=False)
    assert data["query"] == [["a", "c"], ["b", "d"]]
    assert data["group_id"].tolist() == [[0, 2], [1, 3]]
    assert data["next", "truncated"].all()


def test_only_rows_that_ended_draw_a_prompt():
    env = DatasetChatEnv(dataset=DATA, shuffle=False, num_envs=2, max_steps=None)
    td = env.step(answer(env.reset()))
    td["next", "done"] = td["next", "terminated"] = torch.tensor([[False], [True]])
    td = env.maybe_reset(env.step_mdp(td))
    assert (td["query"], td["answer"], td["group_id"].tolist()) == (["a", "c"], ["A", "C"], [0, 2])
    assert [len(chat) for chat in td["history"].prompt.to_chats()] == [2, 1]
    assert drawn(env, 1) == [("d", 3), ("e", 4)]


def test_a_question_given_to_reset_wins_and_draws_nothing():
    env = DatasetChatEnv(dataset=DATA, shuffle=False)
    td = env.reset(TensorDict({"query": ["mine"]}, batch_size=[1]))
    assert td["history"].prompt.to_chats()[0][0]["content"] == "mine"
    assert drawn(env, 1) == [("a", 0)]


@pytest.mark.parametrize("name", ["text", "prompt", "question"])
def test_usual_names_of_the_question_are_taken(name):
    assert drawn(DatasetChatEnv(dataset=[{name: "q"}]), 1) == [("q", 0)]
    env = DatasetChatEnv(dataset=[{name: "q"}], data_key="task")
    assert env.reset()["task"] == ["q"]


def test_samples_without_a_question_or_of_a_strange_kind_are_refused():
    with pytest.raises(SpecError, match=r"columns \['answer'\] and none named 'query'"):
        DatasetChatEnv(dataset=[{"answer": "q"}]).reset()
    with pytest.raises(SpecError, match="a sample is a dict"):
        DatasetChatEnv(dataset=[3]).reset()
    with pytest.raises(SpecError, match="is a name; load the data first"):
        DatasetChatEnv(dataset="some/dataset")
    with pytest.raises(SpecError, match="different columns"):
        DatasetChatEnv(dataset=[{"query": "a"}, {"query": "b", "x": 1}], num_envs=2).reset()


def test_collate_fn_changes_samples_first():
    env = DatasetChatEnv(dataset=["a"], collate_fn=lambda text: {"query": text * 2, "size": 2})
    assert env.reset()["query"] == ["aa"] and env.reset()["size"] == [2]


def test_the_system_prompt_of_a_class_is_the_default():
    class Polite(DatasetChatEnv):
        SYSTEM_PROMPT = "please"

    assert Polite(dataset=DATA).reset()["history"].prompt.to_chats()[0][0] == {"role": "system", "content": "please"}


def test_chats_and_tensors_are_columns_too():
    chat = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "v"}, {"role": "user", "content": "w"}]
    env = DatasetChatEnv(dataset=[{"prompt": chat, "level": torch.tensor([3])}], num_envs=2)
    td = env.reset()
    assert td["history"].prompt.to_chats() == [chat, chat]
    assert td["level"].tolist() == [[3], [3]]


# ------------------------------------------------------------------------------------------------------- the primer
@pytest.mark.parametrize(
    "loader",
    [
        [{"query": ["a", "b"], "n": [1, 2]}, {"query": ["c"], "n": [3]}],
        [[{"query": "a", "n": 1}, {"query": "b", "n": 2}], [{"query": "c", "n": 3}]],
        [{"query": "a", "n": 1}, {"query": "b", "n": 2}, {"query": "c", "n": 3}],
        torch.utils.data.DataLoader(
            [{"query": q, "n": i + 1} for i, q in enumerate("abc")], batch_size=2, collate_fn=lambda batch: batch
        ),
    ],
)
def test_batches_of_every_usual_form_are_read(loader):
    env = ChatEnv(batch_size=[1]).append_transform(DataLoadingPrimer(loader))
    rows = [env.reset() for _ in range(4)]
    assert [td["query"][0] for td in rows] == ["a", "b", "c", "a"]
    assert [td["n"][0] for td in rows] == [1, 2, 3, 1]


def test_a_factory_may_stand_for_the_loader_but_not_beside_it():
    primer = DataLoadingPrimer(dataloader_factory=lambda: DATA)
    assert ChatEnv().append_transform(primer).reset()["query"] == ["a"]
    with pytest.raises(SpecError, match="exactly one"):
        DataLoadingPrimer(DATA, dataloader_factory=lambda: DATA)
    with pytest.raises(SpecError, match="exactly one"):
        DataLoadingPrimer()


def test_groups_that_do_not_fit_into_the_batch_are_refused():
    env = ChatEnv(batch_size=[3]).append_transform(DataLoadingPrimer(DATA, repeats=2, group_repeats=True))
    with pytest.raises(SpecError, match="multiple of so many chats"):
        env.reset()
    env = ChatEnv(batch_size=[3]).append_transform(DataLoadingPrimer(DATA, batch_size=[2]))
    with pytest.raises(SpecError, match="one for batch size"):
        env.reset()


def test_a_stack_method_makes_the_columns():
    env = ChatEnv(batch_size=[2]).append_transform(
        DataLoadingPrimer([{"query": "a", "x": torch.ones(2)}], stack_method=lambda rows: torch.stack(rows))
    )
    assert env.reset()["x"].shape == (2, 2)


def test_a_resumed_loader_that_has_become_shorter_is_an_error():
    source = LoaderSource(DATA)
    for _ in range(4):
        source.next_block()
    with pytest.raises(CheckpointError, match="gives 2"):
        LoaderSource(DATA[:2]).load_state_dict(source.state_dict())


@pytest.mark.parametrize(("turns", "expected"), [(1, [1.0]), (3, [0.0, 0.0, 1.0])])
def test_a_reward_scores_a_chat_when_it_ends_and_does_not_end_it(turns, expected):
    env = DatasetChatEnv(dataset=DATA, max_steps=turns, reward=[lambda completion, answer: float(completion == "x")])
    data = env.rollout(9, answer)
    assert data["next", "reward"].flatten().tolist() == expected
    assert data["next", "done"].flatten().tolist() == [False] * (turns - 1) + [True]


def test_a_policy_that_replaces_the_history_is_told_where_to_write():
    env = DatasetChatEnv(dataset=DATA)
    td = env.reset()
    td["history"] = ChatHistory(full=answer(td.copy())["history"].full, batch_size=td.batch_size)
    with pytest.raises(EnvError, match="write its answer into the ChatHistory"):
        env.step(td)
