"""The panel's way to a kernel's `on_shrink`: a real kernel, asked over its control channel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gpuspawner_lab.shrink_channel import ask_to_free
from jupyter_client.manager import AsyncKernelManager

_REGISTER = """
from gpuspawner_lab import on_shrink
from gpuspawner_lab.shrink_channel import answer_requests
answer_requests(get_ipython())
called = []
on_shrink(lambda: called.append(1))
@on_shrink
def broken(): raise OSError("no")
"""


@pytest.fixture
async def kernel() -> AsyncIterator[tuple[Any, Any]]:
    """A manager and a client of a kernel that has registered two callbacks."""
    manager = AsyncKernelManager(kernel_name="python3")
    await manager.start_kernel()
    client = manager.client()
    client.start_channels()
    await client.wait_for_ready(timeout=60)
    await run(client, _REGISTER)
    yield manager, client
    client.stop_channels()
    await manager.shutdown_kernel(now=True)


async def run(client: Any, code: str, **expressions: str) -> Any:
    answer = await client.execute(code, user_expressions=expressions, reply=True, timeout=60)
    assert answer["content"]["status"] == "ok", answer["content"]
    return {name: found["data"]["text/plain"] for name, found in answer["content"]["user_expressions"].items()}


async def test_callbacks_run_and_failures_are_told(kernel: tuple[Any, Any]) -> None:
    manager, client = kernel
    assert await ask_to_free([manager], patience=30) == ["broken could not free its cache: OSError: no"]
    assert await run(client, "", times="len(called)") == {"times": "1"}


async def test_the_answer_says_how_much_came_back(kernel: tuple[Any, Any]) -> None:
    manager, client = kernel
    await run(client, "on_shrink(lambda: 3 << 29)\non_shrink(lambda: 1 << 29)\non_shrink(lambda: True)")
    first, second = await ask_to_free([manager], patience=30)
    assert first == "2.0 GiB of card memory came back from caches."
    assert second.startswith("broken")


async def test_a_busy_kernel_answers_too(kernel: tuple[Any, Any]) -> None:
    manager, client = kernel
    # Busy until the callback has run: only the control channel can end this cell.
    client.execute("import time\nwhile not called: time.sleep(0.01)")
    assert len(await ask_to_free([manager], patience=30)) == 1
    assert await run(client, "", times="len(called)") == {"times": "1"}


async def test_a_callback_that_hangs_is_left_behind_and_the_kernel_can_be_interrupted(kernel: tuple[Any, Any]) -> None:
    manager, client = kernel
    await run(client, "import threading\non_shrink(threading.Event().wait)")
    (line,) = await ask_to_free([manager], patience=30)
    assert "has not returned" in line
    assert await run(client, "", alive="1 + 1") == {"alive": "2"}


async def test_a_kernel_without_the_handler_only_costs_the_patience(kernel: tuple[Any, Any]) -> None:
    manager, client = kernel
    await run(client, "get_ipython().kernel.control_handlers.pop('gpuspawner_shrink_request')")
    async with asyncio.timeout(20):
        assert await ask_to_free([manager], patience=0.5) == []
