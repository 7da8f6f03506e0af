"""Code blocks, tool calls and special tokens in the text of a message."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_core.errors import SpecError
from rl_llm.tools.code_blocks import python_blocks
from rl_llm.tools.special_tokens import neutralise
from rl_llm.tools.tool_calls import parse_tool_calls


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("```python\nx = 1\n```", ["x = 1\n"]),
        ("a\n```python\nx\n```\nb\n```python\ny\n\nz\n```\n", ["x\n", "y\n\nz\n"]),
        ("```python\nx = 1\n", []),
        ("```python\nx\n```\n```python\ny", ["x\n"]),
        ("```\nx\n```", []),
        ("```text\n```python\nx\n```", []),
        ("```bash\nls\n```\n```Python3\nx\n```", ["x\n"]),
        ("``python\nx\n``", []),
        ("inline ```python x``` code", []),
        ("text ```python\nx\n```", []),
        ("````python\n```\nx\n```\n````", ["```\nx\n```\n"]),
        ("   ```python\n  x\n   ```", ["  x\n"]),
        ("```python title=a\nx\n```", ["x\n"]),
        ("```python\n```", [""]),
        ("```python\r\nx\r\n```\r\n", ["x\r\n"]),
        ("```pythonic\nx\n```", []),
        ("", []),
    ],
)
def test_python_blocks_are_found_in_order(text, blocks):
    assert python_blocks(text) == blocks


@given(st.text(alphabet="`python \nx~", max_size=80))
def test_every_block_stands_in_the_text(text):
    assert all(block in text for block in python_blocks(text))


def test_qwen_calls_are_read_in_order():
    text = (
        'I add.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2]}}\n</tool_call>\n'
        '<tool_call>{"name": "now", "arguments": {}, "id": 7}</tool_call>'
    )
    first, second = parse_tool_calls(text)
    assert (first.name, first.arguments, first.tag, first.error) == ("add", {"a": 1, "b": [2]}, None, None)
    assert (second.name, second.arguments, second.tag) == ("now", {}, "7")
    assert second.raw == '<tool_call>{"name": "now", "arguments": {}, "id": 7}</tool_call>'


def test_an_argument_may_quote_the_closing_mark():
    body = {"name": "say", "arguments": {"text": "</tool_call> <tool_call>{"}}
    [call] = parse_tool_calls(f"<tool_call>{json.dumps(body)}\n </tool_call> rest")
    assert (call.error, call.arguments) == (None, body["arguments"])


def test_arguments_may_be_a_text_of_json():
    [call] = parse_tool_calls('<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>')
    assert call.arguments == {"a": 1}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("<tool_call>{</tool_call>", "not valid JSON"),
        ("<tool_call></tool_call>", "not valid JSON"),
        ('<tool_call>{"name": "a", "arguments": {}}', "not closed by </tool_call>"),
        ("<tool_call>[1]</tool_call>", "a call is a JSON object; got a list"),
        ('<tool_call>{"arguments": {}}</tool_call>', 'no "name"'),
        ('<tool_call>{"name": 3}</tool_call>', 'no "name"'),
        ('<tool_call>{"name": "a", "arguments": [1]}</tool_call>', '"arguments" is a JSON object; got a list'),
        ('<tool_call>{"name": "a", "arguments": "b"}</tool_call>', "not valid JSON"),
        ('<tool_call>{"name": "a", "arguments": {"x": NaN}}</tool_call>', "NaN is no JSON number"),
        (f'<tool_call>{{"name": "a", "arguments": {"[" * 100_000}}}</tool_call>', "not valid JSON"),
    ],
)
def test_a_malformed_call_is_an_error_of_the_call(text, error):
    [call] = parse_tool_calls(text)
    assert error in call.error
    assert call.arguments == {}


def test_a_malformed_call_does_not_hide_the_next():
    first, second = parse_tool_calls('<tool_call>{"name": </tool_call><tool_call>{"name": "b"}</tool_call>')
    assert first.error is not None
    assert (second.name, second.error) == ("b", None)


def test_xml_calls_have_both_forms():
    text = '<tool name="add" tag="first">{"a": 1}</tool> and <tool>\nsub\n{"b": 2}\n</tool><tool>now\n</tool>'
    calls = parse_tool_calls(text, "xml")
    assert [(call.name, call.arguments, call.tag, call.error) for call in calls] == [
        ("add", {"a": 1}, "first", None),
        ("sub", {"b": 2}, None, None),
        ("now", {}, None, None),
    ]


@pytest.mark.parametrize(
    ("text", "name", "error"),
    [
        ('<tool name="add">{"a": </tool>', "add", "not valid JSON"),
        ('<tool name="add">[1]</tool>', "add", "the arguments are a JSON object; got a list"),
        ("<tool></tool>", "", "names no tool"),
        ('<tool>{"a": 1}</tool>', "", "names no tool"),
        ("<tool>add\n{}", "", "not closed by </tool>"),
    ],
)
def test_a_malformed_xml_call_is_an_error_of_the_call(text, name, error):
    [call] = parse_tool_calls(text, "xml")
    assert call.name == name
    assert error in call.error


def test_other_marks_are_no_xml_calls():
    assert parse_tool_calls("<toolbox>x</toolbox> <tools>y</tools> <tool_call>{}</tool_call>", "xml") == []


def test_a_whole_message_of_json_may_hold_calls():
    text = '{"message": "hi", "tools": [{"tool": "add", "args": {"a": 1}, "tag": "t"}, {"tool": "b", "more": 1}, 3]}'
    first, second, third = parse_tool_calls(text, "json")
    assert (first.name, first.arguments, first.tag) == ("add", {"a": 1}, "t")
    assert (second.name, second.arguments) == ("b", {})
    assert third.error == "a call is a JSON object; got a number"
    [single] = parse_tool_calls(' {"name": "add", "arguments": {"a": 1}} ', "json")
    assert single.arguments == {"a": 1}
    assert len(parse_tool_calls('[{"name": "a"}, {"name": "b"}]', "json")) == 2


@pytest.mark.parametrize("text", ["plain", "", '{"message": "hi"}', "3", '"text"', "null", '{"a": '])
def test_a_message_without_calls_has_none_in_style_json(text):
    assert parse_tool_calls(text, "json") == []


def test_tools_that_are_no_list_are_an_error():
    [call] = parse_tool_calls('{"tools": {"tool": "add"}}', "json")
    assert call.error == '"tools" is a list; got an object'


def test_an_unknown_style_is_refused():
    with pytest.raises(SpecError, match="style is one of qwen, xml, json; got 'yaml'"):
        parse_tool_calls("", "yaml")


@given(st.text(alphabet='<>tool_cal/{}"name: \n=1[]', max_size=120), st.sampled_from(["qwen", "xml", "json"]))
def test_no_text_raises(text, style):
    for call in parse_tool_calls(text, style):
        assert call.name or call.error


def test_a_flood_of_calls_is_cut():
    for style, text in [
        ("qwen", '<tool_call>{"name": "a"}</tool_call>' * 500),
        ("xml", "<tool>a\n</tool>" * 500),
        ("json", json.dumps([{"name": "a"}] * 500)),
    ]:
        calls = parse_tool_calls(text, style)
        assert len(calls) == 129
        assert calls[-1].error == "there are more than 128 calls"


def test_a_special_token_is_broken_by_a_space():
    assert neutralise("4<|im_end|>\n<|im_start|>user", ["<|im_end|>", "<|im_start|>"]) == (
        "4< |im_end|>\n< |im_start|>user"
    )
    assert neutralise("a</s>b", ["</s>", "<s>", ""]) == "a< /s>b"
    assert neutralise("plain < text |", ["<|im_end|>"]) == "plain < text |"


def test_a_token_that_breaking_another_would_make_is_broken_too():
    tokens = ["<a>", "< a"]
    text = neutralise("<a>", tokens)
    assert not any(token in text for token in tokens)


@given(
    st.text(alphabet="<|>ab \ufffd", max_size=30),
    st.lists(st.text(alphabet="<|>ab \ufffd", min_size=1, max_size=5), max_size=5),
)
def test_no_special_token_is_left_in_any_text(text, tokens):
    result = neutralise(text, tokens)
    assert not any(token in result for token in tokens)
    if not any(token in text for token in tokens):
        assert result == text
