"""From what the parent process saw to one status."""

from __future__ import annotations

import os
import signal

from rl_llm.tools.sandbox.inside.once import OUT_OF_MEMORY
from rl_llm.tools.sandbox.result import Status
from rl_llm.tools.sandbox.running import Ending

__all__ = ["judge"]


def judge(ended_by_us: Status | None, ending: Ending | None, cpu_limit_s: int) -> tuple[Status, int | None]:
    """Status and exit code of a run.

    Args:
        ended_by_us: why the parent ended it, if it did.
        ending: the supervisor's report, if it came.
        cpu_limit_s: the CPU limit, which the kernel enforces by signals.

    Example:
        >>> judge(None, Ending(wait_status=0), 10)
        ('ok', 0)
        >>> judge("timeout", Ending(wait_status=9), 10)
        ('timeout', None)
    """
    if ended_by_us is not None:
        return ended_by_us, None
    if ending is None or ending.wait_status is None:
        return "killed", None
    if ending.oom:
        return "oom", None
    code = os.waitstatus_to_exitcode(ending.wait_status)
    if code < 0:
        out_of_time = -code == signal.SIGXCPU or (-code == signal.SIGKILL and ending.cpu_s >= cpu_limit_s)
        return ("timeout" if out_of_time else "killed"), code
    if code == OUT_OF_MEMORY:
        return "oom", code
    return ("ok" if code == 0 else "error"), code
