"""What readers in processes of their own do, for the tests of the cache."""

from __future__ import annotations

import hashlib
import os
import time
from multiprocessing.synchronize import Barrier, Event
from typing import Any

from gpuspawner_runtime.cache import cached


def read_all(url: str, names: list[str], options: dict[str, Any], start: Barrier, results: Any) -> None:
    """Read each object at the same moment as all others, and say what came."""
    data = cached(url, **options)
    start.wait(120)
    for name in names:
        try:
            with data.open(name) as file:
                found = hashlib.sha256(file.read()).hexdigest()
        except Exception as error:
            found = repr(error)
        results.put((name, found, os.getpid()))


def read_one(url: str, name: str, options: dict[str, Any], results: Any) -> None:
    """Read one object, and say its hash."""
    results.put(hashlib.sha256(cached(url, **options).read(name)).hexdigest())


def keep_open(url: str, name: str, options: dict[str, Any], is_open: Event, results: Any) -> None:
    """Open an object, and never close it."""
    file = cached(url, **options).open(name)
    results.put(hashlib.sha256(file.read()).hexdigest())
    is_open.set()
    time.sleep(600)


def fork_and_read(url: str, name: str, options: dict[str, Any], results: Any) -> None:
    """Read in a forked child while the parent has been reading, as DataLoader's workers do."""
    data = cached(url, **options)
    with data.open(name) as file:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                other = data.read(name + "-2")
                code = 0 if file.read(4) + other[:4] else 1
            finally:
                os._exit(code)
        results.put(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
