"""RewardFunctions: both calling conventions, weights, functions that are not applicable, and errors."""

import math

import pytest
import torch
from tensordict import TensorDict

from rl_core.errors import EnvError, SpecError
from rl_llm.data.char_tokenizer import char_tokenizer
from rl_llm.data.containers import ChatHistory, Text, Tokens, rows_of
from rl_llm.data.history import History
from rl_llm.envs.chat import ChatEnv
from rl_llm.envs.dataset import DatasetChatEnv
from rl_llm.envs.rewards import RewardFunctions

TOKENIZER = char_tokenizer()
DATA = [{"query": "q0", "answer": "a", "level": 1}, {"query": "q1", "answer": "b", "level": 2}]


def policy(*answers):
    def act(td):
        turn = History.from_chats([{"role": "assistant", "content": answer} for answer in answers])
        history = td["history"].prompt
        full = history.append(turn, inplace=False)
        td["history"] = ChatHistory(prompt=history, full=full, batch_size=td.batch_size)
        return td

    return act


def scored(functions, *answers, **options):
    env = DatasetChatEnv(dataset=DATA, shuffle=False, num_envs=2, reward=RewardFunctions(functions, **options))
    return env.rollout(1, policy(*answers))[:, 0]["next"]


def exact(completion, answer):
    return float(completion == answer)


def size(completions, **kwargs):
    return [float(len(completion)) for completion in completions]


def test_a_plain_function_gets_one_completion_and_the_columns_that_it_names():
    nxt = scored([exact], "a", "x")
    assert nxt["reward"].tolist() == [[1.0], [0.0]] == nxt["rewards", "exact"].tolist()
    assert nxt["reward"].dtype is torch.float32


def test_a_batch_function_gets_keyword_lists_of_everything():
    seen = {}

    def record(prompts, completions, **kwargs):
        seen.update(kwargs, prompts=prompts, completions=completions)
        return [0.0, 0.0]

    scored([record], "x", "yy", trainer_state="state")
    assert (seen["prompts"], seen["completions"]) == (["q0", "q1"], ["x", "yy"])
    assert (seen["answer"], seen["level"], seen["trainer_state"]) == (["a", "b"], [1, 2], "state")
    assert "query" not in seen and callable(seen["log_metric"]) and callable(seen["log_extra"])


def test_messages_are_given_where_asked_for():
    seen = {}

    def record(prompts, completions, **kwargs):
        seen.update(prompts=prompts, completions=completions)
        return [0.0, 0.0]

    scored([record], "x", "y", completion_format="messages")
    assert seen["prompts"][0] == [{"role": "user", "content": "q0"}]
    assert seen["completions"][1] == [{"role": "assistant", "content": "y"}]


def test_only_the_keywords_of_a_closed_signature_are_passed():
    assert scored([lambda completions, level: level], "x", "y")["reward"].tolist() == [[1.0], [2.0]]


def test_async_functions_are_awaited():
    async def later(completion, answer):
        return exact(completion, answer)

    assert scored([later], "a", "a")["reward"].tolist() == [[1.0], [0.0]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # exact = (1, 0), size = (1, 3)
        ({}, [1.0, 1.5]),
        ({"combine": "sum"}, [2.0, 3.0]),
        ({"weights": [3.0, 1.0]}, [1.0, 0.75]),
        ({"weights": [2.0, -1.0], "combine": "sum"}, [1.0, -3.0]),
        ({"weights": [2.0, -1.0]}, [1 / 3, -1.0]),
    ],
)
def test_components_are_combined_by_weight(options, expected):
    nxt = scored([exact, size], "a", "xyz", **options)
    assert nxt["reward"].flatten().tolist() == pytest.approx(expected)
    assert nxt["rewards", "size"].flatten().tolist() == [1.0, 3.0]


def test_a_function_that_is_not_applicable_has_no_part_in_the_mean():
    def sometimes(completions, **kwargs):
        return [None, 5.0]

    nxt = scored([exact, sometimes], "a", "x", weights=[1.0, 3.0])
    assert nxt["reward"].flatten().tolist() == pytest.approx([1.0, 15 / 4])
    assert math.isnan(nxt["rewards", "sometimes"][0]) and nxt["rewards", "sometimes"][1] == 5.0
    assert scored([exact, sometimes], "a", "x", combine="sum")["reward"].flatten().tolist() == [1.0, 5.0]


def test_a_row_without_any_applicable_function_is_an_error():
    def never(completion):
        return None

    with pytest.raises(EnvError, match="applicable to row 0: never all gave None"):
        scored([never], "x", "y")


def test_a_function_that_raises_is_named_and_its_cause_kept():
    def broken(completion):
        raise ValueError("no digits")

    with pytest.raises(EnvError, match="'broken' raised ValueError for row 0: no digits") as caught:
        scored([broken], "x", "y")
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ([1.0], "gave 1 values for 2 completions"),
        (1.0, "gave float for 2 completions"),
        ("ab", "gave str"),
        ([1.0, float("nan")], "gave nan for row 1"),
        ([1.0, float("inf")], "gave inf for row 1"),
        ([1.0, "much"], "gave 'much' for row 1"),
    ],
)
def test_results_of_another_form_are_refused(result, words):
    def odd(completions, **kwargs):
        return result

    with pytest.raises(EnvError, match=words):
        scored([odd], "x", "y")


def test_tensors_and_truth_values_are_numbers():
    assert scored([lambda completions, **kw: torch.tensor([0.5, 1.0])], "x", "y")["reward"].tolist() == [[0.5], [1.0]]
    assert scored([lambda completion: completion == "x"], "x", "y")["reward"].tolist() == [[1.0], [0.0]]


def test_a_function_that_needs_an_unknown_column_is_told_what_there_is():
    with pytest.raises(SpecError, match=r"needs \['solution'\].*answer"):
        scored([lambda completion, solution: 1.0], "x", "y")


def test_signatures_and_options_are_checked_at_construction():
    with pytest.raises(SpecError, match="give it a parameter 'completion'"):
        RewardFunctions([lambda text: 1.0])
    with pytest.raises(SpecError, match="distinct names"):
        RewardFunctions([exact, exact])
    with pytest.raises(SpecError, match="at least one function"):
        RewardFunctions([])
    with pytest.raises(SpecError, match="one weight"):
        RewardFunctions([exact], weights=[1.0, 2.0])
    with pytest.raises(SpecError, match="all 0"):
        RewardFunctions([exact], weights=[0.0])
    with pytest.raises(SpecError, match="combine"):
        RewardFunctions([exact], combine="max")
    assert [call.name for call in RewardFunctions([("first", exact), ("second", exact)]).calls] == ["first", "second"]


def test_metrics_and_extra_columns_are_collected_until_they_are_read():
    def logs(completion, log_metric, log_extra):
        log_metric("length", len(completion))
        log_extra("said", [completion])
        return 0.0

    env = DatasetChatEnv(dataset=DATA, shuffle=False, num_envs=2, reward=RewardFunctions([logs]))
    env.rollout(1, policy("a", "bbb"))
    rewards = env.transform[1]
    assert rewards.pop_metrics() == {"length": 2.0} and rewards.pop_metrics() == {}
    assert rewards.pop_extras() == {"said": ["a", "bbb"]} and rewards.pop_extras() == {}


def test_a_scored_turn_ends_the_episode_as_terminated():
    nxt = scored([exact], "a", "b")
    assert nxt["done"].all() and nxt["terminated"].all() and not nxt["truncated"].any()


def test_without_set_done_rows_are_scored_when_they_end():
    seen = []

    def record(completions, **kwargs):
        seen.append(completions)
        return [1.0] * len(completions)

    rewards = RewardFunctions([record], set_done=False, completion_format="messages")
    env = DatasetChatEnv(dataset=DATA, shuffle=False, num_envs=2, max_steps=2, reward=rewards)
    data = env.rollout(5, policy("a", "b"))
    assert data["next", "reward"].squeeze(-1).tolist() == [[0.0, 1.0], [0.0, 1.0]]
    assert data["next", "rewards", "record"].isnan().squeeze(-1).tolist() == [[True, False], [True, False]]
    assert data["next", "truncated"].squeeze(-1).tolist() == [[False, True]] * 2
    assert [[message["content"] for message in chat] for chat in seen[0]] == [["a", "a"], ["b", "b"]]
    assert len(seen) == 1


def test_the_reward_spec_names_every_component():
    env = DatasetChatEnv(dataset=DATA, num_envs=2, reward=[exact, size])
    assert set(env.reward_keys) == {"reward", ("rewards", "exact"), ("rewards", "size")}
    assert env.full_reward_spec["rewards", "exact"].shape == (2, 1)


def test_text_mode_scores_the_text_without_its_end_of_turn():
    env = ChatEnv(input_mode="text").append_transform(RewardFunctions([exact]))
    td = env.reset(TensorDict({"query": ["q"], "answer": ["a"]}, batch_size=[1]))
    prompt = td["text"].texts("prompt")
    td["text"] = Text(prompt=prompt, full=[prompt[0] + "a<|im_end|>"], batch_size=[1])
    assert env.step(td)["next", "reward"].item() == 1.0


def test_tokens_mode_decodes_what_was_sampled_and_hands_ids_out():
    seen = {}

    def record(completions, completion_ids, **kwargs):
        seen.update(completions=completions, ids=completion_ids)
        return [1.0]

    env = ChatEnv(input_mode="tokens", tokenizer=TOKENIZER).append_transform(
        RewardFunctions([record], tokenizer=TOKENIZER)
    )
    td = env.reset(TensorDict({"query": ["q"]}, batch_size=[1]))
    ids = TOKENIZER.encode("ab<|im_end|>", add_special_tokens=False)
    td["tokens"] = Tokens.from_rows(prompt=rows_of(td["tokens"], "prompt"), response=[torch.tensor(ids)])
    env.step(td)
    assert seen == {"completions": ["ab"], "ids": [ids]}


def test_functions_that_need_ids_say_so_where_there_are_none():
    with pytest.raises(SpecError, match=r"needs \['completion_ids'\]"):
        scored([lambda completion_ids: [1.0, 1.0]], "x", "y")
