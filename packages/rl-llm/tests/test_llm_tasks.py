"""Tasks for tiny models: letters and addition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_core.errors import SpecError
from rl_llm.data.char_tokenizer import char_tokenizer
from rl_llm.data.containers import ChatHistory
from rl_llm.data.history import History
from rl_llm.envs.dataset import DatasetChatEnv
from rl_llm.envs.tasks.addition import addition_data, addition_reward
from rl_llm.envs.tasks.letters import letters_data, letters_reward


def test_there_is_one_prompt_for_each_of_26_letters():
    data = letters_data()
    assert len(data) == 26 and all(sample["query"] == sample["answer"] for sample in data)


@pytest.mark.parametrize(("text", "reward"), [("a", 1.0), ("ab", 0.5), ("bcd", 0.0), ("", 0.0), ("aAaa", 0.75)])
def test_the_letters_reward_is_the_share_of_equal_characters(text, reward):
    assert letters_reward(text, "a") == reward


def test_all_sums_of_two_digits_are_there_with_the_right_answers():
    data = addition_data()
    assert len(data) == 100
    assert {"query": "7+8=", "answer": "5"} in data and {"query": "0+0=", "answer": "0"} in data


@given(st.text(max_size=5), st.sampled_from("0123456789"))
def test_addition_pays_for_the_exact_answer_only(text, answer):
    assert addition_reward(text, answer) == (1.0 if text.strip() == answer else 0.0)


def test_an_expression_is_not_evaluated():
    assert addition_reward("3+2", "5") == 0.0
    assert addition_reward("__import__('os')", "5") == 0.0


def test_ranges_are_checked():
    with pytest.raises(SpecError):
        addition_data(10)
    with pytest.raises(SpecError):
        letters_data("aa")


@pytest.mark.parametrize(
    ("data", "function", "good"),
    [(letters_data(), letters_reward, lambda answer: answer * 4), (addition_data(), addition_reward, lambda a: a)],
)
def test_a_perfect_policy_gets_the_highest_reward_in_the_environment(data, function, good):
    def policy(td):
        turn = History.from_chats([{"role": "assistant", "content": good(answer)} for answer in td["answer"]])
        history = td["history"].prompt
        td["history"] = ChatHistory(prompt=history, full=history.append(turn, inplace=False), batch_size=td.batch_size)
        return td

    env = DatasetChatEnv(dataset=data, seed=0, num_envs=3, tokenizer=char_tokenizer(), reward=[function])
    batch = env.rollout(2, policy, break_when_any_done=False)
    assert batch["next", "reward"].flatten().tolist() == [1.0] * 6
    assert batch["next", "terminated"].all()
