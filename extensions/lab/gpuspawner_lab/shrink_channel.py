"""Asking kernels to free caches before the panel's shrink: a message on the kernel's control channel.

The control channel has a thread of its own in ipykernel, so a kernel answers while a cell runs, and no code
is put into its queue. Both sides are here: `answer_requests` in the kernel, `ask_to_free` in the Jupyter server.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterable
from typing import Any

from .shrink import free_caches

REQUEST = "gpuspawner_shrink_request"
REPLY = "gpuspawner_shrink_reply"
#: Seconds that a kernel's callbacks get, and that the server waits: kernels without the handler never answer.
CALLBACK_SECONDS = 3.0
PATIENCE = 4.0


def answer_requests(shell: Any) -> None:
    """Let this kernel answer the server's requests. Other shells (a terminal's IPython) are left alone."""
    kernel = getattr(shell, "kernel", None)
    handlers = getattr(kernel, "control_handlers", None)
    if kernel is None or not isinstance(handlers, dict):
        return

    async def handle(stream: Any, idents: Any, parent: Any) -> None:
        # In a thread of its own: a callback that hangs must not take interrupt and shutdown with it.
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[str]] = loop.create_future()

        def settle(failures: list[str]) -> None:
            if not done.done():
                done.set_result(failures)

        def work() -> None:
            failures = free_caches()
            with contextlib.suppress(RuntimeError):  # the loop has ended with the kernel
                loop.call_soon_threadsafe(settle, failures)

        threading.Thread(target=work, name="gpuspawner-shrink", daemon=True).start()
        try:
            failures = await asyncio.wait_for(done, CALLBACK_SECONDS)
        except TimeoutError:
            failures = [f"a function given to on_shrink has not returned within {CALLBACK_SECONDS:.0f} s"]
        kernel.session.send(stream, REPLY, {"status": "ok", "failures": failures[:20]}, parent, ident=idents)

    handlers[REQUEST] = handle


async def ask_to_free(managers: Iterable[Any], patience: float = PATIENCE) -> list[str]:
    """Ask these kernels (by their managers) at once; returns one line for each failure. Never raises."""
    answers = await asyncio.gather(*(_ask(manager, patience) for manager in managers), return_exceptions=True)
    return [line for answer in answers if isinstance(answer, list) for line in answer]


async def _ask(manager: Any, patience: float) -> list[str]:
    client = manager.client()
    channel = client.control_channel
    channel.start()
    try:
        message = client.session.msg(REQUEST, {})
        channel.send(message)
        deadline = time.monotonic() + patience
        while (left := deadline - time.monotonic()) > 0:
            answer = await channel.get_msg(timeout=left)
            if answer["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                failures = answer["content"].get("failures")
                return [str(line)[:300] for line in failures] if isinstance(failures, list) else []
    except Exception:  # no answer, or a kernel that is going away: the shrink is tried all the same
        return []
    finally:
        channel.stop()
    return []
