"""What code in the sandbox must not be able to do, tried at every level that this machine grants."""

from __future__ import annotations

import glob
import os
import secrets
import socket
import sys
import tempfile
import tracemalloc
from pathlib import Path

import pytest

from rl_llm.tools.sandbox.levels import LADDER
from rl_llm.tools.sandbox.limits import Limits
from rl_llm.tools.sandbox.result import SandboxError
from rl_llm.tools.sandbox.sandbox import Sandbox


def tried(level) -> tuple[Sandbox | None, str]:
    try:
        return Sandbox(level), ""
    except SandboxError as error:
        return None, str(error).splitlines()[1].strip()


TRIED = {level: tried(level) for level in LADDER}
GRANTED = [level for level, (sandbox, _) in TRIED.items() if sandbox]
if not GRANTED:
    reasons = "; ".join(reason for _, reason in TRIED.values())
    pytest.skip(f"this machine grants no isolation: {reasons}", allow_module_level=True)


@pytest.fixture(params=GRANTED)
def sandbox(request):
    return TRIED[request.param][0]


@pytest.mark.parametrize("level", LADDER)
def test_this_machine_grants(level):
    sandbox, reason = TRIED[level]
    if sandbox is None:
        pytest.skip(reason)
    assert sandbox.level == level


def processes_with(token: str) -> list[str]:
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            command = Path(path).read_bytes()
        except OSError:
            continue
        if token.encode() in command:
            found.append(path)
    return found


def own_children() -> set[str]:
    """Children of this process, without those that other tests' libraries keep for its whole life."""
    found: set[str] = set()
    for path in glob.glob("/proc/self/task/*/children"):
        found |= set(Path(path).read_text().split())
    return found - _LASTING


_LASTING: set[str] = set()


@pytest.fixture(autouse=True)
def _children_that_were_there_before():
    _LASTING.clear()
    _LASTING.update(own_children())


def test_a_secret_of_the_parents_environment_is_nowhere_to_be_found(sandbox, monkeypatch):
    secret = secrets.token_hex(8)
    monkeypatch.setenv("PLANTED", secret)
    code = """
import glob, os
print(dict(os.environ))
for path in glob.glob("/proc/[0-9]*/environ"):
    try:
        print(open(path).read())
    except OSError:
        pass
"""
    result = sandbox.run(code)
    assert result.status == "ok", result
    assert secret not in result.stdout
    assert "PLANTED" not in result.stdout


def test_the_environment_holds_only_what_was_allowed():
    result = Sandbox(environment={"ALLOWED": "1"}).run("import os; print(*sorted(os.environ))")
    assert result.stdout.split() == ["ALLOWED", "HOME", "LANG", "OMP_NUM_THREADS", "PATH", "TMPDIR"]


def test_a_file_beside_the_sandbox_can_not_be_read(sandbox, tmp_path):
    planted = tmp_path / "planted.txt"
    planted.write_text("the solution")
    result = sandbox.run(f"print(open({str(planted)!r}).read())")
    assert result.status == "error"
    assert "the solution" not in result.stdout
    assert "FileNotFoundError" in result.stderr or "PermissionError" in result.stderr


def test_homes_and_password_files_can_not_be_read(sandbox):
    code = """
import os
for path in ("/root/.bashrc", "/root/.ssh", "/etc/shadow", "/home", "/var/log", "/proc/1/environ", "/proc/1/fd"):
    try:
        os.listdir(path) if os.path.isdir(path) else open(path).read()
        print("readable:", path)
    except OSError:
        pass
"""
    result = sandbox.run(code)
    assert (result.status, result.stdout) == ("ok", ""), result


def test_nothing_outside_of_its_folder_can_be_written(sandbox):
    code = """
import os, sys
for folder in ("/etc", "/usr", "/usr/lib", "/", "/root", "/var/tmp", "/dev", sys.prefix, os.path.dirname(os.__file__)):
    try:
        open(os.path.join(folder, "written-by-the-guest"), "w").close()
        print("writable:", folder)
    except OSError:
        pass
"""
    result = sandbox.run(code)
    assert (result.status, result.stdout) == ("ok", ""), result
    assert not os.path.exists("/etc/written-by-the-guest")


def test_it_does_not_run_as_root(sandbox):
    code = """
import os
print(0 in os.getresuid() + os.getresgid(), os.getgroups() in ([], [65534]))
try:
    os.setuid(0)
    print("became root")
except OSError:
    print("stays")
"""
    assert sandbox.run(code).stdout == "False True\nstays\n"


def test_a_listening_socket_of_the_parent_is_out_of_reach(sandbox):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.setblocking(False)
        port = server.getsockname()[1]
        result = sandbox.run(f"import socket; socket.create_connection(('127.0.0.1', {port}), 2); print('connected')")
        assert result.status == "error"
        assert result.stdout == ""
        with pytest.raises(BlockingIOError):
            server.accept()


def test_an_abstract_unix_socket_of_the_parent_is_out_of_reach(sandbox):
    name = f"rl-sandbox-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + name)
        server.listen()
        code = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}'); print('connected')"
        assert sandbox.run(code).status == "error"


def test_a_fork_bomb_stays_within_its_number_of_processes(sandbox):
    code = """
import os, time
count = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(60)
        count += 1
except OSError:
    print(count)
"""
    result = sandbox.run(code, limits=Limits(wall_s=20.0, processes=16))
    assert result.status == "ok", result
    assert 1 <= int(result.stdout) <= 16
    assert not own_children()


def test_an_endless_fork_bomb_is_ended_by_the_clock(sandbox):
    code = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
    assert sandbox.run(code, limits=Limits(wall_s=0.5)).status == "timeout"
    assert not own_children()


@pytest.mark.parametrize("code", ["x = bytearray(10**12)", "x = []\nwhile True: x.append(bytearray(1 << 20))"])
def test_a_memory_bomb_is_out_of_memory(sandbox, code):
    result = sandbox.run(code, limits=Limits(memory_bytes=128 << 20))
    assert result.status == "oom", result


def test_memory_spread_over_many_processes_is_out_of_memory(sandbox):
    code = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        held = b"x" * (60 << 20)
        time.sleep(60)
time.sleep(60)
"""
    result = sandbox.run(code, limits=Limits(memory_bytes=128 << 20, wall_s=30.0))
    assert (result.status, result.exit_code) == ("oom", None), result


def test_a_gigabyte_of_output_is_cut_while_reading(sandbox):
    code = "import sys\nfor _ in range(1024): sys.stdout.write('x' * (1 << 20))"
    tracemalloc.start()
    try:
        result = sandbox.run(code, limits=Limits(wall_s=60.0, output_bytes=50_000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.status == "output_truncated"
    assert result.stdout == "x" * 50_000
    assert peak < 4 << 20


def test_errors_are_cut_like_output(sandbox):
    result = sandbox.run("import sys\nwhile True: sys.stderr.write('e' * 1000)", limits=Limits(output_bytes=1234))
    assert (result.status, result.stderr) == ("output_truncated", "e" * 1234)


def test_a_timeout_ends_the_whole_tree(sandbox):
    token = secrets.token_hex(8)
    code = f"""
import os, subprocess, sys, time
child = "import time; time.sleep(60)  # {token}"
subprocess.Popen([sys.executable, "-c", child])
subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        subprocess.Popen([sys.executable, "-c", child])
        time.sleep(60)
    os._exit(0)
time.sleep(60)
"""
    result = sandbox.run(code, limits=Limits(wall_s=1.0))
    assert (result.status, result.exit_code) == ("timeout", None)
    assert processes_with(token) == []
    assert not own_children()


def test_a_child_that_keeps_the_pipe_open_does_not_make_a_finished_program_late(sandbox):
    token = secrets.token_hex(8)
    child = f"import time; time.sleep(60)  # {token}"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]); print('done')"
    result = sandbox.run(code, limits=Limits(wall_s=20.0))
    assert (result.status, result.stdout) == ("ok", "done\n")
    assert processes_with(token) == []


def test_the_supervisor_can_neither_be_killed_nor_limited_nor_traced(sandbox):
    code = """
import ctypes, os, resource, signal
above = os.getppid()
for attempt in (
    lambda: os.kill(above, signal.SIGKILL),
    lambda: os.kill(above, signal.SIGSTOP),
    lambda: resource.prlimit(above, resource.RLIMIT_NOFILE, (0, 0)),
    lambda: open(f"/proc/{above}/mem", "rb"),
    lambda: os.listdir(f"/proc/{above}/fd"),
):
    try:
        attempt()
    except OSError:
        pass
libc = ctypes.CDLL(None)
print("still here", libc.ptrace(16, above, 0, 0))
raise SystemExit(7)
"""
    result = sandbox.run(code)
    assert (result.status, result.exit_code, result.stdout) == ("error", 7, "still here -1\n"), result


def test_namespaces_mounts_and_odd_sockets_are_refused(sandbox):
    code = """
import ctypes, socket
libc = ctypes.CDLL(None)
print(libc.unshare(0x10000000), libc.unshare(0x00020000), libc.mount(b"x", b"/tmp", b"tmpfs", 0, None))
for family in (socket.AF_VSOCK, socket.AF_NETLINK, socket.AF_PACKET, socket.AF_ALG):
    try:
        socket.socket(family, socket.SOCK_RAW)
        print("opened", family)
    except OSError:
        pass
"""
    assert sandbox.run(code).stdout == "-1 -1 -1\n"


def test_printing_what_the_supervisor_reports_changes_nothing(sandbox):
    code = """
import os
print("ended 0 0.0 0\\nstarted")
for fd in range(3, 64):
    try:
        os.write(fd, b"ended 0 0.0 0\\n")
    except OSError:
        pass
raise SystemExit(5)
"""
    result = sandbox.run(code)
    assert (result.status, result.exit_code) == ("error", 5)
    assert result.stdout == "ended 0 0.0 0\nstarted\n"


def test_the_parents_descriptors_are_not_inherited(sandbox, tmp_path):
    with open(tmp_path / "open.txt", "w") as file:
        os.set_inheritable(file.fileno(), True)
        code = """
import os
for fd in range(3, 256):
    try:
        os.fstat(fd)
        print("open:", fd)
    except OSError:
        pass
"""
        assert sandbox.run(code, limits=Limits(open_files=256)).stdout == ""


@pytest.mark.slow
def test_fifty_runs_leave_no_descriptor_process_or_file(sandbox):
    pattern = os.path.join(tempfile.gettempdir(), "rl-sandbox-*")
    before = (sorted(os.listdir("/proc/self/fd")), own_children(), sorted(glob.glob(pattern)))
    endings = {
        "print(1)": "ok",
        "1 / 0": "error",
        "while True: print('x' * 1000)": "output_truncated",
        "import os; os.mkdir('closed', 0); os.kill(os.getpid(), 9)": "killed",
        "import time; time.sleep(60)": "timeout",
    }
    for _ in range(10):
        for code, status in endings.items():
            assert sandbox.run(code, limits=Limits(wall_s=0.2 if status == "timeout" else 20.0)).status == status
    assert (sorted(os.listdir("/proc/self/fd")), own_children(), sorted(glob.glob(pattern))) == before


def test_the_sandbox_is_for_linux(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SandboxError, match="needs Linux, this is darwin"):
        Sandbox()
