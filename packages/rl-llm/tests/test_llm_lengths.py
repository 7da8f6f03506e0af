"""LengthPolicy: prompts that are too long, decided where data are read."""

import logging

import pytest

from rl_core.errors import SpecError
from rl_llm.data.char_tokenizer import char_tokenizer
from rl_llm.data.containers import rows_of
from rl_llm.data.history import History
from rl_llm.envs.dataset import DatasetChatEnv
from rl_llm.envs.lengths import LengthPolicy

TOKENIZER = char_tokenizer()
# <im_start> "user\n" q <im_end> "\n" <im_start> "assistant\n": 1 + 5 + len(q) + 1 + 1 + 1 + 10
OVERHEAD = 19


def test_a_prompt_counts_with_its_template_and_the_header_of_the_answer():
    policy = LengthPolicy(TOKENIZER, 100)
    assert policy.length("abc") == OVERHEAD + 3
    env = DatasetChatEnv(dataset=["abc"], tokenizer=TOKENIZER)
    assert len(rows_of(env.reset()["tokens"], "prompt")[0]) == OVERHEAD + 3
    # <im_start> "system\n" "be" <im_end> "\n"
    assert LengthPolicy(TOKENIZER, 100, system_prompt="be").length("abc") == OVERHEAD + 3 + 12


def test_the_limit_itself_is_too_long():
    policy = LengthPolicy(TOKENIZER, OVERHEAD + 3)
    assert policy.apply({"query": "ab"}) == {"query": "ab"}
    assert policy.apply({"query": "abc"}) is None
    assert policy.get_stats() == {"seen": 2, "dropped": 1, "truncated": 0, "longest": OVERHEAD + 3}


def test_dropped_prompts_never_reach_the_environment_and_make_no_group():
    policy = LengthPolicy(TOKENIZER, OVERHEAD + 3, "drop")
    env = DatasetChatEnv(dataset=["a", "much too long", "b"], shuffle=False, tokenizer=TOKENIZER, lengths=policy)
    rows = [env.reset() for _ in range(3)]
    assert [(td["query"][0], td["group_id"].item()) for td in rows] == [("a", 0), ("b", 1), ("a", 2)]
    assert policy.get_stats()["dropped"] == 1


@pytest.mark.parametrize(("keep", "left"), [("start", "ab"), ("end", "de")])
def test_truncation_cuts_the_last_content_below_the_limit(keep, left):
    policy = LengthPolicy(TOKENIZER, OVERHEAD + 3, "truncate", keep=keep)
    assert policy.apply({"query": "abcde", "answer": 1}) == {"query": left, "answer": 1}
    assert policy.get_stats()["truncated"] == 1


def test_truncation_keeps_the_form_of_a_chat_and_its_other_messages():
    chat = [{"role": "user", "content": "u"}, {"role": "user", "content": "abcde"}]
    limit = LengthPolicy(TOKENIZER, 10_000).length(chat) - 2
    policy = LengthPolicy(TOKENIZER, limit, "truncate")
    assert policy.apply({"query": chat})["query"] == [chat[0], {"role": "user", "content": "ab"}]
    history = policy.apply({"query": History.from_chats(chat)})["query"]
    assert history.to_chats() == [chat[0], {"role": "user", "content": "ab"}]


def test_a_prompt_that_cannot_be_cut_short_enough_is_an_error():
    with pytest.raises(SpecError, match="cannot be cut below"):
        LengthPolicy(TOKENIZER, OVERHEAD, "truncate").apply({"query": "abc"})


def test_raise_names_both_lengths():
    with pytest.raises(SpecError, match=f"{OVERHEAD + 3} tokens, the limit is {OVERHEAD + 1}"):
        LengthPolicy(TOKENIZER, OVERHEAD + 1, "raise").apply({"query": "abc"})


def test_data_without_a_prompt_that_fits_are_an_error_and_not_an_endless_search():
    policy = LengthPolicy(TOKENIZER, 5)
    with pytest.raises(SpecError, match="short enough"):
        DatasetChatEnv(dataset=["a"], lengths=policy).reset()


def test_the_first_long_prompt_is_a_warning_and_later_ones_are_information(caplog):
    policy = LengthPolicy(TOKENIZER, OVERHEAD + 1)
    with caplog.at_level(logging.INFO, logger="rl_llm.envs.lengths"):
        policy.apply({"query": "abc"})
        policy.apply({"query": "abcd"})
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert f"{OVERHEAD + 3} tokens" in caplog.messages[0]


@pytest.mark.parametrize("options", [{"action": "ignore"}, {"keep": "middle"}, {"limit": 0}])
def test_options_are_checked(options):
    with pytest.raises(SpecError):
        LengthPolicy(TOKENIZER, **{"limit": 10, **options})
