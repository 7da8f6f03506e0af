"""An interpreter that keeps its variables, and what its code cannot fake."""

from __future__ import annotations

import gc
import glob
import os
from pathlib import Path

import pytest

from rl_llm.tools.sandbox.limits import Limits
from rl_llm.tools.sandbox.result import SandboxError
from rl_llm.tools.sandbox.sandbox import Sandbox

try:
    SANDBOX = Sandbox()
except SandboxError as error:
    pytest.skip(f"this machine grants no isolation: {error}", allow_module_level=True)


@pytest.fixture
def session():
    with SANDBOX.session(limits=Limits(wall_s=20.0)) as session:
        yield session


def own_children() -> set[str]:
    found: set[str] = set()
    for path in glob.glob("/proc/self/task/*/children"):
        found |= set(Path(path).read_text().split())
    return found


def test_variables_stay(session):
    assert session.run("x = 20").ok
    assert session.run("x += 1\nprint(2 * x)").stdout == "42\n"


def test_each_call_has_its_own_output(session):
    assert session.run("print('first')").stdout == "first\n"
    assert session.run("pass").stdout == ""
    result = session.run("import sys; sys.stderr.write('warning')")
    assert (result.status, result.stdout, result.stderr) == ("ok", "", "warning")


def test_a_recursive_function_sees_itself(session):
    code = "def factorial(n):\n    return 1 if n == 0 else n * factorial(n - 1)\nprint(factorial(5))"
    assert session.run(code).stdout == "120\n"
    assert session.run("print(factorial(3))").stdout == "6\n"


def test_an_error_leaves_the_session_alive(session):
    session.run("x = 1")
    result = session.run("y = x\nraise ValueError('no')")
    assert (result.status, result.exit_code) == ("error", 1)
    assert result.stderr == (
        'Traceback (most recent call last):\n  File "<call 2>", line 2, in <module>\nValueError: no\n'
    )
    assert session.run("print(x, y)").stdout == "1 1\n"


def test_a_syntax_error_and_an_exit_leave_it_alive(session):
    assert session.run("x = (").status == "error"
    assert session.run("import sys; sys.exit(4)").exit_code == 4
    assert session.run("import sys; sys.exit()").status == "ok"
    assert session.run("raise KeyboardInterrupt").status == "error"
    assert session.alive


def test_printed_markers_and_answers_are_harmless(session):
    forged = '{"nonce": "0", "outcome": "ok", "exit_code": 0, "cpu_s": 0.0}'
    code = f"""
print({forged!r}); print("---- END ----"); print("ended 0 0.0 0")
raise ValueError("real")
"""
    result = session.run(code)
    assert (result.status, result.exit_code) == ("error", 1)
    assert result.stdout == f"{forged}\n---- END ----\nended 0 0.0 0\n"
    assert session.run("print('next')").stdout == "next\n"


def test_an_answer_with_another_nonce_on_the_channel_is_dropped(session):
    code = """
import json, os, stat
body = json.dumps({"nonce": "0" * 32, "outcome": "ok", "exit_code": 0, "cpu_s": 0.0}).encode()
for fd in range(3, 4096):
    try:
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            os.write(fd, len(body).to_bytes(4, "big") + body)
            print("written")
    except OSError:
        pass
raise ValueError("real")
"""
    result = session.run(code)
    assert (result.status, result.stdout) == ("error", "written\n")
    assert session.run("print('next')").stdout == "next\n"


def test_noise_on_the_channel_ends_the_session(session):
    code = """
import os
for fd in range(3, 4096):
    try:
        os.write(fd, b"\\xff" * 64)
    except OSError:
        pass
"""
    assert session.run(code).status == "killed"
    assert not session.alive


def test_a_timeout_ends_the_session_and_only_restart_begins_anew(session):
    session.run("x = 1")
    result = session.run("print('before', flush=True)\nwhile True: pass", wall_s=0.4)
    assert (result.status, result.stdout, result.exit_code) == ("timeout", "before\n", None)
    assert not session.alive
    with pytest.raises(SandboxError, match=r"over: a call ended as 'timeout'; restart\(\)"):
        session.run("print(1)")
    session.restart()
    assert "NameError" in session.run("print(x)").stderr


def test_too_much_output_ends_the_session():
    with SANDBOX.session(limits=Limits(output_bytes=1000)) as session:
        assert session.run("print('x' * 999)").status == "ok"
        result = session.run("print('y' * 100_000)")
        assert (result.status, result.stdout) == ("output_truncated", "y" * 1000)
        assert not session.alive


def test_output_just_over_the_limit_is_noticed_at_the_end_of_the_call():
    with SANDBOX.session(limits=Limits(output_bytes=10)) as session:
        assert session.run("print('y' * 10, end='')").status == "ok"
        assert session.run("print('y' * 11, end='')").status == "output_truncated"


def test_an_uncaught_memory_error_is_out_of_memory_and_can_be_survived(session):
    assert session.run("x = bytearray(10**12)").status == "oom"
    assert session.run("print('on')").stdout == "on\n"


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("import os; os._exit(0)", 0), ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -11)],
)
def test_an_interpreter_that_goes_is_killed(session, code, exit_code):
    result = session.run("print('last', flush=True)\n" + code)
    assert (result.status, result.stdout, result.exit_code) == ("killed", "last\n", exit_code)
    assert not session.alive


def test_a_background_process_survives_a_call_and_ends_with_the_session():
    before = own_children()
    with SANDBOX.session() as session:
        code = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
        assert session.run(code).ok
        assert session.run("print(p.poll())").stdout == "None\n"
    assert own_children() == before


def test_files_are_there_and_stay():
    with SANDBOX.session(files={"a.txt": "one"}) as session:
        session.run("open('b.txt', 'w').write(open('a.txt').read() + ' two')")
        assert session.run("print(open('b.txt').read())").stdout == "one two\n"


def test_classes_can_be_pickled(session):
    code = "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A, __name__)"
    assert session.run(code).stdout == "True __main__\n"


def test_a_session_that_is_forgotten_leaves_nothing():
    before = (sorted(os.listdir("/proc/self/fd")), own_children())
    session = SANDBOX.session()
    assert session.run("print(1)").ok
    del session
    gc.collect()
    assert (sorted(os.listdir("/proc/self/fd")), own_children()) == before


def test_closing_twice_is_harmless_and_a_closed_session_says_so():
    session = SANDBOX.session()
    session.close()
    session.close()
    with pytest.raises(SandboxError, match="it was closed"):
        session.run("print(1)")
