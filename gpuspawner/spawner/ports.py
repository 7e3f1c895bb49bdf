"""Ports that sessions may never listen on: gpuspawner's own, so that nobody takes one while its owner is down.

The kernel's Landlock can only list what *is* allowed, and a list of all ports but four takes a tenth of a second to
write. So the hub writes it once and puts itself under it before it starts its first server; all that it starts inherits
it for good. (Landlock: docs.kernel.org/userspace-api/landlock.html; TCP ports from Linux 6.7 on, ABI 4.)
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections.abc import Iterable

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same numbers on every architecture
_VERSION = 1
_BIND_TCP = 1
_NET_PORT = 2
_FIRST_ABI = 4
_NO_NEW_PRIVS = 38

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


#: Closed once for a process and set of ports; kept, since a task that nobody holds may vanish.
_closing: dict[frozenset[int], asyncio.Task[None]] = {}


def close_once(ports: Iterable[int]) -> asyncio.Task[None]:
    """`close`, begun by whoever asks first. Await it shielded."""
    wanted = frozenset(ports)
    if wanted not in _closing:
        _closing[wanted] = asyncio.ensure_future(close(wanted))
    return _closing[wanted]


def supported() -> bool:
    """Whether this kernel can do it."""
    return int(_libc.syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION)) >= _FIRST_ABI


async def close(ports: Iterable[int]) -> None:
    """From now on neither this thread nor what it starts may listen on `ports`; sockets that listen already stay.

    Raises OSError where the kernel refuses. Needs root, or gives up gaining privileges by setuid programs.
    """
    ruleset = await asyncio.to_thread(_ruleset, frozenset(ports))
    try:
        if os.geteuid() != 0:
            _call("prctl", _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
        _call("landlock_restrict_self", _libc.syscall(_RESTRICT, ruleset, 0))
    finally:
        os.close(ruleset)


def _ruleset(closed: frozenset[int]) -> int:
    """The descriptor of a list of all TCP ports but `closed`; 0 stands for whichever the kernel chooses."""
    attributes = struct.pack("=QQ", 0, _BIND_TCP)
    size = ctypes.c_size_t(len(attributes))
    ruleset = _call("landlock_create_ruleset", _libc.syscall(_CREATE, attributes, size, 0))
    rule = ctypes.create_string_buffer(struct.pack("=QQ", _BIND_TCP, 0))
    port = ctypes.c_uint64.from_buffer(rule, 8)
    for each in range(1 << 16):
        if each not in closed:
            port.value = each
            _call("landlock_add_rule", _libc.syscall(_ADD, ruleset, _NET_PORT, rule, 0))
    return ruleset


def _call(name: str, result: int) -> int:
    if result < 0:
        problem = ctypes.get_errno()
        raise OSError(problem, f"{name}: {os.strerror(problem)}")
    return result
