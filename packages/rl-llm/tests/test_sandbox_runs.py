"""What a one-shot run takes and gives back."""

from __future__ import annotations

import os
import sys

import pytest

from rl_llm.tools.sandbox.limits import Limits
from rl_llm.tools.sandbox.result import SandboxError
from rl_llm.tools.sandbox.sandbox import Sandbox

try:
    SANDBOX = Sandbox()
except SandboxError as error:
    pytest.skip(f"this machine grants no isolation: {error}", allow_module_level=True)


def test_a_program_that_ends_is_ok():
    result = SANDBOX.run("print('hello')")
    assert (result.status, result.ok, result.exit_code) == ("ok", True, 0)
    assert (result.stdout, result.stderr, result.level) == ("hello\n", "", SANDBOX.level)
    assert result.wall_s > 0
    assert result.cpu_s > 0


def test_writing_to_standard_error_is_no_failure():
    result = SANDBOX.run("import sys, warnings; warnings.warn('old'); print('x', file=sys.stderr)")
    assert (result.status, result.exit_code) == ("ok", 0)
    assert "UserWarning: old" in result.stderr


def test_an_exception_is_an_error_with_a_traceback_that_begins_in_the_program():
    result = SANDBOX.run("def f():\n    return 1 / 0\n\nf()\n")
    assert (result.status, result.exit_code, result.stdout) == ("error", 1, "")
    lines = result.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == '  File "main.py", line 4, in <module>'
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert "<string>" not in result.stderr


def test_a_syntax_error_names_the_line():
    result = SANDBOX.run("x = 1\ny = (\n")
    assert result.status == "error"
    assert result.stderr.startswith('  File "main.py", line 2')
    assert "SyntaxError" in result.stderr


@pytest.mark.parametrize(("code", "status"), [("exit(0)", "ok"), ("exit(3)", "error"), ("exit('bye')", "error")])
def test_the_exit_code_decides(code, status):
    result = SANDBOX.run(f"import sys; sys.{code}")
    assert result.status == status
    assert result.exit_code == {"exit(0)": 0, "exit(3)": 3}.get(code, 1)


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGTERM", "SIGKILL", "SIGABRT"])
def test_a_signal_is_killed_with_its_number(name):
    result = SANDBOX.run(f"import os, signal; os.kill(os.getpid(), signal.{name})")
    import signal

    assert (result.status, result.exit_code) == ("killed", -getattr(signal, name))


def test_cpu_time_is_a_timeout_even_where_the_program_ignores_the_signal():
    code = "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    assert SANDBOX.run("while True: pass", limits=Limits(cpu_s=1, wall_s=60.0)).status == "timeout"
    assert SANDBOX.run(code, limits=Limits(cpu_s=1, wall_s=60.0)).status == "timeout"


def test_output_before_a_timeout_is_kept():
    result = SANDBOX.run("print('before', flush=True)\nwhile True: pass", limits=Limits(wall_s=0.5))
    assert (result.status, result.stdout, result.exit_code) == ("timeout", "before\n", None)


def test_standard_input_is_read_to_its_end():
    code = "import sys; print(input()); print(len(sys.stdin.read()))"
    assert SANDBOX.run(code, stdin="first\n" + "x" * 300_000).stdout == "first\n300000\n"
    assert SANDBOX.run("import sys; print(repr(sys.stdin.read()))").stdout == "''\n"


def test_files_lie_in_the_working_directory_and_modules_can_be_imported():
    files = {"data/in.bin": bytes(range(256)), "helper.py": "def double(x):\n    return 2 * x\n"}
    code = "import helper; print(helper.double(21), open('data/in.bin', 'rb').read() == bytes(range(256)))"
    assert SANDBOX.run(code, files=files).stdout == "42 True\n"


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", "", "a//b", ".", "a\0b"])
def test_files_outside_of_the_working_directory_are_refused(name):
    with pytest.raises(SandboxError, match="plain relative paths"):
        SANDBOX.run("", files={name: ""})


def test_a_folder_can_be_shown_and_imported_from(tmp_path):
    if SANDBOX.level == "landlock" and os.geteuid() == 0:
        pytest.skip("nobody cannot reach a folder of root's")
    (tmp_path / "shown_module.py").write_text("value = 17\n")
    os.chmod(tmp_path, 0o755)
    os.chmod(tmp_path / "shown_module.py", 0o644)
    sandbox = Sandbox(folders=[tmp_path])
    code = f"import shown_module; print(shown_module.value); open({str(tmp_path / 'new')!r}, 'w')"
    result = sandbox.run(code)
    assert (result.status, result.stdout) == ("error", "17\n")
    assert not (tmp_path / "new").exists()


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(SandboxError, match=r"there is no .*missing"):
        Sandbox(folders=[tmp_path / "missing"])


def test_the_program_is_the_main_module():
    code = """
import pickle, sys
class A: pass
print(__name__, __file__, sys.argv, type(pickle.loads(pickle.dumps(A()))) is A, "_run" in globals(), "os" in globals())
"""
    assert SANDBOX.run(code).stdout == "__main__ main.py ['main.py'] True False False\n"


def test_runs_share_nothing():
    assert SANDBOX.run("open('left', 'w').close()").ok
    assert SANDBOX.run("import os; print(os.listdir('.'))").stdout == "['main.py']\n"


def test_site_packages_are_not_there():
    assert SANDBOX.run("import sys; print(sys.flags.isolated, sys.flags.no_site, 'site' in sys.modules)").stdout == (
        "1 1 False\n"
    )


def test_files_and_descriptors_are_limited():
    limits = Limits(file_bytes=1 << 20, open_files=16)
    big = SANDBOX.run("open('a', 'wb').write(b'x' * (2 << 20))", limits=limits)
    many = SANDBOX.run("held = []\nwhile True: held.append(open('a', 'wb'))", limits=limits)
    assert "File too large" in big.stderr
    assert "Too many open files" in many.stderr


def test_everything_written_is_limited_where_files_are_in_memory():
    if SANDBOX.level == "landlock":
        pytest.skip("this level limits each file only")
    code = "for i in range(64): open(f'f{i}', 'wb').write(b'x' * (1 << 20))"
    assert "No space left on device" in SANDBOX.run(code, limits=Limits(disk_bytes=8 << 20)).stderr


def test_text_that_is_no_text_is_replaced():
    result = SANDBOX.run("import sys; sys.stdout.buffer.write(b'\\xff\\xfeok')")
    assert result.stdout == "\ufffd\ufffdok"


@pytest.mark.parametrize("code", ["print('\ud800')", "x = '\0'"])
def test_code_that_is_no_text_is_the_programs_error(code):
    assert SANDBOX.run(code).status == "error"


def test_many_programs_keep_their_order():
    codes = [f"print({i})" for i in range(6)]
    assert [result.stdout for result in SANDBOX.map(codes, workers=3)] == [f"{i}\n" for i in range(6)]


def test_another_interpreter_is_started_by_its_path():
    sandbox = Sandbox(python=sys.executable)
    assert sandbox.run("print(1)").stdout == "1\n"
