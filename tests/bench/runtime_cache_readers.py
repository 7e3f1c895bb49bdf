"""Forty processes read the same uncached objects at the same moment: wrong contents, and downloads beyond one for
each."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import tempfile

from tests.runtime import cache_processes
from tests.runtime.stores import object_store

READERS, OBJECTS, SIZE = 40, 8, 2 * 1000**2


def main() -> None:
    """Prints the sum."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["fsspec.implementations.http", "aiohttp"])
    objects = {f"part-{i}": os.urandom(SIZE + i) for i in range(OBJECTS)}
    with object_store(objects) as store, tempfile.TemporaryDirectory() as folder:
        store.rate = 20e6
        results, barrier = processes.Queue(), processes.Barrier(READERS)
        args = (store.url, sorted(objects), {"folder": folder}, barrier, results)
        readers = [processes.Process(target=cache_processes.read_all, args=args) for _ in range(READERS)]
        for reader in readers:
            reader.start()
        found = [results.get() for _ in range(READERS * OBJECTS)]
        for reader in readers:
            reader.join()
        corrupt = sum(hashlib.sha256(objects[name]).hexdigest() != digest for name, digest, _ in found)
        extra = sum(store.gets.values()) - OBJECTS
    print(
        f"{READERS} processes, {OBJECTS} objects of {SIZE // 1000**2} MB: {corrupt} wrong, {extra} downloads too many"
    )
    print(f"{corrupt + extra} faults")


if __name__ == "__main__":
    main()
