"""Generation settings: names of two engines, ranges, conflicts."""

from __future__ import annotations

import pytest

from rl_core.errors import PolicyError
from rl_llm.policies.generation_kwargs import read_generation_kwargs


def test_both_engines_names_mean_the_same():
    ours = read_generation_kwargs({"max_new_tokens": 5, "num_return_sequences": 3, "stop_strings": ["a"]})
    assert read_generation_kwargs({"max_tokens": 5, "n": 3, "stop": "a"}) == ours
    assert (ours.max_new_tokens, ours.num_samples, ours.stop_strings) == (5, 3, ("a",))


def test_nothing_given_samples_from_the_whole_distribution():
    settings = read_generation_kwargs()
    assert settings.distribution.temperature == 1.0
    assert not settings.distribution.truncated
    assert settings.num_samples == 1


@pytest.mark.parametrize("off", [0, -1, None])
def test_top_k_is_off_in_the_words_of_either_engine(off):
    assert read_generation_kwargs({"top_k": off}).distribution.top_k == 0


@pytest.mark.parametrize(
    "both",
    [
        {"max_tokens": 5, "max_new_tokens": 6},
        {"n": 2, "num_return_sequences": 3},
        {"max_new_tokens": 5, "max_tokens": 5},
    ],
)
def test_two_names_of_one_setting_are_a_conflict(both):
    with pytest.raises(PolicyError, match="two names of one setting"):
        read_generation_kwargs(both)


def test_num_samples_and_n_must_agree():
    assert read_generation_kwargs({"n": 4}, num_samples=4).num_samples == 4
    with pytest.raises(PolicyError, match="num_samples=4"):
        read_generation_kwargs({"n": 2}, num_samples=4)


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -0.1},
        {"top_p": 1.5},
        {"top_k": -2},
        {"max_tokens": 0},
        {"n": 0},
        {"repetition_penalty": 0.0},
        {"temperature": "hot"},
        {"temperature": float("nan")},
        {"stop": [""]},
    ],
)
def test_numbers_outside_of_their_range_are_refused(bad):
    with pytest.raises(ValueError):
        read_generation_kwargs(bad)


def test_greedy_is_said_in_two_ways_but_not_against_each_other():
    assert read_generation_kwargs({"do_sample": False}).distribution.greedy
    assert read_generation_kwargs({"temperature": 0}).distribution.greedy
    assert not read_generation_kwargs({"do_sample": True}).distribution.greedy
    with pytest.raises(PolicyError, match="do_sample=False is greedy"):
        read_generation_kwargs({"do_sample": False, "temperature": 0.7})
    with pytest.raises(PolicyError, match="contradict"):
        read_generation_kwargs({"do_sample": True, "temperature": 0})


def test_beam_search_is_refused():
    assert read_generation_kwargs({"num_beams": 1}).extra == {}
    with pytest.raises(PolicyError, match="beam search"):
        read_generation_kwargs({"num_beams": 4})


def test_other_settings_reach_the_engine_and_those_that_scoring_cannot_repeat_are_named():
    settings = read_generation_kwargs({"repetition_penalty": 1.2, "use_cache": True})
    assert settings.extra == {"repetition_penalty": 1.2, "use_cache": True}
    with pytest.raises(PolicyError, match="repetition_penalty"):
        settings.check_scoring()
    neutral = read_generation_kwargs({"repetition_penalty": 1.0, "temperature": 0.5})
    assert neutral.check_scoring().temperature == 0.5
