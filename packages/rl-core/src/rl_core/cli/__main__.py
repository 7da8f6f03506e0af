"""``python -m rl_core.cli`` is ``rl``, also where scripts are not on the PATH."""

from __future__ import annotations

import sys

from rl_core.cli.program import main

if __name__ == "__main__":
    sys.exit(main())
