"""Time that a training loop waits for data of a slow store in three epochs, over the same loop without a cache."""

from __future__ import annotations

import os
import tempfile
import time

import fsspec
from gpuspawner_runtime.cache import cached

from tests.runtime.stores import object_store

OBJECTS, SIZE, EPOCHS, COMPUTE = 24, 1000**2, 3, 0.04


def main() -> None:
    """Prints the ratio. `sleep` stands for what the card does in the meantime."""
    names = [f"{i:03}" for i in range(OBJECTS)]
    with object_store({name: os.urandom(SIZE) for name in names}) as store, tempfile.TemporaryDirectory() as folder:
        store.rate, store.latency = 25e6, 0.02
        plain = fsspec.filesystem("http")
        plain.cat_file(store.url + names[0])
        data = cached(store.url, "1GB", folder=folder)
        waited = {}
        for how in ("plain", "cached"):
            waited[how] = 0.0
            for _ in range(EPOCHS):
                files = data.iterate(names, ahead=4)
                for name in names:
                    began = time.perf_counter()
                    if how == "plain":
                        content = plain.cat_file(store.url + name)
                    else:
                        with next(files)[1] as file:
                            content = file.read()
                    waited[how] += time.perf_counter() - began
                    assert content == store.objects[name]
                    time.sleep(COMPUTE)
                files.close()
    print(
        f"{EPOCHS} epochs of {OBJECTS} objects, {COMPUTE * 1000:.0f} ms of work for each, store at 25 MB/s and 20 ms: "
        f"waited {waited['cached']:.2f} s, without a cache {waited['plain']:.2f} s"
    )
    print(f"{waited['cached'] / waited['plain']:.3f} times")


if __name__ == "__main__":
    main()
