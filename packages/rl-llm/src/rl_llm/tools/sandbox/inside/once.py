"""The first lines of a one-shot guest: run main.py as the main module, with a traceback that begins there.

The text of this file is given to ``python -c``; ``sys.argv`` holds folders to import from.
"""

import os
import sys

OUT_OF_MEMORY = 125  # the exit status that says so; a program that uses it itself is taken at its word


def _run() -> None:
    folders, main = sys.argv[1:], sys.modules["__main__"].__dict__
    sys.argv[:] = ["main.py"]
    sys.path[:0] = [os.getcwd(), *folders]
    sys.excepthook = _report
    with open("main.py", encoding="utf-8") as file:
        source = file.read()
    code = compile(source, "main.py", "exec")
    for name in ("_run", "_report", "os", "sys", "OUT_OF_MEMORY"):
        main.pop(name, None)
    main["__file__"] = "main.py"
    main["__doc__"] = None
    exec(code, main)


def _report(kind, value, trace, *, _sys=sys, _exit=os._exit, _status=OUT_OF_MEMORY):  # type: ignore[no-untyped-def]
    while trace is not None and trace.tb_frame.f_code.co_filename == "<string>":
        trace = trace.tb_next
    _sys.__excepthook__(kind, value.with_traceback(trace), trace)
    if issubclass(kind, MemoryError):
        _sys.stdout.flush()
        _sys.stderr.flush()
        _exit(_status)


if __name__ == "__main__":
    _run()
