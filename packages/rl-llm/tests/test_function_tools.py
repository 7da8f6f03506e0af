"""Functions as tools: schemas, checked arguments, timeouts that hold, results of bounded size."""

from __future__ import annotations

import glob
import os
import select
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_core.errors import SpecError, UnknownNameError
from rl_llm.tools.function_tools import FunctionTool, ToolRegistry
from rl_llm.tools.json_schema import argument_errors, function_schema
from rl_llm.tools.tool_calls import ToolCall, parse_tool_calls
from rl_llm.tools.worker import WorkerError

SOURCE = '''
import os, subprocess, sys, time

calls = 0

def count() -> int:
    """Count calls of this process."""
    global calls
    calls += 1
    return calls

def add(a: int, b: int = 1) -> int:
    return a + b

def repeat(text: str, times: int) -> str:
    return text * times

def hang(pipe: str) -> str:
    fd = os.open(pipe, os.O_WRONLY)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], pass_fds=[fd])
    while True:
        pass

def noisy() -> str:
    print("printed, not an answer", flush=True)
    sys.stdout.write("\\0\\0\\0\\1x")
    return "answer"

def fail(kind: str) -> str:
    if kind == "exit":
        sys.exit(3)
    if kind == "crash":
        os._exit(5)
    raise ValueError("no " + kind)

def loaded(name: str) -> bool:
    return name in sys.modules

class Group:
    @staticmethod
    def inner(x: int) -> int:
        return -x
'''


@pytest.fixture
def functions(tmp_path, monkeypatch):
    (tmp_path / "rl_tool_functions.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("rl_tool_functions", None)
    import rl_tool_functions

    yield rl_tool_functions
    sys.modules.pop("rl_tool_functions", None)


@pytest.fixture
def tool(functions):
    made = []

    def make(name: str, **kwargs: Any) -> FunctionTool:
        made.append(FunctionTool(getattr(functions, name), **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()


def own_children() -> set[str]:
    return {pid for path in glob.glob("/proc/self/task/*/children") for pid in Path(path).read_text().split()}


def search(
    query: str,
    limit: int = 5,
    scores: list[float] | None = None,
    mode: Literal["fast", "exact"] = "fast",
    options: dict[str, bool] = {},  # noqa: B006
    tags: Optional[list[str]] = None,  # noqa: UP045
) -> list[str]:
    """Search the notes.

    More text.

    Args:
        query: what to look for,
            in words.
        limit (int): most results.

    Returns:
        scores: not a parameter.
    """
    return [query] * limit


def test_the_schema_follows_from_annotations_and_docstring():
    assert function_schema(search) == {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search the notes.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "what to look for, in words."},
                    "limit": {"type": "integer", "description": "most results.", "default": 5},
                    "scores": {
                        "anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "null"}],
                        "default": None,
                    },
                    "mode": {"enum": ["fast", "exact"], "default": "fast"},
                    "options": {"type": "object", "additionalProperties": {"type": "boolean"}, "default": {}},
                    "tags": {
                        "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                        "default": None,
                    },
                },
                "required": ["query"],
                "additionalProperties": False,
            },
        },
    }


def test_name_and_description_can_be_given():
    body = function_schema(search, name="find", description="Find.")["function"]
    assert (body["name"], body["description"]) == ("find", "Find.")


def no_annotation(a): ...


def star(*a: int): ...


def stars(**a: int): ...


def only_by_place(a: int, /): ...


def of_bytes(a: bytes): ...


def of_odd_keys(a: dict[int, str]): ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_annotation, "'a' of tool 'no_annotation' has no annotation"),
        (star, "cannot be given by name"),
        (stars, "cannot be given by name"),
        (only_by_place, "cannot be given by name"),
        (of_bytes, "bytes.*has no JSON type"),
        (of_odd_keys, "JSON has texts as keys only"),
    ],
)
def test_a_parameter_that_json_cannot_give_is_refused(function, message):
    with pytest.raises(SpecError, match=message):
        function_schema(function)


PARAMETERS = function_schema(search)["function"]["parameters"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"query": "a"},
        {"query": "a", "limit": 3, "scores": [1, 2.5], "mode": "exact", "options": {"x": True}, "tags": None},
        {"query": "", "scores": None, "tags": ["t"]},
    ],
)
def test_fitting_arguments_have_no_errors(arguments):
    assert argument_errors(PARAMETERS, arguments) == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, "missing argument 'query'"),
        ({"query": "a", "x": 1}, "unknown argument 'x'; there are: query, limit, scores, mode, options, tags"),
        ({"query": 3}, "'query' must be a text, got 3"),
        ({"query": "a", "limit": "3"}, "'limit' must be an integer, got the text '3'"),
        ({"query": "a", "limit": 3.0}, "'limit' must be an integer, got 3.0"),
        ({"query": "a", "limit": True}, "'limit' must be an integer, got true"),
        ({"query": "a", "scores": ["x"]}, "'scores' must be a list or null, got a list"),
        ({"query": "a", "mode": "slow"}, "'mode' must be one of 'fast', 'exact', got the text 'slow'"),
        ({"query": "a", "options": {"x": 1}}, "'options'['x'] must be a boolean, got 1"),
        ({"query": "a", "tags": "t"}, "'tags' must be a list or null, got the text 't'"),
        ([1], "the arguments must be an object, got a list"),
    ],
)
def test_wrong_arguments_are_told_in_words(arguments, error):
    assert argument_errors(PARAMETERS, arguments) == [error]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(JSON | st.fixed_dictionaries({"query": JSON}, optional={"limit": JSON, "options": JSON, "tags": JSON}))
def test_no_value_makes_the_check_raise(arguments):
    assert isinstance(argument_errors(PARAMETERS, arguments), list)


def test_a_call_runs_in_another_process(tool):
    add = tool("add")
    before = own_children()
    result = add.run({"a": 1, "b": 41})
    assert (result.ok, result.text, result.error) == (True, "42", None)
    assert result.wall_s > 0
    assert add.run({"a": 1}).text == "2"
    assert len(own_children() - before) == 1
    add.close()
    assert own_children() == before


def test_wrong_arguments_start_no_process(tool):
    before = own_children()
    result = tool("add").run({"a": "1", "c": 2})
    assert not result.ok
    assert result.error == "'a' must be an integer, got the text '1'; unknown argument 'c'; there are: a, b"
    assert own_children() == before


def test_the_process_does_not_import_torch(tool):
    loaded = tool("loaded")
    assert loaded.run({"name": "rl_llm.tools.worker"}).text == "true"
    assert loaded.run({"name": "torch"}).text == "false"


def test_a_timeout_ends_the_process_and_its_children_and_the_next_call_works(tool, tmp_path):
    hang = tool("hang", timeout_s=0.3)
    os.mkfifo(tmp_path / "held")
    reader = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    try:
        before = own_children()
        for _ in range(2):
            result = hang.run({"pipe": str(tmp_path / "held")})
            assert (result.ok, result.text, result.error) == (False, "", "no result after 0.3 s")
            assert own_children() == before
            # The end of the pipe comes when the last process that holds it is gone.
            assert select.select([reader], [], [], 60.0)[0] == [reader]
            assert os.read(reader, 1) == b""
    finally:
        os.close(reader)


def test_what_a_tool_prints_is_no_answer(tool):
    noisy = tool("noisy")
    assert [noisy.run({}).text for _ in range(3)] == ["answer"] * 3


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("luck", "ValueError: no luck"),
        ("exit", "SystemExit: 3"),
        ("crash", "the tool's process ended without a result"),
    ],
)
def test_a_failing_tool_gives_an_error(tool, kind, error):
    fail = tool("fail")
    for _ in range(2):
        result = fail.run({"kind": kind})
        assert (result.ok, result.text, result.error) == (False, "", error)


def test_a_process_that_died_between_calls_is_replaced(tool):
    before = own_children()
    count = tool("count")
    assert count.run({}).text == "1"
    [pid] = own_children() - before
    os.kill(int(pid), 9)
    os.waitid(os.P_PID, int(pid), os.WEXITED | os.WNOWAIT)
    assert count.run({}).text == "1"


def test_a_long_result_is_cut(tool):
    repeat = tool("repeat", most_chars=10)
    assert repeat.run({"text": "é", "times": 10}).text == "é" * 10
    assert repeat.run({"text": "é", "times": 1_000_000}).text == "é" * 10 + "\n[cut after 10 characters]"


def test_a_process_remembers_unless_it_is_told_not_to(tool):
    assert [tool("count").run({}).text for _ in range(2)] == ["1", "1"]
    keeps = tool("count")
    assert [keeps.run({}).text for _ in range(3)] == ["1", "2", "3"]
    forgets = tool("count", most_calls=1)
    assert [forgets.run({}).text for _ in range(3)] == ["1", "1", "1"]


def test_a_static_method_can_be_found(functions):
    inner = FunctionTool(functions.Group.inner)
    assert inner.run({"x": 3}).text == "-3"
    inner.close()


def test_a_function_that_another_process_cannot_find_is_refused_unless_trusted():
    def local(x: int) -> int:
        return x + 1

    with pytest.raises(SpecError, match="trusted=True"):
        FunctionTool(local)
    with pytest.raises(SpecError, match="trusted=True"):
        FunctionTool(lambda: 1, name="one")
    assert FunctionTool(local, trusted=True).run({"x": 1}).text == "2"


def test_a_trusted_tool_that_fails_gives_an_error_and_a_long_result_is_cut():
    def fail(x: int) -> str:
        return "ab" * (100 // x)

    tool = FunctionTool(fail, trusted=True, most_chars=60)
    assert tool.run({"x": 0}).error == "ZeroDivisionError: integer division or modulo by zero"
    assert tool.run({"x": 100}).text == "ab"
    assert tool.run({"x": 1}).text == "ab" * 30 + "\n[cut after 60 characters]"


def test_a_module_that_cannot_be_imported_again_is_said(functions, tmp_path):
    tool = FunctionTool(functions.add)
    (tmp_path / "rl_tool_functions.py").write_text("raise RuntimeError('gone')")
    with pytest.raises(WorkerError, match="RuntimeError: gone"):
        tool.run({"a": 1})


def test_a_tool_of_a_script_works(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        from rl_llm.tools.function_tools import FunctionTool

        def triple(x: int) -> int:
            return 3 * x

        if __name__ == "__main__":
            print(FunctionTool(triple).run({"x": 5}).text)
        """)
    )
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.stdout == "15\n", done.stderr


@pytest.mark.parametrize("setting", [{"timeout_s": 0}, {"most_chars": 0}, {"most_calls": 0}])
def test_settings_are_positive(setting):
    with pytest.raises(SpecError, match="positive"):
        FunctionTool(search, trusted=True, **setting)


def test_a_registry_runs_calls_by_name_and_repeats_their_tags(functions):
    with ToolRegistry([functions.add, FunctionTool(functions.repeat, name="again")]) as tools:
        assert [schema["function"]["name"] for schema in tools.schemas] == ["add", "again"]
        text = '<tool name="add" tag="x">{"a": 1}</tool><tool name="again">{"text": "ab", "times": 2}</tool>'
        first, second = tools.run_all(parse_tool_calls(text, "xml"))
        assert (first.text, first.tag, second.text, second.tag) == ("2", "x", "abab", None)
        assert tools["add"].name == "add"
        assert (len(tools), [tool.name for tool in tools]) == (2, ["add", "again"])


def test_a_registry_answers_malformed_and_unknown_calls_with_errors():
    tools = ToolRegistry([FunctionTool(search, trusted=True)])
    unknown = tools.run(ToolCall(name="serch", arguments={}, tag="t"))
    assert (unknown.ok, unknown.error, unknown.tag) == (False, "there is no tool 'serch'; there are: search", "t")
    malformed = tools.run(parse_tool_calls("<tool_call>{</tool_call>")[0])
    assert "not valid JSON" in malformed.error
    with pytest.raises(UnknownNameError, match="no tool 'serch'"):
        tools["serch"]


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(SpecError, match="two tools are named 'search'"):
        ToolRegistry([FunctionTool(search, trusted=True), FunctionTool(search, trusted=True)])


def test_the_tools_import_no_torch():
    code = (
        "import sys, rl_llm.tools.sandbox.sandbox, rl_llm.tools.function_tools, rl_llm.tools.arithmetic, "
        "rl_llm.tools.code_blocks, rl_llm.tools.special_tokens; print('torch' in sys.modules)"
    )
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.stdout == "False\n", done.stderr
