"""The provider "chat": tasks by name."""

import pytest

from rl_core import registry
from rl_core.errors import UnknownNameError
from rl_core.registry import EnvProvider
from rl_llm.data.char_tokenizer import char_tokenizer
from rl_llm.data.containers import Text
from rl_llm.envs.dataset import DatasetChatEnv
from rl_llm.envs.provider import ChatProvider


def answer(td, texts):
    full = [prompt + text for prompt, text in zip(td["text"].texts("prompt"), texts, strict=True)]
    return td.set("text", Text(prompt=td["text"].prompt, response=texts, full=full, batch_size=td.batch_size))


def test_the_registry_finds_it():
    provider = registry.envs.provider("chat")
    assert isinstance(provider, EnvProvider) and registry.envs.ids("chat") == ["addition", "letters"]
    assert "modulo ten" in registry.envs.describe("chat:addition")


def test_a_task_has_its_questions_and_its_reward():
    env = ChatProvider().make("addition", num_envs=3, input_mode="text", seed=0)
    assert isinstance(env, DatasetChatEnv) and env.batch_size == (3,)
    td = env.reset()
    right = list(td["answer"])
    td = env.step(answer(td, [right[0], "x", f" {right[2]} "]))
    assert td["next", "reward"].flatten().tolist() == [1.0, 0.0, 1.0] and td["next", "done"].all()


def test_repeats_stand_side_by_side_unless_told_otherwise():
    td = ChatProvider().make("letters", num_envs=2, repeats=3, seed=0).reset()
    assert td.batch_size == (6,) and td["group_id"].tolist() == [0, 0, 0, 1, 1, 1]
    td = ChatProvider().make("letters", num_envs=2, repeats=3, group_repeats=False, seed=0).reset()
    assert td.batch_size == (2,) and td["group_id"].tolist() == [0, 0]
    assert ChatProvider().make("letters", num_envs=2).batch_size == (2,)


def test_data_and_reward_may_be_others():
    env = ChatProvider().make(
        "letters",
        dataset=[{"query": "q", "answer": "a"}],
        reward=[lambda completion, answer: 5.0],
        tokenizer=char_tokenizer(),
        input_mode="text",
    )
    td = env.reset()
    assert td["query"] == ["q"]


def test_an_unknown_task_is_named_with_those_there_are():
    with pytest.raises(UnknownNameError, match=r"(?s)leters.*letters"):
        registry.envs.make("chat:leters")
