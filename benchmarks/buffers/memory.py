"""What a buffer takes of memory beyond its rows: the growth of the process, less the bytes of the rows.

python benchmarks/buffers/memory.py [ours | ours_prioritized | cpprb_prioritized | torchrl | sb3 ...] [--rows 1000000]
"""

from __future__ import annotations

import argparse
import gc
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
from _rows import size

CONTENDERS = {
    "ours": ("ours", "sample"),
    "ours_prioritized": ("ours", "prioritized"),
    "ours_slices": ("ours", "slices"),
    "cpprb": ("cpprb_buffer", "sample"),
    "cpprb_prioritized": ("cpprb_buffer", "prioritized"),
    "torchrl": ("torchrl_buffer", "sample"),
}


def resident() -> int:
    """Bytes of this process that are in memory."""
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))


def main() -> None:
    """Build a full buffer, use it once, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contender", choices=CONTENDERS)
    parser.add_argument("--rows", type=int, default=10**6)
    options = parser.parse_args()
    module, task = CONTENDERS[options.contender]
    build = __import__(module).build
    build(task=task, capacity=1000)()  # what is loaded once
    before = resident()
    work = build(task=task, capacity=options.rows)
    work()
    beyond = (resident() - before) / options.rows - size("state")
    print(f"{options.contender}: {beyond:.1f} bytes a row beyond the {size('state')} of the row itself")


if __name__ == "__main__":
    main()
