"""Whatever goes wrong in a worker is told here, with the environment and its traceback, and leaves nothing behind."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from rl_core.errors import EnvError
from rl_core.testing import ArrayCountingEnv, CountingEnv
from rl_envs import AsyncEnvPool, ParallelEnv, WorkerError

BROKEN = 2


class UnpicklableError(Exception):
    def __init__(self, number, reason):
        super().__init__(f"boom-{number} {reason}")
        self.handle = open(os.devnull)  # noqa: SIM115  (what cannot be pickled)


class BreakingEnv(CountingEnv):
    """Breaks where it is told to; ``index`` is set by the keyword arguments of the batch."""

    def __init__(self, index, where, how="raise"):
        self.index, self.where, self.how = index, where, how
        self.taken = 0
        self.fail("construction")
        super().__init__(length=99)

    def fail(self, phase):
        if phase != self.where or self.index != BROKEN:
            return
        if self.how == "exit":
            os._exit(3)
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "hang":
            time.sleep(1000)
        if self.how == "sys.exit":
            sys.exit(5)
        if self.how == "unpicklable":
            raise UnpicklableError(7, "unpicklable")
        raise ValueError("boom-7")

    def _reset(self, tensordict=None, **kwargs):
        self.fail("reset")
        return super()._reset(tensordict)

    def _step(self, tensordict):
        self.taken += 1
        if self.taken == 5:
            self.fail("step")
        return super()._step(tensordict)


def batch(where, how="raise", method="fork", **options):
    kwargs = [{"index": index, "where": where, "how": how} for index in range(4)]
    return ParallelEnv(4, BreakingEnv, create_env_kwargs=kwargs, mp_start_method=method, **options)


def children():
    """Processes whose parent this one is, and their children."""
    found, mine = set(), {os.getpid()}
    table = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            table[int(entry.name)] = int(fields[1])
    while mine:
        below = {pid for pid, parent in table.items() if parent in mine}
        found, mine = found | below, below
    return found


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = children()
    open_files = len(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    assert children() <= before
    assert "rl_envs" not in Path("/proc/self/maps").read_text()  # the shared memory's name in this process
    assert len(os.listdir("/proc/self/fd")) <= open_files


def run(where, how="raise", method="fork", **options):
    """The error of a batch whose environment 2 breaks, after which everything is closed."""
    with pytest.raises(WorkerError) as caught:
        env = batch(where, how, method, **options)
        env.rollout(20)
    if where != "construction":
        with pytest.raises(EnvError, match="closed"):
            env.reset()
        env.close()
        env.close()
    return caught.value


@pytest.mark.parametrize("where", ["construction", "reset", "step"])
def test_an_exception_keeps_its_words_its_place_and_its_traceback(where):
    error = run(where)
    assert (error.env_index, error.phase) == (BROKEN, where)
    assert "environment 2" in str(error) and "boom-7" in str(error) and f"failed in {where}" in str(error)
    assert 'raise ValueError("boom-7")' in error.traceback and 'raise ValueError("boom-7")' in str(error)
    assert isinstance(error.__cause__, ValueError)


def test_a_failed_step_tells_the_action():
    assert "its action: 'action' = [" in str(run("step"))


@pytest.mark.parametrize("where", ["construction", "reset", "step"])
def test_a_hard_exit_is_told_with_its_exit_code(where):
    error = run(where, "exit")
    assert (error.env_index, error.exitcode, error.phase) == (BROKEN, 3, where)
    assert "environment 2" in str(error) and "exit code 3" in str(error)


def test_a_killed_worker_is_told_with_the_signal():
    error = run("step", "kill")
    assert (error.env_index, error.exitcode) == (BROKEN, -signal.SIGKILL)
    assert "killed by SIGKILL" in str(error)


def test_an_exception_that_cannot_be_pickled_is_told_as_text():
    error = run("step", "unpicklable")
    assert "UnpicklableError: boom-7 unpicklable" in str(error) and error.__cause__ is None


def test_an_environment_that_ends_the_interpreter_is_told():
    error = run("reset", "sys.exit")
    assert error.env_index == BROKEN and "SystemExit: 5" in str(error)


@pytest.mark.parametrize("where", ["construction", "reset", "step"])
def test_a_worker_that_hangs_is_killed_after_the_timeout(where):
    error = run(where, "hang", timeout=1.5)
    assert (error.env_index, error.phase) == (BROKEN, where)
    assert "within 1.5 s" in str(error) and "timeout=" in str(error)


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_worker_of_several_environments_names_the_one_that_broke(shared_memory):
    error = run("step", envs_per_worker=2, shared_memory=shared_memory)
    assert error.env_index == BROKEN and "boom-7" in str(error)


def test_a_worker_that_failed_is_told_while_an_earlier_one_is_still_busy():
    kwargs = [{"index": BROKEN, "where": "step", "how": how} for how in ("hang", "raise")]
    env = ParallelEnv(2, BreakingEnv, create_env_kwargs=kwargs, mp_start_method="fork", shutdown_timeout=0.5)
    with pytest.raises(WorkerError, match=r"environment 1 .*boom-7"):
        env.rollout(20)


def test_a_worker_of_a_new_python_that_exits_is_told_with_its_exit_code():
    error = run("step", "exit", method="spawn")
    assert (error.env_index, error.exitcode) == (BROKEN, 3)


@pytest.mark.parametrize("backend", ["threading", "multiprocessing"])
@pytest.mark.parametrize("where", ["construction", "reset", "step"])
def test_an_async_pool_tells_it_too(backend, where):
    makers = [partial(BreakingEnv, index=index, where=where) for index in range(4)]
    options = {} if backend == "threading" else {"mp_start_method": "fork"}
    with pytest.raises(WorkerError, match="boom-7") as caught:
        pool = AsyncEnvPool(makers, backend=backend, **options)
        pool.rollout(20)
    assert (caught.value.env_index, caught.value.phase) == (BROKEN, where)
    if where != "construction":
        with pytest.raises(EnvError, match="closed"):
            pool.reset()
        pool.close()


# ------------------------------------------------------------------------------------------------------------ endings
def test_closing_leaves_no_process_and_may_be_repeated():
    env = ParallelEnv(2, ArrayCountingEnv, mp_start_method="fork")
    env.rollout(3)
    assert len(children()) >= 2
    env.close()
    env.close()
    assert env.is_closed
    with pytest.raises(EnvError, match="closed"):
        env.reset()
    with pytest.raises(EnvError, match="closed"):
        env.close(raise_if_closed=True)


def test_a_batch_that_is_forgotten_ends_its_workers():
    before = children()
    env = ParallelEnv(2, ArrayCountingEnv, mp_start_method="fork")
    env.rollout(3)
    assert children() > before
    del env
    gc.collect()
    assert children() == before


def test_a_worker_that_does_not_leave_is_killed():
    class Clinging(CountingEnv):
        def close(self, **kwargs):
            time.sleep(1000)

    env = ParallelEnv(2, Clinging, mp_start_method="fork", shutdown_timeout=0.2)
    env.close()


SCRIPT = """
import sys, time
from rl_core.testing import CountingEnv
from rl_envs import ParallelEnv
env = ParallelEnv(2, lambda: CountingEnv(length=3), mp_start_method=sys.argv[1])
print("ready", *[lane.process.pid for lane in env.pool.lanes], flush=True)
while True:
    env.rollout(100, break_when_any_done=False)
"""


def _heed_interrupts():
    """A test run in the background of a shell ignores SIGINT, and hands that on to its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(("method", "how"), [("spawn", signal.SIGINT), ("fork", signal.SIGKILL)])
def test_an_interrupt_or_the_end_of_the_parent_ends_the_workers(tmp_path, method, how):
    """A script without a main guard, whose workers get the interrupt of the keyboard as well."""
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(file), method],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_heed_interrupts,
    )
    assert process.stdout is not None
    word, *pids = process.stdout.readline().split()
    assert word == "ready", process.communicate()[1]
    if how == signal.SIGINT:
        os.killpg(process.pid, signal.SIGINT)  # as the terminal does, to every process of the group
    else:
        process.kill()
    _, said = process.communicate(timeout=30)
    assert process.returncode != 0
    if how == signal.SIGINT:
        assert said.count("KeyboardInterrupt") >= 1 and "rl_envs/vector/worker.py" not in said
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "the workers outlive their parent"
        time.sleep(0.05)
