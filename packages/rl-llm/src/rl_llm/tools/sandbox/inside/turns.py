"""A session's guest: runs one piece of code after another in one main module, and answers over a channel of its own.

The text of this file is given to ``python -c``; ``sys.argv`` holds the channel's descriptor and folders to import from.
A request is ``{"nonce", "code", "name"}``, an answer ``{"nonce", "outcome", "exit_code", "cpu_s"}``, each as JSON
after its length in four bytes. An answer repeats the request's nonce: what the code prints is none.
"""

import json
import os
import sys
import time
import traceback


def _serve(channel: int, main: dict) -> None:
    read, write, dumps, loads = os.read, os.write, json.dumps, json.loads
    clock, run = time.process_time, _run
    while True:
        size = int.from_bytes(_exactly(read, channel, 4), "big")
        request = loads(_exactly(read, channel, size))
        start = clock()
        outcome, exit_code = run(request["code"], request["name"], main)
        answer = {"nonce": request["nonce"], "outcome": outcome, "exit_code": exit_code, "cpu_s": clock() - start}
        body = dumps(answer).encode()
        write(channel, len(body).to_bytes(4, "big") + body)


def _run(code: str, name: str, main: dict, *, _print=traceback.print_exception, _sys=sys):  # type: ignore
    outcome, exit_code = "ok", 0
    try:
        # One dictionary for globals and locals: a function sees itself and what later calls define.
        exec(compile(code, name, "exec"), main)
    except SystemExit as stop:
        exit_code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=_sys.stderr)
        outcome = "ok" if exit_code == 0 else "error"
    except BaseException as error:
        outcome, exit_code = ("oom" if isinstance(error, MemoryError) else "error"), 1
        trace = error.__traceback__
        _print(type(error), error, trace.tb_next if trace else None)
    for stream in (_sys.stdout, _sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            continue  # the code replaced or closed it
    return outcome, exit_code


def _exactly(read, channel: int, size: int) -> bytes:  # type: ignore[no-untyped-def]
    data = b""
    while len(data) < size:
        part = read(channel, size - len(data))
        if not part:
            os._exit(0)
        data += part
    return data


def _main() -> None:
    channel, folders = int(sys.argv[1]), sys.argv[2:]
    os.set_inheritable(channel, False)
    sys.argv[:] = ["session.py"]
    sys.path[:0] = [os.getcwd(), *folders]
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    _serve(channel, module.__dict__)


if __name__ == "__main__":
    _main()
