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

from .shrink import came_back, free_and_count

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
        done: asyncio.Future[tuple[list[str], int | None]] = loop.create_future()

        def settle(answer: tuple[list[str], int | None]) -> None:
            if not done.done():
                done.set_result(answer)

        def work() -> None:
            answer = free_and_count()
            with contextlib.suppress(RuntimeError):  # the loop has ended with the kernel
                loop.call_soon_threadsafe(settle, answer)

        threading.Thread(target=work, name="gpuspawner-shrink", daemon=True).start()
        try:
            failures, freed = await asyncio.wait_for(done, CALLBACK_SECONDS)
        except TimeoutError:
            freed = None
            failures = [f"a function given to on_shrink has not returned within {CALLBACK_SECONDS:.0f} s"]
        content = {"status": "ok", "failures": failures[:20], "freed_bytes": freed}
        kernel.session.send(stream, REPLY, content, parent, ident=idents)

    handlers[REQUEST] = handle


async def ask_to_free(managers: Iterable[Any], patience: float = PATIENCE) -> list[str]:
    """Ask these kernels (by their managers) at once. Never raises.

    Returns a line that says how much came back, where a kernel knows, and one line for each failure.
    """
    answers = await asyncio.gather(*(_ask(manager, patience) for manager in managers), return_exceptions=True)
    told = [answer for answer in answers if isinstance(answer, tuple)]
    known = [freed for _, freed in told if freed is not None]
    return [*came_back(sum(known) if known else None), *(line for lines, _ in told for line in lines)]


async def _ask(manager: Any, patience: float) -> tuple[list[str], int | None]:
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
                return _checked(answer["content"])
    except Exception:  # no answer, or a kernel that is going away: the shrink is tried all the same
        return [], None
    finally:
        channel.stop()
    return [], None


def _checked(content: dict[str, Any]) -> tuple[list[str], int | None]:
    """What a kernel says; it may be anything that its user writes there."""
    failures, freed = content.get("failures"), content.get("freed_bytes")
    lines = [str(line)[:300] for line in failures[:20]] if isinstance(failures, list) else []
    return lines, freed if type(freed) is int and 0 <= freed < 1 << 50 else None
