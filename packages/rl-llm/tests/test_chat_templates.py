"""Chat templates: the built-in one, the registry, and the check before the first step."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_core.errors import SpecError, UnknownNameError
from rl_llm.data.char_tokenizer import char_tokenizer
from rl_llm.data.history import History
from rl_llm.data.parsing import IM_END, IM_START, render_chatml
from rl_llm.data.template_check import check_chat_template, check_prefix_preserving
from rl_llm.data.templates import (
    CHATML_TEMPLATE,
    add_chat_template,
    chat_template_names,
    inverse_parser,
    remove_chat_template,
    resolve_template,
)

GENERATION = "{% generation %}", "{% endgeneration %}"


def chatml(assistant):
    """A ChatML template with its own way of rendering what an assistant says."""
    return (
        "{% for message in messages %}{% if message['role'] == 'assistant' %}{{ '<|im_start|>assistant\n' }}"
        + assistant
        + "{% else %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )


NO_MARKS = chatml("{{ message['content'] + '<|im_end|>' }}{{ '\n' }}")
STOP_OUTSIDE = chatml("{% generation %}{{ message['content'] }}{% endgeneration %}{{ '<|im_end|>\n' }}")
DROPS_REASONING = chatml(
    "{% generation %}{{ message['content'] if loop.last else message['content'].split('</think>')[-1] }}"
    "{{ '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
)
HEADER_INSIDE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ '<|im_start|>assistant\n' + message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NO_STOP = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}{{ 'A:' }}"
    "{% generation %}{{ message['content'] }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ 'Q:' + message['content'] + '\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
)

TOKENIZER = char_tokenizer()
TWO_TURNS = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "a"},
    {"role": "user", "content": "two"},
    {"role": "assistant", "content": ""},
]


@pytest.fixture(scope="module")
def tokenizer():
    return TOKENIZER


@pytest.fixture
def registered():
    added = []

    def add(name, *args, **kwargs):
        add_chat_template(name, *args, **kwargs)
        added.append(name)

    yield add
    for name in added:
        remove_chat_template(name)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": st.text(max_size=8)}
        ),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
)
def test_the_built_in_template_without_jinja_gives_the_text_that_jinja_gives(chat, header):
    rendered = TOKENIZER.apply_chat_template(
        chat, chat_template=CHATML_TEMPLATE, tokenize=False, add_generation_prompt=header
    )
    assert rendered == render_chatml(chat, add_generation_prompt=header)


def test_the_built_in_template_passes_its_own_check(tokenizer):
    report = check_chat_template(tokenizer)
    assert (report.end_of_turn, report.stop_token_id, report.mask_by) == (IM_END, tokenizer.eos_token_id, "marks")


def test_a_template_without_marks_is_an_error_before_the_first_step(tokenizer):
    with pytest.raises(SpecError, match=r"no generation marks.*chatml_format"):
        check_chat_template(tokenizer, NO_MARKS)
    with pytest.raises(SpecError, match="no generation marks"):
        History.from_chats(TWO_TURNS).apply_chat_template(
            tokenizer=tokenizer, chat_template=NO_MARKS, return_assistant_tokens_mask=True
        )


def test_the_declared_fallback_finds_the_tokens_that_marks_would_have_named(tokenizer):
    assert check_chat_template(tokenizer, NO_MARKS, mask_by="prefix_difference").mask_by == "prefix_difference"
    rows = [
        History.from_chats(TWO_TURNS).apply_chat_template(
            tokenizer=tokenizer, chat_template=template, return_assistant_tokens_mask=True, mask_by=mask_by
        )
        for template, mask_by in ((NO_MARKS, "prefix_difference"), (CHATML_TEMPLATE, "marks"))
    ]
    assert rows[0]["assistant_masks"].tolist() == rows[1]["assistant_masks"].tolist()
    assert rows[0]["assistant_masks"].sum() == 3  # "a" and two ends of turns


def test_marks_that_leave_out_the_end_of_turn_are_reported(tokenizer):
    with pytest.raises(SpecError, match=r"leave out the token '<\|im_end\|>'"):
        check_chat_template(tokenizer, STOP_OUTSIDE)


def test_a_template_that_drops_earlier_reasoning_is_reported(tokenizer):
    with pytest.raises(SpecError, match="not prefix-preserving"):
        check_chat_template(tokenizer, DROPS_REASONING)
    with pytest.raises(SpecError, match="not prefix-preserving"):
        check_prefix_preserving(tokenizer, DROPS_REASONING)


def test_marks_that_cover_the_header_are_reported(tokenizer):
    with pytest.raises(SpecError, match="cover"):
        check_chat_template(tokenizer, HEADER_INSIDE)


def test_a_turn_that_no_token_ends_is_reported(tokenizer):
    with pytest.raises(SpecError, match="not one: nothing would tell a model to stop"):
        check_chat_template(tokenizer, NO_STOP)


def test_an_end_of_turn_at_which_generation_does_not_stop_is_reported(tokenizer):
    with pytest.raises(SpecError, match="does not stop"):
        check_chat_template(tokenizer, stop_token_ids=[tokenizer.pad_token_id])


def test_the_mask_of_an_empty_answer_is_the_token_that_ends_it(tokenizer):
    row = History.from_chats(TWO_TURNS).apply_chat_template(
        tokenizer=tokenizer, return_assistant_tokens_mask=True, add_generation_prompt=False
    )
    ids, mask = row["input_ids"].tolist(), row["assistant_masks"].tolist()
    assert [token for token, flag in zip(ids, mask, strict=True) if flag] == [
        *tokenizer.encode("a", add_special_tokens=False),
        tokenizer.eos_token_id,
        tokenizer.eos_token_id,
    ]
    assert mask[-2:] == [True, False]  # the line break behind the last end of turn is not generated


def test_a_registered_template_is_found_by_name_and_by_family(tokenizer, registered):
    registered("mine", STOP_OUTSIDE, model_family_keywords=["tiny"])
    assert "mine" in chat_template_names()
    assert resolve_template(None, None, "mine") == STOP_OUTSIDE
    named = char_tokenizer("ab")
    named.name_or_path = "somewhere/Tiny-model"
    assert resolve_template(named) == STOP_OUTSIDE
    assert resolve_template(tokenizer) == CHATML_TEMPLATE
    assert resolve_template(named, NO_MARKS) == NO_MARKS


def test_a_tokenizers_own_template_is_not_replaced():
    own = char_tokenizer("ab")
    own.chat_template = NO_MARKS
    assert resolve_template(own) == NO_MARKS
    own.chat_template = None
    assert resolve_template(own) == CHATML_TEMPLATE


def test_the_registry_refuses_templates_without_marks_and_taken_names(registered):
    with pytest.raises(ValueError, match="no generation block"):
        add_chat_template("other", NO_MARKS)
    registered("mine", STOP_OUTSIDE)
    add_chat_template("mine", STOP_OUTSIDE)
    with pytest.raises(SpecError, match="taken"):
        add_chat_template("mine", HEADER_INSIDE)
    with pytest.raises(UnknownNameError, match="chatml_format, mine"):
        resolve_template(None, None, "absent")


def test_an_inverse_belongs_to_a_registered_template(registered):
    registered("plain", STOP_OUTSIDE, inverse_parser=lambda text: [{"role": "user", "content": text}])
    assert History.from_text("words", "plain").to_chats() == [{"role": "user", "content": "words"}]
    registered("oneway", STOP_OUTSIDE)
    with pytest.raises(SpecError, match="has no inverse"):
        inverse_parser("oneway")


def test_the_built_in_template_refuses_structured_calls_instead_of_hiding_them():
    chat = History.from_chats([{"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}])
    with pytest.raises(SpecError, match="role and content only"):
        chat.apply_chat_template()


def test_another_template_needs_a_tokenizer():
    with pytest.raises(SpecError, match="without a tokenizer"):
        History.from_chats(TWO_TURNS).apply_chat_template(chat_template=NO_MARKS)


def test_the_character_tokenizer_gives_every_text_back(tokenizer):
    text = f"{IM_START}user\n  two  blanks\tand <signs>{IM_END}\n"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    assert len(ids) == len(text) - len(IM_START) - len(IM_END) + 2
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    with pytest.raises(SpecError, match="occur once"):
        char_tokenizer("aa")


def test_data_and_environments_are_imported_without_transformers():
    code = (
        "import sys; sys.modules.update(transformers=None, tokenizers=None, jinja2=None)\n"
        "import rl_llm.data.history, rl_llm.data.containers, rl_llm.data.token_builder, rl_llm.data.template_check\n"
        "import rl_llm.data.char_tokenizer, rl_llm.envs.dataset, rl_llm.envs.tasks.letters\n"
        "from tensordict import TensorDict\n"
        "env = rl_llm.envs.dataset.DatasetChatEnv(dataset=['a'])\n"
        "assert env.reset()['history'].prompt.apply_chat_template()\n"
        "try: rl_llm.data.char_tokenizer.char_tokenizer()\n"
        "except ValueError as error: assert 'pip install transformers' in str(error)\n"
        "else: raise AssertionError\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
