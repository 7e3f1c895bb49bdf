"""Asks kernels to park themselves, and to bring back what was parked: between two cells, by the runtime in the kernel.

A kernel that is busy does not answer: it would have to be in the middle of what it does.
"""

from __future__ import annotations

import ast
import json
import time
from typing import Any, Literal

_EXPRESSION = "__import__('gpuspawner_runtime.park.preempted', fromlist=['x']).{act}({name!r})"


class KernelProblem(Exception):
    """Why a kernel could not do it, as a sentence."""


async def ask_kernel(manager: Any, act: Literal["save", "restore"], name: str, patience: float) -> dict[str, Any]:
    """What the kernel answers. Raises KernelProblem."""
    client = manager.client()
    channel = client.shell_channel
    channel.start()
    try:
        content = {
            "code": "",
            "silent": True,
            "store_history": False,
            "user_expressions": {"done": _EXPRESSION.format(act=act, name=name)},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        message = client.session.msg("execute_request", content)
        channel.send(message)
        deadline = time.monotonic() + patience
        while (left := deadline - time.monotonic()) > 0:
            answer = await channel.get_msg(timeout=left)
            if answer["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                return _checked(answer["content"])
    except KernelProblem:
        raise
    except Exception as error:  # no answer, or a kernel that is going away
        raise KernelProblem(f"it did not answer ({type(error).__name__})") from error
    finally:
        channel.stop()
    raise KernelProblem(f"it did not answer within {patience:.0f} s")


def _checked(content: dict[str, Any]) -> dict[str, Any]:
    """What a kernel says; it may be anything that its user writes there."""
    given = (content.get("user_expressions") or {}).get("done") or {}
    if given.get("status") != "ok":
        what = "gpuspawner-runtime is not installed in it"
        if given.get("ename") != "ModuleNotFoundError":
            what = f"{given.get('ename')}: {given.get('evalue')}"[:200]
        raise KernelProblem(what)
    try:
        read = json.loads(ast.literal_eval(given["data"]["text/plain"]))
    except (KeyError, TypeError, ValueError, SyntaxError, RecursionError):
        raise KernelProblem("it gave an answer that is not understood") from None
    if not isinstance(read, dict) or read.get("problem"):
        raise KernelProblem(str(read["problem"])[:300] if isinstance(read, dict) else "it gave no answer")
    return read
