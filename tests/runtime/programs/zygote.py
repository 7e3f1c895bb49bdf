"""Starts programs in copies of itself, which have PyTorch imported already: that takes seconds, and tests start dozens.

One JSON object a line: `{"file", "argv", "env", "output"}` is answered with the pid, `{"wait": pid}` with the status
that the process ended with (negative: the signal).
"""

import json
import os
import runpy
import sys

import gpuspawner_runtime.run  # noqa: F401
import numpy  # noqa: F401
import runtime.models  # noqa: F401
import safetensors  # noqa: F401
import torch
import torch._dynamo
import torch.utils.data  # noqa: F401


def child(order: dict[str, object]) -> None:
    os.setsid()
    output = os.open(str(order["output"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(order["env"])  # type: ignore[call-overload]
    sys.argv = [str(order["file"]), *order["argv"]]  # type: ignore[misc]
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", buffering=1), open(2, "w", buffering=1)  # noqa: SIM115
    runpy.run_path(str(order["file"]), run_name="__main__")


for line in sys.stdin:
    asked = json.loads(line)
    if "wait" in asked:
        answer = os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1])
    else:
        answer = os.fork()
        if answer == 0:
            child(asked)
            break  # the way that any program ends: exit functions, flushed output
    print(json.dumps(answer), flush=True)
