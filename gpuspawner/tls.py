"""Which certificates gpuspawner's HTTP clients believe: those of httpx, read once for each process."""

from __future__ import annotations

import functools
import ssl

import httpx


@functools.cache
def context() -> ssl.SSLContext:
    """For `verify` of an httpx client or transport. Without it each client reads all certificates anew, some 20 ms of
    processor time, in the hub and the supervisor on the event loop; nothing of the environment changes it."""
    return httpx.create_ssl_context(trust_env=False)
